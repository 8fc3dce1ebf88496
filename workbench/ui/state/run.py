"""The runner process as the window knows it, and the run in progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from PySide6.QtCore import QObject, Signal

from sessions.model import Configuration
from workbench import protocol
from workbench.client.journal import Journal
from workbench.client.runner_process import Runner
from workbench.ui.connection.runner_link import RunnerLink
from workbench.ui.connection.stream_reader import Client
from workbench.ui.state.session import SessionModel

LOG_LINES = 1000
ACTIVE = ("building", "running", "paused", "stopping")

Launch = Callable[[Journal | None], Client]


NOT_READY = "The runner is not ready."


class RunModel(QObject):
    """State of the runner and of the run in progress; sends commands to the runner.

    Only the end of the runner blocks; every other method returns at once.
    """

    stateChanged = Signal()  # state, text or progress
    received = Signal(object)  # each message of the runner, once the models have taken it

    def __init__(
        self,
        link: RunnerLink,
        session: SessionModel,
        launch: Launch | None = None,
        replaying: bool = False,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._link, self._session = link, session
        self.replaying = replaying
        # none, starting, idle, building, running, paused, stopping, dead
        self.state, self.text = "none", ""
        self.progress: protocol.Progress | None = None
        self.running: Configuration | None = None  # configuration of the current segment
        self.measures = False  # True during a comparison or study
        self.is_requested = False  # a run was requested, and the runner has not answered yet
        self.resumption: Configuration | None = None  # resumes after the measurement
        self.in_series = False  # during a series of experiments, also between two commands
        self.cancelled = False  # the user cancelled the run in progress, or the last
        self.log: deque[str] = deque(maxlen=LOG_LINES)  # text that libraries printed in the runner
        self._launch = launch or (lambda journal: Runner(journal, log=self.log.append))
        self._began = 0.0  # monotonic time of the run's start, 0 when none runs
        self.received.connect(self._on_message)

    def _on_message(self, message: protocol.AnyMessage) -> None:
        if isinstance(message, protocol.Failure | protocol.Finished):
            self.is_requested = False  # even if the state has not changed

    @property
    def active(self) -> bool:
        """True while a run is in progress."""
        return self.state in ACTIVE

    @property
    def ready(self) -> bool:
        """True if the runner can take another command that measures."""
        return self.state in ("idle", "running", "paused")

    def why_not(self, use: str, pending: str = "") -> str:
        """Return why the runner cannot be used to ``use`` now; empty if it can.

        ``pending`` is the sentence of a measurement that has not ended.
        """
        if self.replaying:
            return f"This is a replay; open the window without --replay to {use}."
        return pending or ("" if self.ready else NOT_READY)

    @property
    def connected(self) -> bool:
        """True if there is a runner to send to."""
        return self._link.open

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run in progress was started, 0 when there is none."""
        return time.monotonic() - self._began if self._began else 0.0

    @property
    def continued(self) -> Configuration | None:
        """The configuration of the run, also of one that a measurement interrupts; else None."""
        if not self.active:
            return None
        return self.resumption if self.measures else self.running

    def start_runner(self) -> None:
        """Launch a runner instead of the current one; its catalogue will fill the forms."""
        journal = None if self.replaying else self._session.open_journal()
        self._link.start(lambda: self._launch(journal))
        self.set_state("starting", "Starting the runner")

    def begin_session(self, catalogue: protocol.Catalogue | None = None) -> None:
        """Begin another live session; an idle runner that sent the catalogue serves it."""
        goes_on = catalogue is not None and self.state == "idle"
        if not goes_on:
            self._link.retire()
        self._session.begin()
        if not (goes_on and catalogue and self._keep_runner(catalogue)):
            self.start_runner()

    def restore_session(self, catalogue: protocol.Catalogue | None = None) -> None:
        """Return to the previous session while the new one is empty."""
        if not self._session.restore():
            return
        if self._session.journal is None and catalogue is not None:  # the session was saved
            self._session.open_journal().write(catalogue)
        if self._session.journal is not None:
            self._link.journal_to(self._session.journal)
        self.stateChanged.emit()

    def _keep_runner(self, catalogue: protocol.Catalogue) -> bool:
        """Send the runner's messages to the new session; return False if that is not possible."""
        if not self._link.journal_to(self._session.open_journal()):
            return False
        self._session.introduce(catalogue)
        self.stateChanged.emit()
        return True

    def send(self, command: protocol.Command) -> None:
        """Send one command to the runner."""
        if isinstance(command, protocol.RunCommand):
            self.measures = not isinstance(command, protocol.Start)
            self.is_requested = True
        self._link.send(command)

    def stop(self) -> None:
        """End the run after the current step."""
        if self.active and not self.replaying:
            self._link.send(protocol.Stop())
            self.set_state("stopping", "")  # a step may take long, and a runner may hang

    def pause(self) -> None:
        """Pause the steps; the built model stays in memory."""
        if self.state == "running":
            self._link.send(protocol.Pause())

    def resume(self) -> None:
        """Continue a paused run."""
        if self.state == "paused":
            self._link.send(protocol.Resume())

    def cancel(self) -> None:
        """End the run as soon as possible, by force if need be."""
        if self.active or self.in_series:  # active before the runner has reported its start
            self.cancelled = True
            self._link.cancel()

    def close(self) -> None:
        """End the runner; returns when it is gone, and no run is in progress."""
        self._link.close()
        self._began, self.running, self.progress = 0.0, None, None
        self.state, self.text = "none", ""

    def set_state(self, state: str, text: str) -> None:
        """Set the state that the runner reports, or that the window infers."""
        self.state, self.text, self.is_requested = state, text, False
        self.progress = None  # it belongs to the previous state
        if state in ("idle", "dead", "starting"):
            self._began, self.running = 0.0, None
        elif not self._began:
            self._began, self.cancelled = time.monotonic(), False
        self.stateChanged.emit()
