"""The connection between rank 0 and one worker, and rank 0's view of that worker."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from workbench.exit_reasons import how_ended
from workbench.protocol import Failure
from workbench.runner.distributed.messages import Alive, Failed, Hello, Order, Ready
from workbench.runner.distributed.supervisor import Ended, hand_over, is_stopped
from workbench.runner.failures import RankError

_LAST_WORDS_S = 10.0  # for a worker to end after its connection was closed
_DYING_S = 5.0  # for a process to be gone after the system closed its connection


class Connection:
    """JSON lines over a socket; any thread may send."""

    def __init__(self, client: socket.socket, kinds: Any) -> None:
        self._socket = client
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that vanished closes nothing: the system asks whether it is still there.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._lines = client.makefile("rb")
        self._encoder, self._decoder = msgspec.json.Encoder(), msgspec.json.Decoder(kinds)
        self._lock = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Send one message; raises ``OSError`` if the other end is gone."""
        with self._lock:
            self._socket.sendall(self._encoder.encode(message) + b"\n")

    def receive_first(self, limit_s: float) -> Any:
        """Return the first message; None if nothing valid arrives in time."""
        self._socket.settimeout(limit_s)
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            message = self._decoder.decode(self._lines.readline())
            self._socket.settimeout(None)
            return message
        return None

    def messages(self) -> Iterator[Any]:
        """Yield messages until the connection ends."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                try:
                    message = self._decoder.decode(line)
                except msgspec.MsgspecError:
                    continue  # cut short by the end of the process that sent it
                yield message

    def hand_over(self) -> None:
        """Let the supervisor of this process use the connection, too."""
        hand_over(self._socket)

    def hang_up(self) -> None:
        """Send nothing more; what the other end still sends arrives."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection for both ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Observer(Protocol):
    """The receiver of what happens to a worker."""

    def fail(self, error: RankError) -> None:
        """Record that the worker failed."""

    def ended(self, worker: Worker, code: int | None) -> None:
        """Record that the worker's process ended; ``code`` is None on another host."""

    def check(self) -> None:
        """Raise ``RankError`` if a worker has failed."""


class Worker:
    """A rank other than 0, seen from rank 0; ``process`` is None if it was started from outside."""

    def __init__(self, rank: int, observer: Observer) -> None:
        self.rank, self._observer = rank, observer
        self.process: subprocess.Popen[bytes] | None = None
        self.host = ""
        self.heard_s = time.monotonic()
        self.steps = 0  # that the worker has begun
        self._connection: Connection | None = None
        self._answers: queue.SimpleQueue[Ready] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name=f"rank {rank}", daemon=True)

    def connect(self, connection: Connection, hello: Hello) -> None:
        """Take the worker's connection and listen to it."""
        self._connection, self.host = connection, hello.host
        self.heard_s = time.monotonic()
        self._listener.start()

    def send(self, order: Order) -> None:
        """Send an order; raises ``RankError`` if the worker is gone."""
        assert self._connection is not None
        try:
            self._connection.send(order)
        except OSError:
            self.drain()
            self._observer.fail(self.error(" ended without a request"))
            self._observer.check()

    def answer(self, limit_s: float) -> Ready | None:
        """Return the next answer; None if there is none in time."""
        with contextlib.suppress(queue.Empty):
            return self._answers.get(timeout=limit_s)
        return None

    def hang_up(self) -> None:
        """End the worker; its last messages arrive."""
        if self._connection is not None:
            self._connection.hang_up()

    def drain(self) -> None:
        """Wait until the worker has sent its last message and has ended."""
        if self._listener.ident is not None:
            self._listener.join(_LAST_WORDS_S)

    def kill(self) -> None:
        """End the worker at once."""
        if self._connection is not None:
            self._connection.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def is_stopped(self) -> bool:
        """Return True if a signal has stopped the process; False for one on another host."""
        return self.process is not None and is_stopped(self.process.pid)

    def report_stopped(self) -> None:
        """Report that a signal stopped the process, which is ended for that."""
        self._observer.fail(self.error(" was stopped by a signal, and was ended"))

    def error(self, predicate: str, failure: Failure | None = None) -> RankError:
        """Return an error whose sentence names the rank, its host and its step."""
        local = self.process is not None
        clauses = [] if local or not self.host else [f"on {self.host}"]
        clauses += [f"in step {self.steps}"] if self.steps else []
        where = f" ({', '.join(clauses)})" if clauses else ""
        return RankError(f"rank {self.rank}{where}{predicate}", self.rank, failure)

    def error_of(self, code: int | None) -> RankError:
        """Return the error for a process that ended; ``code`` is None on another host."""
        if code is None:
            return self.error(" ended, or its host cannot be reached")
        how = how_ended(code)
        if code == -signal.SIGKILL:
            how += ", as the system does when memory runs out"
        return self.error(f" {how}")

    def _listen(self) -> None:
        assert self._connection is not None
        code = None
        for message in self._connection.messages():
            self.heard_s = time.monotonic()
            match message:
                case Alive():
                    self.steps = message.steps
                case Failed():
                    sentence = message.failure.sentence
                    self._observer.fail(self.error(f" ended: {sentence}", message.failure))
                case Ready():
                    self._answers.put(message)
                case Ended():
                    code = message.code
                    if message.stopped:
                        self.report_stopped()
        if self.process is not None:
            try:
                code = self.process.wait(_DYING_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                code = self.process.wait()
        self._observer.ended(self, code)
