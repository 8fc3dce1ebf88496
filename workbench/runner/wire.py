"""The runner's end of the wire: its real standard output, and a thread that reads commands."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import BinaryIO, NoReturn

from workbench import descendants, protocol

PIPE_BYTES = 1 << 20  # a network pause of a second does not delay a step
LEAVE_S = 5.0  # longest time to end after the end of input
_now_ns = time.perf_counter_ns  # captured before a user's file can replace it
Answer = Callable[[protocol.Check], protocol.Message]


def leave(code: int = 0) -> NoReturn:
    """End this process at once, and all processes that it started, such as compilers.

    The window cannot do that if this process runs on another host: ssh forwards no signals.
    """
    # This timer is a thread of C, which ends the process even if Python's threads never run again.
    faulthandler.dump_traceback_later(LEAVE_S, exit=True, file=2)
    sys.setswitchinterval(1e-5)
    try:
        descendants.kill_descendants()
    finally:
        os._exit(code)


def reserve_standard_streams() -> tuple[BinaryIO, int]:
    """Return standard input and a descriptor of standard output, reserved for the wire.

    From here on, printed text goes to standard error. Processes that are started later inherit
    neither stream: a pipe that one of them holds open would hide that this process has ended.
    """
    output = os.dup(1)
    commands = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout = sys.stderr
    return commands, output


def _widen(pipe: int) -> None:
    """Let a pipe hold ``PIPE_BYTES``, on Linux."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):  # no pipe, or no more memory for pipes
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


class Wire:
    """Sends messages from any thread; queues commands for the engine.

    Two commands do not wait for the engine: ``Check`` is answered and ``Cancel`` is noted at once,
    by the thread that reads them. ``waiting`` is True while a command waits: the engine's loop
    reads that one attribute per step.
    """

    def __init__(self, commands: BinaryIO, output: int) -> None:
        self._commands = commands
        self._output = output
        self._lock = threading.Lock()
        self._origin_ns = _now_ns()
        self.created = time.time()
        self._queue: queue.SimpleQueue[protocol.Command] = queue.SimpleQueue()
        self.waiting = False
        self.cancelled = threading.Event()
        self.answer: Answer | None = None

    @classmethod
    def from_standard_streams(cls) -> Wire:
        """Create the wire on standard input and output."""
        commands, output = reserve_standard_streams()
        _widen(output)
        wire = cls(commands, output)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=wire.close_output)
        return wire

    def close_output(self) -> None:
        """Close the output in a process that a model forked, which must not write to it.

        The child ends if it sends a message. While it held the output open, the window would not
        notice that the runner has ended.
        """
        self._lock = threading.Lock()  # another thread may have held the old one during the fork
        output, self._output = self._output, -1
        os.close(output)

    def seconds(self, now_ns: int | None = None) -> float:
        """Return seconds since the session clock began."""
        return ((_now_ns() if now_ns is None else now_ns) - self._origin_ns) * 1e-9

    def send(self, message: protocol.Message) -> None:
        """Write one message, stamped with the session clock unless it carries a time."""
        if not message.t_s:
            message.t_s = self.seconds()
        line = memoryview(protocol.encode(message))
        try:
            with self._lock:
                while line:
                    line = line[os.write(self._output, line) :]
        except OSError:
            leave()  # the window has ended

    def listen(self) -> None:
        """Start the thread that reads commands until the other end closes."""
        threading.Thread(target=self._read, name="wire", daemon=True).start()

    def next(self) -> protocol.Command:
        """Wait for the next command."""
        return self._taken(self._queue.get())

    def pending(self) -> protocol.Command | None:
        """Return the next command that waits already, or None."""
        self.waiting = False  # set before reading: a later command sets it again
        try:
            command = self._queue.get_nowait()
        except queue.Empty:
            return None
        self.waiting = True
        return self._taken(command)

    def _taken(self, command: protocol.Command) -> protocol.Command:
        if isinstance(command, protocol.Cancel):
            self.cancelled.clear()  # not earlier: a Cancel may be read before its run begins
        return command

    def _read(self) -> None:
        for line in self._commands:
            try:
                command = protocol.decode_command(line)
            except protocol.WireError as error:
                self.send(
                    protocol.Failure(
                        kind=protocol.UNREAD,
                        sentence="A line that is not a command was ignored.",
                        detail=str(error),
                    )
                )
                continue
            if isinstance(command, protocol.Check) and self.answer is not None:
                self._answer(command)
                continue
            if isinstance(command, protocol.Cancel):
                self.cancelled.set()
            self._queue.put(command)
            self.waiting = True
        # The window is gone. A runner in a compile or a hang cannot be asked to leave.
        leave()

    def _answer(self, check: protocol.Check) -> None:
        assert self.answer is not None
        try:
            self.send(self.answer(check))
        except Exception as error:  # noqa: BLE001 - without this thread the runner would read no commands
            self.send(
                protocol.Failure(
                    kind="wire",
                    sentence=f"A configuration could not be checked: {type(error).__name__}.",
                    fix="Change the configuration; the log has the traceback.",
                    detail=traceback.format_exc(),
                )
            )
