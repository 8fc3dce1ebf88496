"""The process that an agent (``torchrun``, ``srun``) starts for a rank other than 0.

It runs the worker and sees to its end. A worker that a signal stopped, or that hangs in a library,
cannot end itself, and an agent waits for it. Rank 0, on another host, learns here how it ended. If
that host vanishes, the worker ends, too.
Without torch and numpy, this process starts at once and always responds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import NoReturn

import msgspec
import psutil

from workbench import descendants

DESCRIPTOR = "WORKBENCH_RANK_SUPERVISOR"  # the variable with the worker's socket to this process
STOPPED_S = 1.5  # pause after which a stopped worker is killed
GRACE_S = 2.0  # time for a worker to end after rank 0 has closed the connection
_COMMAND = (sys.executable, "-P", "-m", "workbench.runner.rank_worker")
_POLL_S = 0.05
# A host that vanishes (power lost, cable pulled) closes no connection. With these settings a
# connection to it fails after 1.4 to 2.4 s, as measured between two network namespaces. The units
# are seconds, probes and milliseconds. A living host's system answers, whatever its processes do.
# Linux has all of these settings. Another system has some, and its own limits of minutes or hours.
_PROBES = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 1500}


class Ended(msgspec.Struct, tag="ended"):
    """The worker ended with this exit code; ``stopped``: a signal had stopped it before."""

    code: int
    stopped: bool = False


def main() -> NoReturn:
    """Run the worker to its end, and return its exit code to the agent."""
    descendants.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    supervisor_socket, worker_socket = socket.socketpair()
    try:
        with worker_socket:
            worker = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.DEVNULL,
                pass_fds=[worker_socket.fileno()],
                env={**os.environ, DESCRIPTOR: str(worker_socket.fileno())},
            )
        code = _supervise(worker, supervisor_socket)
    finally:
        descendants.kill_descendants()
    sys.exit(code if code >= 0 else 128 - code)


def probe_host(connection: socket.socket) -> None:
    """Let the connection fail soon if the other end's host vanishes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def hand_over(connection: socket.socket) -> None:
    """Let the supervisor of this process, if there is one, use the connection to rank 0."""
    if DESCRIPTOR in os.environ:
        with socket.socket(fileno=int(os.environ[DESCRIPTOR])) as supervisor:
            socket.send_fds(supervisor, [b"\n"], [connection.fileno()])


def is_stopped(pid: int) -> bool:
    """Return True if a signal has stopped the process."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _supervise(worker: subprocess.Popen[bytes], handed_over: socket.socket) -> int:
    """Wait for the worker's end, or end it; report that to rank 0 and return its exit code."""
    connection: socket.socket | None = None
    running_s = time.monotonic()
    stopped = released = False
    while worker.poll() is None and not stopped:
        connection = connection or _receive(handed_over)
        if connection is not None and _has_closed(connection):
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(GRACE_S)
            # Perhaps rank 0 closed because a signal was ending the worker.
            released = (worker.poll() or 0) >= 0
            break
        if not is_stopped(worker.pid):
            running_s = time.monotonic()
        stopped = time.monotonic() - running_s > STOPPED_S
        time.sleep(_POLL_S)
    worker.kill()
    code = worker.wait()
    connection = connection or _receive(handed_over)
    if connection is not None and not released:
        with contextlib.suppress(OSError):  # newline first: a line may be incomplete
            connection.sendall(b"\n" + msgspec.json.encode(Ended(code, stopped)) + b"\n")
    return code


def _receive(handed_over: socket.socket) -> socket.socket | None:
    """Return the worker's connection to rank 0; None if there is none yet."""
    if not select.select([handed_over], [], [], 0)[0]:
        return None
    _, descriptors, *_ = socket.recv_fds(handed_over, 1, 1)
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def _has_closed(connection: socket.socket) -> bool:
    """Return True if rank 0 sends nothing more; this reads nothing that the worker should read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))
