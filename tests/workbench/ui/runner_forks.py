"""A process that has loaded the fake runner, and forks for each one that starts.

Hundreds of tests start a fake runner, and its libraries take ten times as long to load as a fork.
``python runner_forks.py FD`` accepts connections of ``fake_runner_start.py`` on the socket FD until
its standard input ends.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

START = Path(__file__).with_name("fake_runner_start.py")
LARGEST = 1 << 20  # bytes of an environment


@contextmanager
def forks(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the command that starts a fake runner."""
    path = folder / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()  # runners may start while the libraries load
        command = [sys.executable, __file__, str(listener.fileno())]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    try:
        yield sys.executable, "-S", "-E", str(START), str(path)
    finally:
        server.communicate()
    assert server.returncode == 0


def serve(listener: socket.socket, main: Callable[[], None]) -> None:
    """Fork for every connection; return when the tests have ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            if not os.fork():
                listener.close()
                _become_runner(connection, main)


def _become_runner(connection: socket.socket, main: Callable[[], None]) -> None:
    """Run with the streams and variables of the process that was started, and end with it."""
    message, streams, *_ = socket.recv_fds(connection, LARGEST, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environb.clear()
    os.environb.update(dict(variable.split(b"=", 1) for variable in message.split(b"\0")))
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    code = 1
    try:
        main()
        code = 0
    except BaseException:  # noqa: BLE001 - as of a process of its own
        traceback.print_exc()
    connection.send(bytes([code]))
    os._exit(code)  # all is written; to take libraries down would take a third of a second


def _end_with(connection: socket.socket) -> None:
    connection.recv(1)
    os._exit(1)


if __name__ == "__main__":
    fake_runner, _ = map(importlib.import_module, ("fake_runner", "fake_studies"))
    serve(socket.socket(fileno=int(sys.argv[1])), fake_runner.main)
