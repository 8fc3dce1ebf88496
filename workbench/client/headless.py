"""A run without a window: the same runner, recorder and journal, driven to the end of one run."""

from __future__ import annotations

import functools
import math
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from sessions.model import Session
from workbench import interrupts, protocol
from workbench.client.journal import Journal
from workbench.client.recorder import Recorder
from workbench.client.runner_process import NotStarted, Runner

PATIENCE_S = 1.0  # from Ctrl+C to the end by force: what is steps so far has arrived by then
Watcher = Callable[[protocol.AnyMessage], None]
Chooser = Callable[[protocol.Catalogue], protocol.Command]


class Plan(Protocol):
    """Commands that are run one after the other in one session, each with its time.

    The messages that ``begin``, ``on_message``, ``pending_messages`` and ``finish`` return are
    recorded and journaled like the runner's own.
    """

    @property
    def allowed_s(self) -> float:
        """Seconds that the current command may take; infinite if there is no limit."""

    def begin(
        self, catalogue: protocol.Catalogue, session: Session
    ) -> Iterable[protocol.AnyMessage]:
        """Prepare for the first command; messages are recorded in ``session``."""

    def next(self, catalogue: protocol.Catalogue) -> protocol.Command | None:
        """Return the next command for an idle runner; None if all is done."""

    def on_message(self, message: protocol.AnyMessage) -> Iterable[protocol.AnyMessage]:
        """Handle a message of the runner after it was recorded."""

    def pending_messages(self) -> Iterable[protocol.AnyMessage]:
        """Return messages to record between two commands."""

    def on_timeout(self, command: protocol.Command | None) -> bool:
        """Return True to cancel a command that exceeds its time; called from any thread."""

    def on_runner_lost(self) -> bool:
        """Return True if a new runner is needed after this one was lost."""

    def finish(self, why: str = "") -> Iterable[protocol.AnyMessage]:
        """End the plan; ``why`` is the reason if commands were left."""


@dataclass
class Outcome:
    """The result of a run: its session, how it ended, and what went wrong.

    ``journal`` is for the caller to remove once the session is safe; without a segment there is
    nothing to keep, and it is gone already.
    """

    session: Session
    journal: Path
    reason: str = "died"  # done, stopped, cancelled, failed; died: the runner was lost
    failures: list[protocol.Failure] = field(default_factory=list)
    log_tail: list[str] = field(default_factory=list)  # last lines on the runners' standard error
    unjournaled: str = ""  # why the journal ends early; reported already, no failure of the run

    @property
    def mistake(self) -> str:
        """Return why nothing ran, if the request cannot be fulfilled; otherwise empty."""
        mistakes = [failure.sentence for failure in self.failures if failure.kind == "mistake"]
        return mistakes[-1] if mistakes and self.reason == "failed" else ""


def run(choose: Chooser, *, watch: Watcher = lambda _message: None) -> Outcome:
    """Run the command (Start, Bench) that ``choose`` returns for the catalogue.

    Ctrl+C cancels the command and keeps what was measured; the session gets a warning. A runner
    that does not react is killed after ``PATIENCE_S``, or by another Ctrl+C; this is no failure.
    SIGTERM (``timeout``, a batch system) and SIGHUP (a lost connection) do the same.
    """
    return run_plan(_Once(choose), watch=watch)


def run_plan(
    plan: Plan,
    *,
    watch: Watcher = lambda _message: None,
    command: Sequence[str] | None = None,
) -> Outcome:
    """Run the commands of ``plan`` one after the other in one session.

    ``command``: what starts the runner's process; the one that a person chose if None.

    A command that fails or exceeds its time does not end the plan. Ctrl+C ends it, and so does a
    lost runner if the plan needs no new one.
    """
    interrupt = _Interrupt()
    with interrupts.handled_by(interrupt.cancel, include_ignored=True):
        return _Driver(plan, watch, interrupt, command).drive()


