"""A runner, its journal and the session that its messages make, with a time-out on every wait."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hang_limit import HANG_S

from sessions.model import Configuration
from workbench import protocol
from workbench.client.journal import Journal
from workbench.client.recorder import Recorder
from workbench.client.runner_process import Runner

HERE = Path(__file__).parent
LIGHT = (sys.executable, str(HERE.parent / "samples" / "wire_samples.py"))
FAULTY = (sys.executable, str(HERE.parent / "runner" / "faulty_runner.py"))
REAL = (sys.executable, "-m", "workbench.runner")

Wanted = type[protocol.Message] | Callable[[protocol.AnyMessage], bool]


class Driver:
    """Reads one runner in a thread; ``until`` records what comes and returns what was waited for.

    ``seen`` is every message with the monotonic time of its arrival. Several drivers may follow one
    another over one journal and recorder, as runners do in one session.
    """

    def __init__(
        self,
        journal: Journal | None = None,
        recorder: Recorder | None = None,
        command: tuple[str, ...] = REAL,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.recorder = recorder or Recorder()
        self.seen: list[tuple[float, protocol.AnyMessage]] = []
        self._arrived: queue.SimpleQueue[tuple[float, protocol.AnyMessage | None]]
        self._arrived = queue.SimpleQueue()
        self.runner = Runner(journal, command, environment=environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def session(self):
        return self.recorder.session

    @property
    def messages(self) -> list[protocol.AnyMessage]:
        return [message for _, message in self.seen]

    def send(self, command: protocol.Command) -> None:
        assert self.runner.send(command), self.describe()

    def start(self, configuration: Configuration, **limits: float | None) -> None:
        self.send(protocol.Start(configuration=configuration, **limits))

    def until(self, wanted: Wanted, limit_s: float = HANG_S) -> protocol.AnyMessage:
        """Record messages until one is wanted; fails with what came instead."""
        deadline, late = time.monotonic() + limit_s, f"{wanted} did not come in {limit_s:g} s"
        while (message := self._next(deadline, late)) is not None:
            if isinstance(message, wanted) if isinstance(wanted, type) else wanted(message):
                return message
        raise AssertionError(f"the runner ended before {wanted}; {self.describe()}")

    def until_state(self, state: str, limit_s: float = HANG_S) -> protocol.AnyMessage:
        return self.until(
            lambda message: isinstance(message, protocol.State) and message.state == state, limit_s
        )

    def until_steps(self, count: int = 1) -> None:
        """Until the newest segment has so many more steps."""
        for _ in range(count):
            self.until(protocol.Steps)

    def apply(self, toggles: dict[str, str]) -> None:
        """Apply toggles during a run, until the evidence of the new segment, not the last one's."""
        self.send(protocol.Apply(toggles=toggles))
        self.until(protocol.SegmentStarted)
        self.until(protocol.EvidenceFound)

    def finish(self, command: protocol.Command | None = None) -> protocol.Finished:
        """Send what ends the run, if anything; returns its end once the runner is idle again."""
        if command is not None:
            self.send(command)
        finished = self.until(protocol.Finished)
        self.until_state("idle")
        assert isinstance(finished, protocol.Finished)
        return finished

    def rest(self, limit_s: float = HANG_S) -> list[protocol.AnyMessage]:
        """Every message until the runner's end."""
        deadline = time.monotonic() + limit_s
        late = f"the runner did not end in {limit_s:g} s"
        return list(iter(lambda: self._next(deadline, late), None))

    def describe(self) -> str:
        """Return the last messages and the runner's log, for a failed test."""
        shown = [str(message)[:200] for message in self.messages[-8:]]
        return "last messages:\n" + "\n".join([*shown, "log:", *self.runner.log_tail])

    def close(self) -> None:
        self.runner.close()
        self._reader.join(timeout=HANG_S)

    def _next(self, deadline: float, late: str) -> protocol.AnyMessage | None:
        """Return the next message, recorded; None at the runner's end. Fails as ``late`` says."""
        try:
            arrived, message = self._arrived.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"{late}; {self.describe()}") from None
        if message is not None:
            self.recorder.record(message)
            self.seen.append((arrived, message))
        return message

    def _read(self) -> None:
        for message in self.runner.messages():
            self._arrived.put((time.monotonic(), message))
        self._arrived.put((time.monotonic(), None))
