"""The connection between rank 0 and one worker, and rank 0's view of that worker."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any, Protocol

import msgspec
import psutil

from workbench.exit_reasons import how_ended
from workbench.protocol import Failure
from workbench.runner.distributed.messages import BuildVariant, Failed, Hello, Order, Ready, Step
from workbench.runner.distributed.supervisor import Ended, hand_over, is_stopped, probe_host
from workbench.runner.failures import RankError

_LAST_WORDS_S = 10.0  # time for a worker to end after its connection was closed
_DYING_S = 5.0  # time for a process to end after the system closed its connection
_NO_ANSWER = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


class Connection:
    """JSON lines over a socket; any thread may send."""

    def __init__(self, client: socket.socket, kinds: Any) -> None:
        self._socket = client
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        probe_host(client)
        self._lines = client.makefile("rb")
        self._encoder, self._decoder = msgspec.json.Encoder(), msgspec.json.Decoder(kinds)
        self._lock = threading.Lock()
        self._is_unreachable = False

    @property
    def is_unreachable(self) -> bool:
        """True if the connection has ended because the other end's host does not answer."""
        with self._lock:  # the system reports it once: perhaps to a thread that is sending
            return self._is_unreachable

    def send(self, message: msgspec.Struct) -> None:
        """Send one message; raises ``OSError`` if the other end is gone."""
        with self._lock:
            try:
                self._socket.sendall(self._encoder.encode(message) + b"\n")
            except OSError as error:
                self._is_unreachable |= error.errno in _NO_ANSWER
                raise

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
        try:
            for line in self._lines:
                try:
                    message = self._decoder.decode(line)
                except msgspec.MsgspecError:
                    continue  # cut short by the end of the process that sent it
                yield message
        except OSError as error:
            with self._lock:
                self._is_unreachable |= error.errno in _NO_ANSWER
        except ValueError:
            pass  # closed by another thread

    def hand_over(self) -> None:
        """Let the supervisor of this process use the connection, too."""
        hand_over(self._socket)

    def hang_up(self) -> None:
        """Send nothing more; messages from the other end still arrive."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection for both ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def own_addresses() -> list[str]:
    """Return the addresses of this host's network interfaces."""
    return [entry.address for entries in psutil.net_if_addrs().values() for entry in entries]


def end_connections(addresses: Collection[str]) -> None:
    """End every TCP connection of this process to these addresses."""
    for connection in psutil.Process().net_connections("tcp"):
        if connection.raddr and connection.raddr.ip.removeprefix("::ffff:") in addresses:
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=os.dup(connection.fd)) as client,
            ):
                client.shutdown(socket.SHUT_RDWR)


class Observer(Protocol):
    """The receiver of a worker's events."""

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
        self.steps = 0  # number of the last step that was ordered
        self._builds = False
        self._addresses: set[str] = set()  # addresses of its host; empty for this host
        self._connection: Connection | None = None
        self._answers: queue.SimpleQueue[Ready] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name=f"rank {rank}", daemon=True)

    def connect(self, connection: Connection, hello: Hello) -> None:
        """Take the worker's connection and listen to it."""
        self._connection, self.host = connection, hello.host
        self._addresses = {*hello.addresses}.difference(own_addresses())
        self.heard_s = time.monotonic()
        self._listener.start()

    def send(self, order: Order) -> None:
        """Send an order; raises ``RankError`` if the worker is gone."""
        assert self._connection is not None
        self.steps += isinstance(order, Step)
        self._builds = isinstance(order, BuildVariant)
        try:
            self._connection.send(order)
        except OSError:
            self.drain()
            self._observer.fail(self.error(" ended unexpectedly"))
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

    def cut_off(self) -> None:
        """End a worker that does not respond, and this process's wait for it in a collective.

        Torch can abort a collective of NCCL, but not of gloo. That one fails with its connections,
        which a host that has vanished does not close.
        """
        self.kill()
        end_connections(self._addresses)

    @property
    def is_unreachable(self) -> bool:
        """True if the connection has ended because the worker's host does not answer."""
        return self._connection is not None and self._connection.is_unreachable

    def is_stopped(self) -> bool:
        """Return True if a signal has stopped the process; False for one on another host."""
        return self.process is not None and is_stopped(self.process.pid)

    def report_stopped(self) -> None:
        """Report that a signal stopped the process; the caller ends it."""
        self._observer.fail(self.error(" was stopped by a signal, and was then ended"))

    def error(self, predicate: str, failure: Failure | None = None) -> RankError:
        """Return an error whose sentence names the rank, its host and its step."""
        local = self.process is not None
        clauses = [] if local or not self.host else [f"on {self.host}"]
        clauses += [f"in step {self.steps}"] if self.steps and not self._builds else []
        location = f" ({', '.join(clauses)})" if clauses else ""
        return RankError(f"rank {self.rank}{location}{predicate}", self.rank, failure)

    def error_of(self, code: int | None) -> RankError:
        """Return the error for a process that ended; ``code`` is None on another host."""
        if code is None and self.is_unreachable:
            return self.error(" cannot be reached: its host does not answer")
        if code is None:
            return self.error(" ended without reporting a reason")
        ending = how_ended(code)
        if code == -signal.SIGKILL:
            ending += ", as the system does when memory runs out"
        if code == -signal.SIGABRT:
            ending += ", as torch.distributed does if one rank skips a layer that others run"
        return self.error(f" {ending}")

    def _listen(self) -> None:
        assert self._connection is not None
        code = None
        for message in self._connection.messages():
            self.heard_s = time.monotonic()
            match message:
                case Failed():
                    self.steps = message.steps
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
