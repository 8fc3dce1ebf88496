"""Restart and cancel of a run: both go on without further clicks where that is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer

from sessions.model import Configuration
from workbench import protocol
from workbench.ui.controllers import config_edit

if TYPE_CHECKING:
    from workbench.ui.state import AppState

PATIENCE_MS = 1500  # from Cancel until a runner that does not react (a compile) is replaced
RESUMED = "Cancelled; the run continues with the last configuration that worked."


class RunControl(QObject):
    """Ends runs on request, replaces a runner that does not react, and starts what goes on."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._state = state
        self.cancelling = False
        self._resume: Configuration | None = None
        self._restarting = False
        self._first = 0  # segment of the run in progress
        self._patience = QTimer(self, singleShot=True)
        self._patience.timeout.connect(self._replace)
        state.stateChanged.connect(self._look)

    def restart(self) -> None:
        """End the run in progress and start the configuration that is being edited."""
        if self._state.active:
            self._restarting = True
            self._state.stop()

    def cancel(self) -> None:
        """End what is built or run at once.

        A run whose change of toggles was being built continues with the last configuration that
        worked. A runner that does not react is replaced.
        """
        state = self._state
        if self.cancelling:
            return
        if not state.active or state.reproductions.measuring:
            state.cancel()
            return
        self._restarting = False
        building = state.runner_state == "building" and not state.measures
        self._resume = self._last_working() if building else None
        self.cancelling = True
        state.cancel()
        self._patience.start(PATIENCE_MS)
        state.stateChanged.emit()

    def _last_working(self) -> Configuration | None:
        """Return the newest configuration of this run that took a step; None if none did."""
        for segment in reversed(self._state.recorder.session.segments[self._first :]):
            if len(segment.steps["t_s"]):
                return segment.configuration
        return None

    def _replace(self) -> None:
        if self.cancelling and self._state.runner_state != "starting":
            self._state.start_runner()

    def _look(self) -> None:
        state = self._state
        if state.runner_state == "dead":
            self._restarting = False
            if self.cancelling:
                self._replace()
        if state.runner_state != "idle":
            return
        self._first = len(state.recorder.session.segments)
        if self.cancelling:
            self._patience.stop()
            self.cancelling = False
            resume, self._resume = self._resume, None
            state.stateChanged.emit()
            if resume is not None and state.configuration is not None:
                state.edit(config_edit.with_toggles(state.configuration, resume.toggles))
                state.write(protocol.Note(kind="info", text=RESUMED))
                state.start()
        elif self._restarting:
            self._restarting = False
            state.start()
