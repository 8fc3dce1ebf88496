"""Measurements that interrupt the run in progress (verdicts, profiles, studies); it resumes."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from sessions.model import Configuration
from workbench import protocol
from workbench.ui.controllers.runs import Runs
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel


class Measurements(QObject):
    """Sender of commands that measure. The runner ends the run in progress to execute one.

    The run resumes unless the user stopped or cancelled the measurement.
    """

    ended = Signal(object, str)  # the command and the reason of its end

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
        self.resumes = False  # the interrupted run was told to resume and does not yet
        # Whatever has yet to end, in this order; None is the interrupted run.
        self._pending: list[protocol.RunCommand | None] = []
        self._ends_early = False
        self._pauses = False  # the interrupted run was paused, and will be again
        run.received.connect(self._on_message)
        run.stateChanged.connect(self._forget)

    def perform(
        self, command: protocol.RunCommand, resumption: Configuration | None = None
    ) -> None:
        """Execute a command now; the interrupted run resumes with ``resumption``, or as it was."""
        run = self._run
        is_run = run.active and not (run.measures and run.resumption is None)
        run.resumption = (resumption or run.continued) if is_run else None
        if run.active and not self._pending:
            self._pauses = run.state == "paused"
            self._pending.append(None)
        self._pending.append(command)
        self._ends_early = False
        self._session.show_live()
        run.send(command)

    @property
    def busy(self) -> bool:
        """True from the request of a measurement until the end of the last one."""
        return bool(self._pending)

    def is_pending(self, kind: type[protocol.RunCommand]) -> bool:
        """Return True from the request of a measurement of this kind until its end."""
        return any(isinstance(command, kind) for command in self._pending)

    def end_early(self) -> None:
        """End the measurement with the results so far; the interrupted run resumes."""
        self._ends_early = True
        self._run.stop()

    def _on_message(self, message: protocol.AnyMessage) -> None:
        """Note when a measurement ends; ``stateChanged`` may still be about the run before."""
        if isinstance(message, protocol.State) and message.state != "idle":
            self.resumes = False
            if self._pauses and message.state == "running" and not self._pending:
                self._pauses = False
                self._run.pause()
        if not isinstance(message, protocol.Finished):
            return
        self.resumes = False
        command = self._pending.pop(0) if self._pending else None
        if command is None:
            return
        resumption = None
        if not self._pending:
            resumption, self._run.resumption = self._run.resumption, None
        self.ended.emit(command, message.reason)
        if resumption is not None:
            self.resume(resumption, message.reason)

    def resume(self, configuration: Configuration, reason: str) -> None:
        """Resume the interrupted run, with the toggles that were chosen meanwhile.

        ``reason`` is that of the measurement's end.
        """
        edited = self._configuration.edited
        if edited is None or (reason in ("stopped", "cancelled") and not self._ends_early):
            self._pauses = False
            return  # the user wanted it to end
        if config_edit.of_one_run(configuration, edited):
            if reason == "failed":  # perhaps because of a toggle that never ran
                self._configuration.edit(config_edit.with_toggles(edited, configuration.toggles))
            else:
                configuration = config_edit.with_toggles(configuration, edited.toggles)
        self.resumes = True
        self._run.send(self._runs.start_command(configuration))

    def _forget(self) -> None:
        if self._run.state == "idle" and len(self._pending) > 1 and self._pending[0] is None:
            del self._pending[0]  # the interrupted run had already ended
            self._run.resumption = None
        if self._run.state in ("starting", "dead", "none"):
            lost, self._pending = self._pending, []
            self._run.resumption, self.resumes, self._pauses = None, False, False
            for command in lost:
                if command is not None:
                    self.ended.emit(command, "lost")
