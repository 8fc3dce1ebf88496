"""Restart and cancel of a run, including the run that follows without another click."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer

from sessions.model import Configuration
from workbench import protocol
from workbench.ui.controllers.runs import Runs
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel

PATIENCE_MS = 1500  # wait after Cancel before a blocked runner (a compile) is replaced
RESUMED = "Cancelled; the run continues with the last configuration that worked."


class RunControl(QObject):
    """Controller that ends runs, replaces a runner that does not react, and resumes runs."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        runs: Runs,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._runs = configuration, runs
        self.cancelling = False
        self._resume: Configuration | None = None
        self._restarting = False
        self._first = 0  # segment of the run in progress
        self._patience = QTimer(self, singleShot=True)
        self._patience.timeout.connect(self._replace)
        run.stateChanged.connect(self._on_run_state)

    def restart(self) -> None:
        """End the run in progress and start the edited configuration."""
        if self._run.active:
            self._restarting = True
            self._run.stop()

    def cancel(self) -> None:
        """End the build or the run immediately.

        A run whose change of toggles was being built continues with the last configuration that
        worked. A runner that does not react is replaced.
        """
        run = self._run
        if self.cancelling:
            return
        if not run.active or run.in_series:
            run.cancel()
            return
        self._restarting = False
        building = run.state == "building" and not run.measures
        self._resume = self._last_working() if building else None
        self.cancelling = True
        run.cancel()
        self._patience.start(PATIENCE_MS)
        run.stateChanged.emit()

    def _last_working(self) -> Configuration | None:
        """Return the newest configuration of this run that took a step; None if none did."""
        for segment in reversed(self._session.recorder.session.segments[self._first :]):
            if len(segment.steps["t_s"]):
                return segment.configuration
        return None

    def _replace(self) -> None:
        if self.cancelling and self._run.state != "starting":
            self._run.start_runner()

    def _on_run_state(self) -> None:
        run, edited = self._run, self._configuration.edited
        if run.state == "dead":
            self._restarting = False
            if self.cancelling:
                self._replace()
        if run.state != "idle":
            return
        self._first = len(self._session.recorder.session.segments)
        if self.cancelling:
            self._patience.stop()
            self.cancelling = False
            resume, self._resume = self._resume, None
            run.stateChanged.emit()
            if resume is not None and edited is not None:
                self._configuration.edit(config_edit.with_toggles(edited, resume.toggles))
                self._session.write(protocol.Note(kind="info", text=RESUMED))
                self._runs.start()
        elif self._restarting:
            self._restarting = False
            self._runs.start()
