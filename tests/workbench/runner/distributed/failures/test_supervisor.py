"""The supervisor of a rank from outside: whatever state the worker is in, it ends and is reported.

The workers here are small processes without torch.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import psutil
import pytest
import torch
from hang_limit import HANG_S
from network_namespaces import Namespaces, two_namespaces
from process_end import assert_end

from sessions.model import Configuration
from workbench.runner.distributed import world
from workbench.runner.distributed.connection import Connection, Worker, end_connections
from workbench.runner.distributed.messages import (
    Answer,
    BuildVariant,
    Forget,
    Hello,
    Ready,
    Step,
)
from workbench.runner.distributed.supervisor import Ended
from workbench.runner.failures import RankError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
REPORTED_S = 3.0
WORKER = """
import os, socket, sys, time
from workbench import descendants
from workbench.runner.distributed import supervisor
descendants.end_with_parent()
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
supervisor.probe_host(connection)
supervisor.hand_over(connection)
connection.sendall(b'%d\\n{"type": "al' % os.getpid())  # ends within a message
time.sleep(1e6)
"""
SUPERVISE = """
import sys
from workbench.runner.distributed import supervisor
grace_s, *supervisor._COMMAND = sys.argv[1:]
supervisor.STOPPED_S, supervisor.GRACE_S = 0.2, float(grace_s)
supervisor.main()
"""


class RecordingObserver:
    """The sentences that rank 0 would report of its workers."""

    def __init__(self) -> None:
        self.sentences: queue.SimpleQueue[str] = queue.SimpleQueue()

    def fail(self, error: RankError) -> None:
        self.sentences.put(str(error))

    def ended(self, worker: Worker, code: int | None) -> None:
        self.fail(worker.error_of(code))

    def check(self) -> None:
        """Raise nothing."""


class Supervised:
    """A supervisor with its worker, as rank 0 and the agent see them."""

    def __init__(self, hosts: Namespaces | None = None, grace_s: float = 1.0) -> None:
        with hosts.listen() if hosts else socket.create_server(("127.0.0.1", 0)) as listener:
            address, port = listener.getsockname()
            worker = (sys.executable, "-c", WORKER, address, str(port))
            command = (sys.executable, "-c", SUPERVISE, str(grace_s), *worker)
            self.process = subprocess.Popen(hosts.on(1, *command) if hosts else command)
            listener.settimeout(HANG_S)
            self.connection, _ = listener.accept()
        self.connection.settimeout(HANG_S)
        self.lines = self.connection.makefile("rb")
        self.worker = psutil.Process(int(self.lines.readline()))

    def end(self) -> None:
        """Assert that the worker ends; end the supervisor."""
        assert_end([self.worker])
        self.process.kill()
        self.process.wait()

    def last_message(self) -> Ended:
        """Return what the supervisor sends before it closes the connection."""
        incomplete, message = self.lines.read().splitlines()
        assert incomplete == b'{"type": "al'
        return msgspec.json.decode(message, type=Ended)


@pytest.fixture
def supervised():
    supervised = Supervised()
    yield supervised
    supervised.end()


def test_a_stopped_worker_is_ended_and_reported(supervised):
    supervised.worker.suspend()
    assert supervised.last_message() == Ended(-signal.SIGKILL, stopped=True)
    assert supervised.process.wait(HANG_S) == 128 + signal.SIGKILL


@pytest.mark.parametrize("dies_s", [0.0, 0.1])
def test_a_killed_worker_is_reported_with_its_signal(dies_s):
    """Rank 0 hangs up, as after an error in a collective, before the worker has ended too."""
    supervised = Supervised(grace_s=HANG_S)
    supervised.connection.shutdown(socket.SHUT_WR)
    time.sleep(dies_s)
    supervised.worker.send_signal(signal.SIGSEGV)
    assert supervised.last_message() == Ended(-signal.SIGSEGV)
    supervised.end()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_ends_soon_after_rank_0_hangs_up_and_is_not_blamed(supervised, stopped):
    if stopped:
        supervised.worker.suspend()
    supervised.connection.shutdown(socket.SHUT_WR)
    assert_end([supervised.worker])
    if not stopped:
        assert supervised.lines.read() == b'{"type": "al'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_worker_ends_with_its_supervisor(supervised, number):
    supervised.worker.suspend()
    supervised.process.send_signal(number)
    supervised.process.wait(HANG_S)
    assert_end([supervised.worker])


def test_each_host_notices_that_the_other_vanished():
    with two_namespaces() as hosts:
        supervised, observer = Supervised(hosts), RecordingObserver()
        worker = Worker(1, observer)
        hello = Hello(rank=1, token="", host="second", addresses=[], pid=supervised.worker.pid)
        worker.connect(Connection(supervised.connection, Answer), hello)
        worker.steps = 12
        hosts.pull_cable()
        sentence = "rank 1 (on second, in step 12) cannot be reached: its host does not answer"
        assert observer.sentences.get(timeout=REPORTED_S) == sentence
        supervised.end()


def test_a_failure_names_the_last_ordered_step_unless_the_rank_builds():
    with (
        socket.create_server((world.LOOPBACK, 0)) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        here, _ = listener.accept()
        worker = Worker(1, RecordingObserver())
        hello = Hello(rank=1, token="", host="second", addresses=[], pid=1)
        worker.connect(Connection(here, Answer), hello)
        sentences = []
        for order in (
            Forget(),
            Step(0),
            Step(1),
            BuildVariant(Configuration(family="hydra", preset="tiny")),
        ):
            worker.send(order)
            sentences.append(str(worker.error(" ended")))
    before, first, second, building = sentences
    assert before == building == "rank 1 (on second) ended"
    assert first == "rank 1 (on second, in step 1) ended"
    assert second == "rank 1 (on second, in step 2) ended"


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH])
@pytest.mark.parametrize("operation", ["send", "receive"])
def test_the_thread_that_sends_may_learn_of_the_vanished_host(number, operation):
    """The system reports an error once; afterwards the connection just ends."""

    class Failing:
        def __iter__(self) -> Iterator[bytes]:
            raise OSError(number, "")
            yield

        def sendall(self, data: bytes) -> None:
            raise OSError(number, "")

    with socket.socket() as client:
        connection = Connection(client, Answer)
        if operation == "send":
            connection._socket = Failing()
            with pytest.raises(OSError):
                connection.send(Forget())
        else:
            connection._lines = Failing()
            assert list(connection.messages()) == []
    assert connection.is_unreachable


@pytest.mark.parametrize("closing", [False, True])
def test_a_vanished_host_is_reported_and_other_ranks_end(monkeypatch, closing):
    """Other ranks may wait for it in a collective, and rank 0 for them."""
    world.close()  # of an earlier test
    monkeypatch.setattr(world, "join", lambda *_: None)
    ends: list[socket.socket] = []

    class ThreeRanks(world.World):
        def _connect_workers(self) -> None:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                for number in (1, 2):
                    ends.append(socket.create_connection(listener.getsockname()))
                    worker = Worker(number, self)
                    hello = Hello(rank=number, token="", host="second", addresses=[], pid=0)
                    worker.connect(Connection(listener.accept()[0], Answer), hello)
                    self.workers.append(worker)

        def await_answers(self) -> list[Ready]:
            return []

    ranks = ThreeRanks(3, torch.device("cpu"))
    try:
        ranks._closing = closing  # a collective failed first
        ranks.workers[0]._connection._is_unreachable = True
        ends[0].close()
        ends[1].settimeout(HANG_S)
        assert ends[1].recv(1) == b""
        with pytest.raises(RankError, match=r"rank 1 \(on second\) .* does not answer"):
            ranks.check()
    finally:
        ranks.close()
        ends[1].close()


def test_the_connections_to_one_host_are_ended():
    with contextlib.ExitStack() as stack:
        ends = []
        for address in ("127.0.0.1", "127.0.0.2"):
            listener = stack.enter_context(socket.create_server((address, 0)))
            ends.append(stack.enter_context(socket.create_connection(listener.getsockname())))
            stack.enter_context(listener.accept()[0])
        end_connections({"127.0.0.2"})
        other, ended = ends
        ended.settimeout(HANG_S)
        assert ended.recv(1) == b""
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)
