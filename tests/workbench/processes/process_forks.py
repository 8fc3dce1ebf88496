"""Python processes that begin as forks of a process that has loaded their libraries.

Tests start hundreds of runners, ranks and commands, and torch takes seconds to load. Within
``forks()``, ``subprocess.Popen`` lets a server fork if it is to start a program of ``PROGRAMS``.
The new process is a child of this one, has its own command line, variables, streams and session,
and runs the program's code as ``__main__``. Any other program is executed. So are these where
there is a GPU, and if a variable that libraries read as they load differs from the server's.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]
TORCH = (
    "workbench.runner.engine",
    "workbench.runner.rank_worker",
    "torch._inductor.compile_fx",
    "torch._dynamo.repro.after_dynamo",
)
FAKES = ("fake_runner", "fake_studies")
# What a server loads, by the module or the script that a process runs.
PROGRAMS = {
    "workbench": TORCH,
    "workbench.runner": TORCH,
    "workbench.runner.rank_worker": TORCH,
    str(TESTS / "runner" / "faulty_runner.py"): TORCH,
    str(TESTS / "ui" / "fake_runner.py"): FAKES,
}
# Variables that are read after everything is loaded.
LATE = ("XDG_", "PYTEST_", "FAKE_RUNNER_", "WORKBENCH_R", "RANK", "WORLD_SIZE", "LOCAL_RANK",
        "MASTER_", "GLOO_", "NCCL_")  # fmt: skip
STARTING = ("workbench", "workbench.runner")  # programs that start others
EXEC = ("WORKBENCH_TESTS_EXEC", "1")  # a process with this variable is no fork
LARGEST = 1 << 17  # bytes of a command line and its variables
_PADDING = "-" * (LARGEST // 4)  # room for the command line and for the variables of a fork
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h
_POPEN = subprocess.Popen
_SIGNATURE = inspect.signature(_POPEN._execute_child)


class Server:
    """The connection to a process that has loaded modules, and forks."""

    def __init__(
        self,
        control: socket.socket,
        environment: dict[str, str],
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.environment = environment
        self._control = control
        self._process = process  # none if it is a fork
        self._lock = threading.Lock()

    @classmethod
    def start(cls, modules: tuple[str, ...]) -> Server:
        """Return a server of a new process."""
        control, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other_end:
            process = _POPEN(
                [sys.executable, "-P", __file__, str(other_end.fileno()), _PADDING],
                env={**os.environ, "MODULES": json.dumps(modules), "PADDING": _PADDING},
                stdin=subprocess.DEVNULL,
                pass_fds=[other_end.fileno()],
            )
        return cls(control, _early(os.environ), process)

    @classmethod
    def fork_from_this(cls, environment: dict[str, str], unused: list[int]) -> Server:
        """Return a server that is a fork of this process, which has one thread yet."""
        control, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            for descriptor in (control.detach(), *unused):
                os.close(descriptor)
            _serve(other_end, environment)
            os._exit(0)
        other_end.close()
        return cls(control, environment)

    def fork(self, request: Mapping[str, object], descriptors: list[int]) -> int:
        """Return the number of a new process, a child of this one."""
        with self._lock, _adopting():
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            return int(self._control.recv(LARGEST))

    def close(self) -> None:
        """Let the server end; its forks live on."""
        self._control.close()
        if self._process is not None:
            assert self._process.wait() == 0


class Popen(_POPEN):
    """A process that a server forks if it can."""

    servers: dict[tuple[str, ...], Server] = {}  # noqa: RUF012 - of all processes
    starting = threading.Lock()

    def _execute_child(self, *arguments: object) -> None:
        call = _SIGNATURE.bind(self, *arguments).arguments
        environment = {**os.environ} if call["env"] is None else {**call["env"]}
        server = self._server(call, environment)
        if server is None:
            super()._execute_child(*arguments)
            return
        streams = [call["p2cread"], call["c2pwrite"], call["errwrite"]]
        streams = [number if fd == -1 else fd for number, fd in enumerate(streams)]
        request = {
            "words": [os.fsdecode(word) for word in call["args"]],
            "environment": {os.fsdecode(k): os.fsdecode(v) for k, v in environment.items()},
            "folder": os.fsdecode(call["cwd"] or Path.cwd()),
            "descriptors": [0, 1, 2, *call["pass_fds"]],
            "session": call["start_new_session"],
        }
        self.pid = server.fork(request, [*streams, *call["pass_fds"]])
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[name] for name in ends))

    def _server(self, call: Mapping[str, object], environment: dict[str, str]) -> Server | None:
        modules = PROGRAMS.get(_program(call["args"]))
        unusual = (call["shell"], call["executable"], call["preexec_fn"], call["uid"])
        if modules is None or any(unusual):
            return None
        with self.starting:
            if modules not in self.servers:
                if EXEC[0] in environment:
                    return None
                self.servers[modules] = Server.start(modules)
        server = self.servers[modules]
        return server if server.environment == _early(environment) else None


@contextlib.contextmanager
def forks() -> Iterator[None]:
    """Let processes of ``PROGRAMS`` begin as forks."""
    has_gpu = Path("/dev/nvidiactl").exists()  # CUDA does not survive a fork
    if sys.platform != "linux" or has_gpu or not all(end > start > 0 for start, end in _shown()):
        yield
        return
    subprocess.Popen = Popen
    try:
        yield
    finally:
        subprocess.Popen = _POPEN
        while Popen.servers:
            Popen.servers.popitem()[1].close()


def _program(words: object) -> str:
    """Return the module or the script that a command runs; empty for any other command."""
    if not isinstance(words, list | tuple) or words[:1] != type(words)((sys.executable,)):
        return ""
    match [word for word in words[1:] if word != "-P"]:
        case ["-m", name, *_] | [name, *_]:
            return name
    return ""


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that libraries may read as they load."""
    return {name: value for name, value in environment.items() if not name.startswith(LATE)}


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Let a process whose parent ends become a child of this one."""
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def _serve(control: socket.socket, environment: dict[str, str]) -> None:
    """Fork for every request; return when the process that sends them has ended."""
    while True:
        message, descriptors, *_ = socket.recv_fds(control, LARGEST, 64)
        if not message:
            return
        reader, writer = os.pipe()
        if not (parent := os.fork()):
            parent = os.getpid()
            if number := os.fork():
                os.write(writer, str(number).encode())
                os._exit(0)
            control.close()
            os.close(reader)
            os.close(writer)
            while os.getppid() == parent:  # until the process that sent the request adopts this one
                time.sleep(0.0002)
            request = json.loads(message)
            if _program(request["words"]) in STARTING:
                Popen.servers[TORCH] = Server.fork_from_this(environment, descriptors)
                subprocess.Popen = Popen
            _become(request, descriptors)
            _run(request["words"])
            return
        os.waitpid(parent, 0)
        control.send(os.read(reader, 32))
        for descriptor in (reader, writer, *descriptors):
            os.close(descriptor)


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    """Take the streams, the session, the folder and the variables of a request."""
    free = max(request["descriptors"]) + 1
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, free) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for copy, number in zip(copies, request["descriptors"], strict=True):
        os.dup2(copy, number)
        os.close(copy)
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _show(request["words"], [f"{name}={value}" for name, value in os.environ.items()])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))


def _run(words: list[str]) -> None:
    """Run the program of a command as Python does."""
    sys.orig_argv = words
    is_safe = words[1] == "-P"
    words = words[1 + is_safe :]
    if words[0] == "-m":
        sys.argv = words[1:]
        if not is_safe:
            sys.path.insert(0, str(Path.cwd()))
        if not hasattr(sys.modules[words[1]], "__path__"):
            del sys.modules[words[1]]  # the module of this name is not ``__main__``
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = words[0]
    exec(SourceFileLoader("__main__", words[0]).get_code("__main__"), vars(main))


def _shown() -> list[tuple[int, int]]:
    """Return where the system reads this process's command line and variables; 0 if unknown."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return [(int(fields[first]), int(fields[first + 1])) for first in (45, 47)]


def _show(*columns: list[str]) -> None:
    """Write the command line and the variables where the system shows those of a process."""
    for (start, end), words in zip(_shown(), columns, strict=True):
        content = b"".join(os.fsencode(word) + b"\0" for word in words)
        assert len(content) < end - start
        ctypes.memmove(start, content.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    libraries = json.loads(os.environ.pop("MODULES"))
    del os.environ["PADDING"]
    early = _early(os.environ)  # torch adds to it
    sys.path.append(str(TESTS / "ui"))
    gc.disable()  # all that the libraries make stays
    for library in libraries:
        importlib.import_module(library)
    gc.freeze()
    atexit.register(gc.unfreeze)  # else extensions report leaks at exit that are none
    gc.enable()
    sys.path.remove(str(TESTS / "ui"))
    _serve(socket.socket(fileno=int(sys.argv[1])), early)
