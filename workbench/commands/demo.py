"""Run the guided demo: build, toggle, watch, save, export; in a window where there is a display."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.commands._command import DONE, FAILED, Command, Mistaken, answer, say

if TYPE_CHECKING:
    from workbench.ui.demo import Demo
    from workbench.ui.window import MainWindow


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo"
    )
    parser.add_argument(
        "--close", action="store_true", help="close the window at the end also on a display"
    )


def _run(arguments: argparse.Namespace) -> int:
    from workbench.ui import display

    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistaken(f"{arguments.out} cannot be a folder: {error.strerror}") from None
    trouble = display.trouble()
    if trouble:
        say(f"No window here ({trouble}): the demo runs the same on Qt's offscreen platform.")
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
        if still := display.trouble():
            say(f"workbench demo: {still}.")
            return FAILED

    from PySide6.QtWidgets import QApplication

    from workbench.ui import app
    from workbench.ui.demo import Demo

    application = QApplication(["workbench"])
    with tempfile.TemporaryDirectory() as folder:  # the demo leaves a person's settings alone
        arguments_of_window = app.parse(["--settings", str(Path(folder) / "demo.ini")])
        window = app.build(application, arguments_of_window)
        demo = Demo(window.state, arguments.out, say)
        demo.ended.connect(lambda: _summarise(demo, window, arguments.out))
        if trouble or arguments.close:
            demo.ended.connect(window.close)
        window.show()
        demo.start()
        application.exec()
    return DONE if demo.outcome.paths and not demo.outcome.failures else FAILED


def _summarise(demo: Demo, window: MainWindow, folder: Path) -> None:
    """Print where everything lies, with a picture of the window as it was."""
    if not demo.outcome.paths:
        say("The demo did not reach its end; nothing was saved.")
        return
    picture = folder / "window.png"
    window.grab().save(str(picture))
    answer((folder / "comparison.md").read_text(encoding="utf-8"))
    for line in [*demo.outcome.lines, ""]:
        answer(line)
    for path in [*demo.outcome.paths, picture]:
        answer(str(path))


COMMAND = Command(name="demo", help=__doc__, arguments=_arguments, run=_run)
