"""The route of the runner's messages to the models."""

from __future__ import annotations

from PySide6.QtCore import QObject, SignalInstance

from sessions.model import Phase
from workbench import protocol
from workbench.titles import offered
from workbench.ui.connection import runner_failures
from workbench.ui.connection.runner_clock import RunnerClock
from workbench.ui.connection.runner_link import RunnerLink
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.failures import FailureModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import MEASURED, SessionModel

REMARKS = ("nan", "slower", "unwritten", protocol.JOURNAL)  # refused nothing: the run goes on


class MessageRouter(QObject):
    """Router of messages to the models: a batch updates them, then signals are emitted once."""

    def __init__(
        self,
        link: RunnerLink,
        clock: RunnerClock,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        failures: FailureModel,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._link, self._clock, self._failures = link, clock, failures
        self._session, self._run, self._configuration = session, run, configuration
        self._order = (  # the order of due signals
            configuration.availabilityChanged,
            configuration.catalogueChanged,
            session.comparisonsChanged,
            configuration.editedChanged,
            session.dataArrived,
            session.eventsChanged,
            session.segmentsChanged,
            run.stateChanged,
            session.studiesChanged,
            session.textChanged,
        )
        link.arrived.connect(self._drain)
        link.silent.connect(lambda seconds: failures.report(runner_failures.no_answer(seconds)))

    def _drain(self) -> None:
        due: list[SignalInstance] = []
        for message in self._link.drain():
            due += self.route(message)
            self._run.received.emit(message)
        for changed in self._order:
            if changed in due:
                changed.emit()
        self._session.settle_baseline()

    def route(self, message: protocol.AnyMessage) -> list[SignalInstance]:
        """Update the models from one message; return the signals that are due."""
        self._clock.hear(message)
        if isinstance(message, protocol.Failure) and not message.t_s:
            message.t_s = self._clock.now()
        try:
            self._session.recorder.record(message)
        except (protocol.WireError, ValueError, KeyError) as error:
            message = runner_failures.does_not_fit(error)
        due = self._session.changed_by(message)
        match message:
            case protocol.Catalogue():
                due += self._on_catalogue(message)
            case protocol.Availability():
                if message.configuration == self._configuration.edited:
                    self._configuration.availability = message
                    due.append(self._configuration.availabilityChanged)
            case protocol.State():
                self._run.set_state(message.state, message.text)
            case protocol.PhaseChanged(phase=phase) if phase >= Phase.WARM_UP:
                if self._run.progress is not None and self._run.state == "running":
                    self._run.progress = None  # compiling in the middle of a run is over
                    due.append(self._run.stateChanged)
            case protocol.Progress():
                self._run.progress = message
                due.append(self._run.stateChanged)
            case protocol.ComparisonStarted() | protocol.StudyStarted():
                due.append(self._run.stateChanged)
            case protocol.SegmentStarted():
                self._on_segment_started(message)
                due.append(self._configuration.editedChanged)
            case protocol.Failure():
                self._on_failure(message)
                due.append(self._configuration.editedChanged)
        if isinstance(message, (*MEASURED, protocol.SegmentStarted)):
            self._session.mark_changed(self._run.running)
        return due

    def _on_catalogue(self, catalogue: protocol.Catalogue) -> list[SignalInstance]:
        configuration = self._configuration
        configuration.set_catalogue(catalogue)
        self._session.set_runner_titles(offered(catalogue))
        if catalogue.version != protocol.VERSION:
            self._failures.report(runner_failures.other_version(catalogue.version))
        return [configuration.catalogueChanged, configuration.editedChanged]

    def _on_segment_started(self, message: protocol.SegmentStarted) -> None:
        started, configuration = message.configuration, self._configuration
        self._run.running = started
        if self._run.replaying and not config_edit.missing(configuration.catalogue, started):
            configuration.edited = started
        if configuration.refused:
            configuration.revert_refused()

    def _on_failure(self, failure: protocol.Failure) -> None:
        if failure.fatal:
            self._run.set_state("dead", failure.sentence)
        if failure.kind not in REMARKS:
            self._configuration.refused = self._run.active
            self._configuration.revert_refused()
        self._failures.report(failure)
