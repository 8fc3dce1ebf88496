"""Two "hosts" of this machine: network namespaces that a virtual cable connects.

A pulled cable is real to their systems: no packet arrives, and no connection is closed.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

ADDRESSES = ("10.231.7.1", "10.231.7.2")
INTERFACE = "cable"
_NEW = ("unshare", "--net", "sh", "-c", "echo && exec sleep infinity")
_NEW_USER = (_NEW[0], "--user", "--map-root-user", *_NEW[1:])
_LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as listener:
    with socket.socket(fileno=int(sys.argv[2])) as receiver:
        socket.send_fds(receiver, [b"0"], [listener.fileno()])
"""


class Namespaces:
    """The network namespaces of two processes, owned by the user namespace of the first."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        ends = [f"name {INTERFACE} netns {pid}" for pid in pids]
        run(self.on(0, *f"ip link add {ends[0]} type veth peer {ends[1]}".split()))
        for host, address in enumerate(ADDRESSES):
            run(self.on(host, *f"ip address add {address}/24 dev {INTERFACE}".split()))
            for interface in ("lo", INTERFACE):
                run(self.on(host, *f"ip link set {interface} up".split()))

    def on(self, host: int, *command: str) -> tuple[str, ...]:
        """Return the command that runs ``command`` on host 0 or 1."""
        return _enter(self._pids[0], "--user") + _enter(self._pids[host], "--net") + command

    def listen(self) -> socket.socket:
        """Return a socket of this process that listens on host 0."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            script = (sys.executable, "-c", _LISTEN, ADDRESSES[0], str(theirs.fileno()))
            subprocess.run(self.on(0, *script), pass_fds=[theirs.fileno()], check=True)
            _, (descriptor,), *_ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=descriptor)

    def pull_cable(self) -> None:
        """Let no packet reach the other host any more."""
        run(self.on(1, "ip", "link", "set", INTERFACE, "down"))


@contextlib.contextmanager
def two_namespaces() -> Iterator[Namespaces]:
    """Create two namespaces; the test is skipped where the system does not permit it."""
    with contextlib.ExitStack() as stack:
        try:
            first = _start(stack, _NEW_USER)
            namespaces = Namespaces([first, _start(stack, _enter(first, "--user") + _NEW)])
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", None) or error
            pytest.skip(f"needs network namespaces: {detail}")
        yield namespaces


def run(command: tuple[str, ...]) -> None:
    """Run a command; raises ``CalledProcessError`` if it fails."""
    subprocess.run(command, check=True, capture_output=True, text=True)


def _enter(pid: int, namespace: str) -> tuple[str, ...]:
    return ("nsenter", "--target", str(pid), namespace, "--preserve-credentials")


def _start(stack: contextlib.ExitStack, command: tuple[str, ...]) -> int:
    """Start a process that keeps its namespaces until the end of the test; return its number."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout is not None and process.stderr is not None
    if not process.stdout.readline():
        raise OSError(process.stderr.read().strip())
    return process.pid