class _Driver:
    """Driver of a plan: one runner, or several in sequence."""

    def __init__(
        self,
        plan: Plan,
        watch: Watcher,
        interrupt: _Interrupt,
        command: Sequence[str] | None,
    ) -> None:
        self._plan = plan
        self._command = command
        self._watch = watch
        self._journal = Journal()
        self._recorder = Recorder(Session())
        self._outcome = Outcome(self._recorder.session, self._journal.path)
        self._interrupt = interrupt
        self._plan_begun = False
        self._last_s = 0.0
        self._at = "while the runner started"
        self._timer: threading.Timer | None = None

    def drive(self) -> Outcome:
        """Run the plan to its end."""
        try:
            goes_on = True
            while goes_on and not self._interrupt.pressed:
                try:
                    runner = self._start()
                except NotStarted as error:
                    self._outcome.failures.append(error.failure)
                    break
                goes_on = self._drive(runner)
            if self._interrupt.pressed:
                if self._outcome.reason == "died":
                    self._outcome.reason = "cancelled"  # it did not react, and was killed
                interruption = f"interrupted with {self._interrupt.by} {self._at}"
                self._record_own([protocol.Note(kind="warning", text=interruption)])
            self._record_own(self._plan.finish("interrupted" if self._interrupt.pressed else ""))
            if complaint := self._journal.complaint():  # no runner was left to send it
                self._record(complaint)
                self._outcome.unjournaled = complaint.sentence
        finally:
            self._journal.close(keep=bool(self._recorder.session.segments))
        return self._outcome

    def _start(self) -> Runner:
        if self._command is None:
            return Runner(self._journal)
        return Runner(self._journal, self._command)

    def _drive(self, runner: Runner) -> bool:
        """Drive one runner process. Return True if it must be restarted."""
        self._interrupt.is_busy, self._interrupt.runner = False, runner
        outcome, is_busy = self._outcome, False
        catalogue: protocol.Catalogue | None = None
        try:
            for message in runner.messages():
                if self._interrupt.pressed and _is_forced_end(message, runner):
                    continue  # the person wanted it to end
                message = self._record(message)
                self._record_own(self._plan.on_message(message))
                match message:
                    case protocol.Catalogue():
                        catalogue = message
                        if self._interrupt.pressed:
                            outcome.reason = "cancelled"
                            return False
                        if not self._plan_begun:
                            self._plan_begun = True
                            self._record_own(self._plan.begin(catalogue, self._recorder.session))
                        is_busy = self._send_next(runner, catalogue)
                        if not is_busy:
                            outcome.reason = "done"
                            return False
                    case protocol.State() if not self._interrupt.pressed:
                        doing = f"at {message.text!r}" if message.text else f"while {message.state}"
                        self._at = doing
                    case protocol.Failure() if message.kind == protocol.JOURNAL:
                        outcome.unjournaled = message.sentence
                    case protocol.Failure() if message.kind != protocol.UNREAD:
                        outcome.failures.append(message)
                    case protocol.Failure() | protocol.Finished():
                        if isinstance(message, protocol.Finished):
                            outcome.reason = message.reason
                        else:  # nothing will finish
                            outcome.failures.append(message)
                            outcome.reason = "failed"
                        assert catalogue is not None
                        if self._interrupt.pressed or not self._send_next(runner, catalogue):
                            return False
                        outcome.reason = "died"  # unless it finishes
        finally:
            self._disarm()
            runner.close()
            outcome.log_tail += runner.log_tail
        goes_on = is_busy and not self._interrupt.pressed and self._plan.on_runner_lost()
        self._record_own(self._plan.pending_messages())
        return goes_on

    def _send_next(self, runner: Runner, catalogue: protocol.Catalogue) -> bool:
        """Send the next command and limit its time. Return False if there is none."""
        self._disarm()
        self._interrupt.is_busy = True
        command = self._plan.next(catalogue)
        self._record_own(self._plan.pending_messages())
        if command is None:
            return False
        # A decode state may take long to write, and is what the run was for.
        self._interrupt.patience_s = None if getattr(command, "save_state", "") else PATIENCE_S
        runner.send(command)
        if self._interrupt.pressed:  # before: Cancel arrived before the command, and ended nothing
            runner.cancel(self._interrupt.patience_s)
        if math.isfinite(self._plan.allowed_s):
            self._timer = threading.Timer(
                self._plan.allowed_s, self._cancel_late, (runner, command)
            )
            self._timer.daemon = True
            self._timer.start()
        return True

    def _cancel_late(self, runner: Runner, command: protocol.Command) -> None:
        if self._plan.on_timeout(command):
            runner.cancel()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _record_own(self, messages: Iterable[protocol.AnyMessage]) -> None:
        """Record and journal messages that no runner sent."""
        for message in messages:
            message.t_s = self._last_s
            self._recorder.record(message)
            self._journal.write(message)
            self._watch(message)

    def _record(self, message: protocol.AnyMessage) -> protocol.AnyMessage:
        """Record a message and return it, or a failure if it does not fit the session."""
        self._last_s = message.t_s = message.t_s or self._last_s
        try:
            self._recorder.record(message)
        except protocol.WireError as error:
            message = protocol.Failure(
                kind="wire",
                sentence=f"A message of the runner does not fit the session: {error}.",
                fix="The message was left out of the session.",
            )
        self._watch(message)
        return message


def _is_forced_end(message: protocol.AnyMessage, runner: Runner) -> bool:
    """Return True if the runner was killed because it did not react to Cancel."""
    died = isinstance(message, protocol.Failure) and message.kind == "died"
    return died and runner.ended_by_force


class _Once:
    """The plan of a single command."""

    allowed_s = math.inf

    def __init__(self, choose: Chooser) -> None:
        self._choose: Chooser | None = choose

    def next(self, catalogue: protocol.Catalogue) -> protocol.Command | None:
        choose, self._choose = self._choose, None
        return None if choose is None else choose(catalogue)

    def begin(self, *_: object) -> tuple[()]:
        return ()

    on_message = pending_messages = finish = begin

    def on_timeout(self, _: object) -> bool:
        return False

    def on_runner_lost(self) -> bool:
        return False


class _Interrupt:
    """Handler that cancels the run on Ctrl+C, SIGTERM and SIGHUP.

    KeyboardInterrupt would end the generator of messages, and with it all that is still to come.
    """

    def __init__(self) -> None:
        earlier = interrupts.noted()  # while a run before this one was saved, say
        self.pressed = earlier is not None
        self.by = interrupts.SIGNALS[earlier] if earlier else ""
        self.runner: Runner | None = None
        self.is_busy = False  # for anything: until then there is nothing to wait for
        self.patience_s: float | None = PATIENCE_S  # with a runner that is asked to end

    def cancel(self, number: int, frame: FrameType | None) -> None:
        """Ask the runner to end the run; the second call kills the runner."""
        was_pressed, self.pressed = self.pressed, True
        interrupts.note(number, frame)
        self.by = self.by or interrupts.SIGNALS[signal.Signals(number)]
        if self.runner is None:
            return
        end: Callable[[], None] = self.runner.abandon
        if self.is_busy:
            patient = functools.partial(self.runner.cancel, self.patience_s)
            end = self.runner.terminate if was_pressed else patient
        # Not here: the interrupted code may hold the lock that sending takes.
        threading.Thread(target=end, name="canceller", daemon=True).start()
