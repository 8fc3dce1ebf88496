"""The thread that reads the runner's stream.

It blocks on the pipe; the window never does. Messages go into a queue, and a signal announces them.
The signal is sent again only after the queue was drained, so a fast runner cannot flood the event
loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from PySide6.QtCore import QObject, QThread, Signal

from workbench import protocol
from workbench.client.journal import Journal
from workbench.client.runner_process import NotStarted, Runner


class Client(Protocol):
    """Source of messages: ``client.Runner``, or a replayed journal."""

    def messages(self) -> Iterator[protocol.AnyMessage]:
        """Yield every message until the end; wait for each."""
        ...

    def send(self, command: protocol.Command) -> bool:
        """Send a command; return False if there is no runner."""
        ...

    def cancel(self) -> None:
        """Request the end of the run, and make sure that it comes."""
        ...

    def close(self) -> None:
        """End the source; return when it has ended."""
        ...


class StreamReader(QThread):
    """Thread that starts a client and reads its stream to the end; ``close`` ends both."""

    arrived = Signal()

    def __init__(self, launch: Callable[[], Client], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("stream-reader")
        self.last_heard = 0.0  # monotonic time of the last message
        self._launch = launch
        self._client: Client | None = None
        self._unsent: list[protocol.Command] = []
        self._queue: deque[protocol.AnyMessage] = deque()
        self._announced = False
        self._lock = threading.Lock()
        self._closing = False
        self._closer: threading.Thread | None = None

    def run(self) -> None:
        """Start the client and queue its messages; runs in the thread itself."""
        try:
            client = self._launch()
        except NotStarted as error:
            self._put(error.failure)
            return
        except OSError as error:
            self._put(_broken(f"The runner could not be started: {error}."))
            return
        with self._lock:
            self._client = client
            unsent, closing = self._unsent, self._closing
        if closing:
            client.close()
        for command in unsent:
            client.send(command)
        try:
            for message in client.messages():
                self.last_heard = time.monotonic()
                self._put(message)
        except (OSError, ValueError) as error:
            if not self._closing:  # the journal of a retired runner may be closed before its end
                self._put(_broken(f"The runner's messages could not be journaled: {error}."))
            client.close()

    def send(self, command: protocol.Command) -> None:
        """Send one command, or keep it until the client has started."""
        with self._lock:
            client = self._client
            if client is None:
                self._unsent.append(command)
        if client is not None:
            client.send(command)

    def journal_to(self, journal: Journal) -> bool:
        """Append later lines to another journal; return False if the client has none."""
        client = self._client
        if not isinstance(client, Runner):
            return False
        client.journal = journal
        return True

    def cancel(self) -> None:
        """Request the end of the run; the client escalates automatically."""
        if self._client is not None:
            self._client.cancel()

    def next_message(self) -> protocol.AnyMessage | None:
        """Return the next message; None if there is none, then ``arrived`` announces the next."""
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            self._announced = False
            return None

    def retire(self) -> None:
        """Begin to end the client, without waiting for it."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            client = self._client
        if client is not None:
            self._closer = threading.Thread(target=client.close, name="runner-closer")
            self._closer.start()

    def close(self) -> None:
        """End the client and the thread; return when both have ended."""
        self.retire()
        self.wait()
        if self._closer is not None:
            self._closer.join()

    def _put(self, message: protocol.AnyMessage) -> None:
        with self._lock:
            self._queue.append(message)
            announce = not self._announced
            self._announced = True
        if announce:
            self.arrived.emit()


def _broken(sentence: str) -> protocol.Failure:
    fix = "Free some space or repair the installation, then start a new runner."
    return protocol.Failure(kind="died", sentence=sentence, fix=fix, fatal=True)
