"""The real window, offscreen, that runs and saves for as long as it lives: made to be killed.

``python killed_window.py FILE.h5 SETTINGS.ini RUNNER...``: RUNNER is the command of its runner.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["QT_QPA_PLATFORM"] = "offscreen"

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from workbench.client.runner_process import Runner
from workbench.ui.controllers.appearance import Appearance
from workbench.ui.settings import Settings
from workbench.ui.state import AppState
from workbench.ui.window import MainWindow

SAVE_MS = 150


def main(file: Path, settings_file: Path, command: list[str]) -> int:
    application = QApplication(["workbench"])
    settings = Settings(settings_file)
    state = AppState(launch=lambda journal: Runner(journal, command))
    window = MainWindow(state, settings, Appearance(application, state, settings))
    window.show()
    state.start_runner()

    def start_when_idle() -> None:
        if state.runner_state == "idle" and not state.session.segments:
            state.start()

    def save() -> None:
        if state.session.segments:
            state.save_session(file)
            state.saved = False  # the run goes on: closing would keep the journal

    state.stateChanged.connect(start_when_idle)
    timer = QTimer()
    timer.timeout.connect(save)
    timer.start(SAVE_MS)
    return application.exec()


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
