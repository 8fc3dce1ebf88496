"""The supervisor of a rank from outside: whatever state the worker is in, it ends and is reported.

The workers here are small processes without torch.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading

import msgspec
import psutil
import pytest
from process_end import assert_end

from workbench.runner.distributed.supervisor import Ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
WORKER = """
import os, socket, sys, time
from workbench import descendants
from workbench.runner.distributed import supervisor
descendants.end_with_parent()
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
supervisor.hand_over(connection)
connection.sendall(b'%d\\n{"type": "al' % os.getpid())  # ends within a message
time.sleep(600)
"""
SUPERVISE = """
import sys
from workbench.runner.distributed import supervisor
supervisor._COMMAND = sys.argv[1:]
supervisor.STOPPED_S, supervisor.GRACE_S = 0.2, 1.0
supervisor.main()
"""


class Supervised:
    """A supervisor with its worker, as rank 0 and the agent see them."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
            worker = (sys.executable, "-c", WORKER, port)
            self.process = subprocess.Popen([sys.executable, "-c", SUPERVISE, *worker])
            listener.settimeout(60.0)
            self.connection, _ = listener.accept()
        self.connection.settimeout(10.0)
        self.lines = self.connection.makefile("rb")
        self.worker = psutil.Process(int(self.lines.readline()))

    def last_message(self) -> Ended:
        """Return what the supervisor sends before it closes the connection."""
        incomplete, message = self.lines.read().splitlines()
        assert incomplete == b'{"type": "al'
        return msgspec.json.decode(message, type=Ended)


@pytest.fixture
def supervised():
    supervised = Supervised()
    yield supervised
    assert_end([supervised.worker], 10.0)
    supervised.process.kill()
    supervised.process.wait()


def test_a_stopped_worker_is_ended_and_reported(supervised):
    supervised.worker.suspend()
    assert supervised.last_message() == Ended(-signal.SIGKILL, stopped=True)
    assert supervised.process.wait(10.0) == 128 + signal.SIGKILL


@pytest.mark.parametrize("dies_s", [0.0, 0.1])
def test_a_killed_worker_is_reported_with_its_signal(supervised, dies_s):
    """Rank 0 hangs up, as after an error in a collective, before the worker has ended too."""
    kill = threading.Timer(dies_s, supervised.worker.send_signal, [signal.SIGSEGV])
    kill.start()
    supervised.connection.shutdown(socket.SHUT_WR)
    assert supervised.last_message() == Ended(-signal.SIGSEGV)
    kill.join()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_ends_soon_after_rank_0_hangs_up_and_is_not_blamed(supervised, stopped):
    if stopped:
        supervised.worker.suspend()
    supervised.connection.shutdown(socket.SHUT_WR)
    assert_end([supervised.worker], 10.0)
    if not stopped:
        assert supervised.lines.read() == b'{"type": "al'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_worker_ends_with_its_supervisor(supervised, number):
    supervised.worker.suspend()
    supervised.process.send_signal(number)
    supervised.process.wait(10.0)
    assert_end([supervised.worker], 10.0)
