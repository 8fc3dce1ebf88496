"""A run without a window: the same runner, recorder and journal, driven to the end of one run."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sessions.model import Session
from workbench import protocol
from workbench.client import Runner
from workbench.journal import Journal
from workbench.recorder import Recorder

Watcher = Callable[[protocol.AnyMessage], None]
Chooser = Callable[[protocol.Catalogue], protocol.Command]
Plan = Callable[[protocol.Catalogue, "Outcome"], Iterator[protocol.Command]]


@dataclass
class Outcome:
    """What a run gave: its session, how it ended, and what went wrong.

    ``journal`` is for the caller to remove once the session is safe; without a segment there is
    nothing to keep, and it is gone already.
    """

    session: Session
    journal: Path
    reason: str = "died"  # done, stopped, cancelled, failed; died: the runner was lost
    failures: list[protocol.Failure] = field(default_factory=list)

    @property
    def mistake(self) -> str:
        """Why nothing ran, where what was asked cannot be; otherwise empty."""
        mistakes = [failure.sentence for failure in self.failures if failure.kind == "mistake"]
        return mistakes[-1] if mistakes and self.reason == "failed" else ""


def run(choose: Chooser, *, watch: Watcher = lambda _message: None) -> Outcome:
    """Run the command (Start, Bench) that ``choose`` makes of the catalogue.

    Ctrl+C cancels and keeps what was measured.
    """
    return run_plan(lambda catalogue, _: iter([choose(catalogue)]), watch=watch)


def run_plan(plan: Plan, *, watch: Watcher = lambda _message: None) -> Outcome:
    """Run one command after the other in one session, as ``plan`` gives them.

    Each is asked for once the one before has finished, so that a plan may look at the outcome so
    far. A command that fails does not end the plan; one that is cancelled does.
    """
    journal = Journal()
    recorder = Recorder(Session())
    outcome = Outcome(recorder.session, journal.path)
    runner = Runner(journal)
    commands: Iterator[protocol.Command] = iter(())
    try:
        with _interrupt_cancels(runner) as interrupted:
            for message in runner.messages():
                message = _recorded(recorder, message)
                watch(message)
                match message:
                    case protocol.Catalogue():
                        if interrupted.is_set():
                            outcome.reason = "cancelled"
                            break
                        commands = plan(message, outcome)
                        if (command := next(commands, None)) is None:
                            outcome.reason = "done"
                            break
                        runner.send(command)
                    case protocol.Failure():
                        outcome.failures.append(message)
                    case protocol.Finished():
                        outcome.reason = message.reason
                        if outcome.reason in ("cancelled", "stopped") or interrupted.is_set():
                            break
                        command = next(commands, None)
                        if command is None:
                            break
                        outcome.reason = "died"  # unless it finishes
                        runner.send(command)
    finally:
        runner.close()
        journal.close(keep=bool(recorder.session.segments))
        if isinstance(commands, Generator):
            commands.close()  # what it does at its end comes before the outcome is read
    return outcome


def _recorded(recorder: Recorder, message: protocol.AnyMessage) -> protocol.AnyMessage:
    """The message once it is recorded, or the failure that it does not fit."""
    try:
        recorder.record(message)
    except protocol.WireError as error:
        return protocol.Failure(
            kind="wire",
            sentence=f"A message of the runner does not fit the session: {error}.",
            fix="It was left out of the session.",
        )
    return message


@contextlib.contextmanager
def _interrupt_cancels(runner: Runner) -> Iterator[threading.Event]:
    """Let Ctrl+C cancel the run; the event says whether it was pressed.

    KeyboardInterrupt would end the generator of messages, and with it all that is still to come.
    """
    interrupted = threading.Event()

    def cancel(*_: object) -> None:
        interrupted.set()
        # Not here: the interrupted code may hold the lock that sending takes.
        threading.Thread(target=runner.cancel, name="canceller", daemon=True).start()

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
