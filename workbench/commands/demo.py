"""Run the guided demo: a verdict within a minute, in a window if there is a display."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sessions.storage import atomic_write
from workbench import interrupts
from workbench.commands._command import (
    DONE,
    FAILED,
    INTERRUPTED,
    Command,
    Failed,
    Mistaken,
    answer,
    answer_json,
    print_status,
)
from workbench.commands.run import summary

if TYPE_CHECKING:
    from workbench.ui.demo import Demo
    from workbench.ui.window import MainWindow


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo"
    )
    parser.add_argument(
        "--close",
        action="store_true",
        help="close the window at the end, or after a failure, also on a display",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(arguments: argparse.Namespace) -> int:
    from workbench.ui.process import platform_check

    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistaken(f"{arguments.out} cannot be a folder: {error.strerror}") from None
    trouble = platform_check.trouble()
    if trouble:
        reason = trouble.partition(":")[0]
        print_status(
            f"No window here ({reason}); the demo runs on Qt's offscreen platform instead."
        )
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
        if still := platform_check.trouble():
            raise Failed(f"{still}.")
    if os.environ.get("QT_QPA_PLATFORM") == "minimal":  # it has no fonts, and Qt crashes on a label
        os.environ["QT_QPA_PLATFORM"] = "minimal:enable_fonts"

    from PySide6.QtWidgets import QApplication

    from workbench.theming import fonts
    from workbench.ui import app
    from workbench.ui.demo import Demo, WindowStage
    from workbench.ui.process.sigint import Interrupts
    from workbench.ui.process.uncaught import UncaughtErrors

    application = QApplication(["workbench"])
    platform_check.hush_offscreen()
    if not fonts.exist():
        sys.stderr.write(f"workbench: {fonts.NO_FONT}.\n")
    visible = not platform_check.is_invisible(application.platformName())
    with (
        interrupts.handled_by(interrupts.note),
        tempfile.TemporaryDirectory() as folder,  # the demo leaves a person's settings alone
    ):
        arguments_of_window = app.parse(["--settings", str(Path(folder) / "demo.ini")])
        window = app.build(application, arguments_of_window)
        demo = Demo(window.workspace, arguments.out, print_status, WindowStage(window))
        demo.ended.connect(lambda: _save_picture(demo, window, arguments.out))
        if not arguments.json:
            demo.judged.connect(answer)
            demo.ended.connect(lambda: _report(demo, visible))
        if arguments.close or not visible:  # nobody could close it
            demo.ended.connect(window.close)
        errors = UncaughtErrors(window.workspace.failures, window.dock_area.panels)
        watch = Interrupts(window)
        watch.pressed.connect(demo.interrupt)
        window.show()
        demo.start()
        application.exec()
        watch.end()
        errors.end()
    if arguments.json:
        answer_json(_as_data(demo))
    return _CODES[_reason(demo)]


_CODES = {"done": DONE, "failed": FAILED, "cancelled": INTERRUPTED}


def _reason(demo: Demo) -> str:
    if demo.outcome.interrupted:
        return "cancelled"
    return "done" if demo.outcome.paths and not demo.outcome.failures else "failed"


def _save_picture(demo: Demo, window: MainWindow, folder: Path) -> None:
    """Save a picture of the window as it is at the end."""
    if demo.outcome.paths:
        picture = folder / "window.png"
        with atomic_write.replacing(picture) as temporary:
            window.grab().save(str(temporary), "PNG")
        demo.outcome.paths.append(picture)


def _report(demo: Demo, visible: bool) -> None:
    """Print what to try next, and the files."""
    outcome = demo.outcome
    if not outcome.paths:
        print_status("The demo did not reach its end; nothing was saved.")
        return
    session, *_ = outcome.paths
    answer(
        "Next: change a toggle in the window and press Verdict (F8)."
        if visible
        else f"Next: `workbench report {session} -o report.html`, or a verdict of your own: "
        "`workbench ab hydra --workload train --b adamw=fused`."
    )
    answer(f"Files: {', '.join(map(str, outcome.paths))}")


def _as_data(demo: Demo) -> dict[str, Any]:
    segments = demo.outcome.session.segments
    return {
        "reason": _reason(demo),
        "failures": [msgspec.to_builtins(failure) for failure in demo.outcome.failures],
        "files": [str(path) for path in demo.outcome.paths],
        "verdicts": demo.outcome.verdicts,
        "environment": demo.outcome.session.environment,
        "segments": [summary(segment) for segment in segments],
    }


COMMAND = Command(name="demo", help=__doc__, arguments=_arguments, run=_run, drives=True)
