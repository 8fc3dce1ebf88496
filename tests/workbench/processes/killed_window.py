"""The real window, offscreen, that runs and saves for as long as it lives: made to be killed.

``python killed_window.py FILE.h5 SETTINGS.ini RUNNER...``: RUNNER is the command of its runner.
``FILE.received`` tells how many steps it had received.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["QT_QPA_PLATFORM"] = "offscreen"

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
from received_rows import note_rows

from workbench.client.runner_process import Runner
from workbench.ui.controllers.appearance import Appearance
from workbench.ui.settings import Settings
from workbench.ui.window import MainWindow
from workbench.ui.workspace import Workspace

SAVE_MS = 150


def main(file: Path, settings_file: Path, command: list[str]) -> int:
    application = QApplication(["workbench"])
    settings = Settings(settings_file)
    workspace = Workspace(launch=lambda journal: Runner(journal, command))
    window = MainWindow(workspace, settings, Appearance(application, workspace.theme, settings))
    window.show()
    workspace.run.start_runner()

    def start_when_idle() -> None:
        if workspace.run.state == "idle" and not workspace.session.shown.segments:
            workspace.runs.start()

    def save() -> None:
        if workspace.session.shown.segments:
            workspace.session.save(file)
            workspace.session.saved = False  # the run goes on: closing would keep the journal

    def note_received(_message: object) -> None:
        note_rows(workspace.session.recorder.session, file.with_suffix(".received"))

    workspace.run.received.connect(note_received)
    workspace.run.stateChanged.connect(start_when_idle)
    timer = QTimer()
    timer.timeout.connect(save)
    timer.start(SAVE_MS)
    return application.exec()


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
