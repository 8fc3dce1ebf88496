"""Replay of a journal instead of a runner, at the recorded pace or faster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from workbench import protocol
from workbench.client import journal


class ReplayedRunner:
    """Source of a journal's messages; it ignores every command but the end.

    ``speed`` is a factor on recorded time; 0 plays without waiting.
    """

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        self._path = path
        self._speed = speed
        self._closed = threading.Event()

    def messages(self) -> Iterator[protocol.AnyMessage]:
        """Yield every message at its time, then an idle state; then wait for ``close``.

        A file without messages yields a failure.
        """
        clock_s = 0.0
        any_message = False
        for message in journal.replay(self._path):
            wait_s = message.t_s - clock_s
            if isinstance(message, protocol.Catalogue):
                clock_s = wait_s = 0.0
            if wait_s > 0 and self._speed > 0:
                clock_s = message.t_s
                self._closed.wait(wait_s / self._speed)
            if self._closed.is_set():
                return
            any_message = True
            yield message
        if not any_message:
            why = journal.without_message(self._path)
            yield protocol.Failure(kind="mistake", sentence=f"{why}.")
        yield protocol.State(state="idle", text="The replay has ended")
        self._closed.wait()

    def send(self, command: protocol.Command) -> bool:
        """Ignore the command: there is no runner."""
        return False

    def cancel(self) -> None:
        """End the replay."""
        self._closed.set()

    def close(self) -> None:
        """End the replay."""
        self._closed.set()
