"""The documents' claims: which are measured, with which budget, and their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from PySide6.QtCore import QObject, QTimer, Signal

from sessions.model import Configuration
from sessions.studies import claims
from sessions.studies.claims import Row
from workbench import calibration, protocol
from workbench.claims import documents
from workbench.claims._course import Chosen, Course
from workbench.client.recorder import Recorder
from workbench.ui.controllers.measurements import Measurements
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import NOT_READY, RunModel
from workbench.ui.state.session import SessionModel

BUDGET_S = 10.0
LIMIT_S = 0.0  # none


class Reproductions(QObject):
    """Controller of the experiments behind claims; their results are a study of the session.

    The run in progress resumes after the last one, unless the user stopped them.
    """

    changed = Signal()  # a course began, went on to the next experiment, or ended

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        measurements: Measurements,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run, self._configuration = session, run, configuration
        self._measurements = measurements
        self._resumption: Configuration | None = None  # configuration of the interrupted run
        self.budget_s = BUDGET_S
        self.limit_s = LIMIT_S
        self._course: Course | None = None
        self._recorder: Recorder | None = None  # recorder of the course's session
        self._command: protocol.Command | None = None
        self._renewing = False  # a runner was lost, and another one starts
        self._run_before = False  # an earlier run has yet to end; its messages are ignored
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._cut)
        run.received.connect(self._on_message)
        session.sessionChanged.connect(self._leave_session)

    @property
    def measuring(self) -> bool:
        """True while claims of the live session are being measured."""
        return self._course is not None

    @property
    def doing(self) -> str:
        """The document and the experiment being measured; empty if there is none."""
        return "" if self._course is None else self._course.doing

    def experiments(self, document: str = "", experiment: str = "") -> list[Chosen]:
        """Return the experiments of all documents, of a single document, or a single experiment."""
        return [
            (known_document, item)
            for name, known_document in documents().items()
            for item in known_document.experiments
            if document in ("", name) and experiment in ("", item.name)
        ]

    def rows(self) -> list[Row]:
        """Return every claim of every document with what the shown session knows of it, in order.

        Claims of the session that these documents lack come last.
        """
        known = claims.newest(self._session.shown, self.measuring and self._session.live)
        every = Course(self.experiments(), self.budget_s).rows
        blank = [dataclasses.replace(row, result="") for row in every]
        return [known.pop(row.key, row) for row in blank] + list(known.values())

    def why_not(self) -> str:
        """Return why no claim can be measured now; empty if it is possible."""
        pending = "Claims are being measured." if self.measuring else ""
        why = self._run.why_not("measure", pending)
        return why or (NOT_READY if self._configuration.catalogue is None else "")

    def measure(self, document: str = "", experiment: str = "") -> None:
        """Measure all claims, the claims of a document, or the claims of an experiment."""
        if self.why_not() or self._configuration.catalogue is None:
            return
        self._session.show_live()
        self._recorder, self._run_before = self._session.recorder, self._run.active
        self._resumption = self._run.continued if self._run.active else None
        course = self._course = Course(
            self.experiments(document, experiment),
            self.budget_s,
            self.limit_s or None,
            calibration.respected,
        )
        self._run.in_series = True
        self._record(course.begin(self._configuration.catalogue, self._session.shown))
        self._send_next()

    def stop(self) -> None:
        """Cancel the current experiment, and measure no further claims."""
        self._run.cancel()
        self._finish("stopped")

    # The course of a run

    def _on_message(self, message: protocol.AnyMessage) -> None:
        course = self._course
        if course is None:
            return
        if self._run_before and not isinstance(message, protocol.Catalogue | protocol.Failure):
            idle = isinstance(message, protocol.State) and message.state == "idle"
            self._run_before = not idle
            return
        self._record(course.on_message(message))
        match message:
            case protocol.Catalogue():
                if not self._renewing:
                    self._finish("another runner was started")
                    return
                self._renewing = False
                self._send_next()
            case protocol.Finished() if self._command is not None:
                if message.reason in ("cancelled", "stopped") and not course.was_cut:
                    self._finish(message.reason)
                else:
                    self._send_next()
            case protocol.Failure() if message.fatal:
                self._lost()

    def _send_next(self) -> None:
        """Send the next command, or end where none is left."""
        course, catalogue = self._course, self._configuration.catalogue
        assert course is not None and catalogue is not None
        self._timer.stop()
        self._command = course.next(catalogue)
        self._record(course.pending_messages())
        if self._command is None:
            self._finish()
            return
        self._timer.start(round(min(1000 * course.allowed_s, 2**31 - 1)))
        self._run.send(self._command)
        self.changed.emit()

    def _cut(self) -> None:
        if self._course is not None and self._course.on_timeout(self._command):
            self._run.cancel()

    def _lost(self) -> None:
        """Continue with a new runner, unless the user ended the old one."""
        course = self._course
        assert course is not None
        self._timer.stop()
        self._command = None
        if self._run.cancelled and not course.was_cut:
            self._finish("cancelled")
        elif course.on_runner_lost():
            self._renewing = True
            self._record(course.pending_messages())
            self._run.start_runner()
        else:
            self._finish()

    def _finish(self, why: str = "") -> None:
        course = self._course
        if course is None:
            return
        self._timer.stop()
        self._record(course.finish(why))
        resumption = self._resumption
        self._end()
        self._renewing = False
        self.changed.emit()
        if resumption is not None and not why and self._run.ready:
            self._measurements.resume(resumption, "done")

    def _leave_session(self) -> None:
        """Stop measuring claims: a new session was begun."""
        if self._course is not None and self._recorder is not self._session.recorder:
            self._timer.stop()
            self._end()
            self.changed.emit()

    def _end(self) -> None:
        self._course = self._command = self._resumption = None
        self._run.in_series = False

    def _record(self, messages: Iterable[protocol.AnyMessage]) -> None:
        for message in messages:
            self._session.write(message)
