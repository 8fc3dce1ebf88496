"""A window process for the fuzzer: opens session files one after the other with every panel shown.

``python tests/workbench/fuzzing/fuzzed_window.py FOLDER`` reads a path from each line of
standard input. It answers each with a JSON list of what was wrong: failures, plots and panels
that were not drawn.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from sessions.model import Session
    from workbench.ui.window import MainWindow

SLOWEST_S = 60  # of processor time, so that other processes do not count
HUNG_S = 1800  # by the clock
UNDRAWN = "could not be drawn"


class WindowProcess:
    """The process of the window; the next file starts another after a crash or a hang."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def open(self, path: Path) -> list[str]:
        """Show a file in all panels; return what was wrong."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{path}\n".encode())
        process.stdin.flush()
        work_s, began = used_s(process.pid), time.monotonic()
        while not select.select([process.stdout], [], [], 1)[0]:
            used = used_s(process.pid) - work_s
            if used > SLOWEST_S or time.monotonic() - began > HUNG_S:
                self.close()
                return [f"the window did not show it within {used:.0f} s of processor time"]
        if answer := process.stdout.readline():
            complaints = list(json.loads(answer))
            if complaints:  # the next file gets a window without the traces of this one
                self.close()
            return complaints
        self._process = None
        return [f"the window ended with {process.wait()}"]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
        )
        return self._process


def used_s(number: int) -> float:
    """Return the processor time that a process has used."""
    times = psutil.Process(number).cpu_times()
    return float(times.user + times.system)


def make_all_panels(window: MainWindow) -> None:
    """Make and show every panel of a window that is shown."""
    from workbench.ui.panels.lazy_panel import LazyPanel

    for dock in window.dock_area.docks.values():
        if isinstance(panel := dock.widget(), LazyPanel):
            panel.panel()
        dock.show()


def show(window: MainWindow, path: Path, wait: Callable[[Callable[[], bool]], None]) -> list[str]:
    """Open a file and bring every panel to the front once; return what was wrong.

    ``wait`` handles events until a condition is true.
    """
    workspace, before = window.workspace, window.workspace.session.shown
    window.open_path(path)
    wait(lambda: workspace.session.shown is not before or bool(workspace.failures.recent))
    _paint_all(window)
    return _complaints(window)


def show_beside(
    window: MainWindow, session: Session, wait: Callable[[Callable[[], bool]], None]
) -> list[str]:
    """Show the session of the window in comparison with another; return what was wrong."""
    workspace = window.workspace
    workspace.compared.add(session)
    wait(lambda: bool(workspace.compared.sessions) or bool(workspace.failures.recent))
    _paint_all(window)
    workspace.compared.clear()
    return _complaints(window)


def _paint_all(window: MainWindow) -> None:
    from PySide6.QtWidgets import QApplication

    for dock in window.dock_area.docks.values():
        dock.raise_()
        dock.widget().repaint()
        QApplication.processEvents()
    window.workspace.tasks.wait()
    QApplication.processEvents()


def _complaints(window: MainWindow) -> list[str]:
    from PySide6.QtWidgets import QLabel

    from workbench.ui.panels._chart import Chart

    shown = [label.text() for label in window.findChildren(QLabel)]
    shown += [chart.reason or "" for chart in window.findChildren(Chart)]
    failures = [
        f"{failure.sentence} {failure.detail}" for failure in window.workspace.failures.recent
    ]
    return failures + [text for text in shown if UNDRAWN in text]


def _wait(condition: Callable[[], bool]) -> None:
    from PySide6.QtCore import QEventLoop
    from PySide6.QtWidgets import QApplication

    while not condition():
        QApplication.processEvents(QEventLoop.ProcessEventsFlag.AllEvents, 50)


def _main(folder: Path) -> None:
    from PySide6.QtWidgets import QApplication
    from synthetic import gpu_session

    from workbench.ui.controllers.appearance import Appearance
    from workbench.ui.process.uncaught import UncaughtErrors
    from workbench.ui.settings import Settings
    from workbench.ui.window import MainWindow
    from workbench.ui.workspace import Workspace

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    application: Any = QApplication(["workbench"])
    settings = Settings(folder / "settings.ini")
    workspace = Workspace()
    window = MainWindow(workspace, settings, Appearance(application, workspace.theme, settings))
    errors = UncaughtErrors(workspace.failures, window.dock_area.panels)
    window.resize(1600, 1000)
    window.show()
    QApplication.processEvents()
    make_all_panels(window)
    other = gpu_session(steps=40)
    for line in sys.stdin:
        wrong = show(window, Path(line.strip()), _wait)
        if not wrong:
            wrong = show_beside(window, other, _wait)
        answers.write(f"{json.dumps(wrong)}\n")
    errors.end()


if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[:0] = [str(here), str(here.parent / "samples"), str(here.parents[2])]
    _main(Path(sys.argv[1]))
    os._exit(0)
