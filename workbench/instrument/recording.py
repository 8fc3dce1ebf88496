"""The recording of one process of a training script: steps, input wait, compiles, memory.

Rows are buffered and appended to a file of this process four times a second. A file never blocks
the script, and what was written survives the script's end, however it ends. Until then, the newest
steps are in a file that is mapped into memory: a script that hangs or is killed writes no rows. The
times are those of ``perf_counter_ns``, a clock that all processes of a machine share.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import json
import mmap
import os
import struct
import time
from _thread import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Row = tuple[Any, ...]

FOLDER = "WORKBENCH_RECORDING"  # variable: the folder of the recording
SUFFIX = ".jsonl"  # suffix of a process's file in the folder
ENDED = "ended"  # the file in it that holds the exit code of the script, once there is one
NEWEST_SUFFIX = ".newest"  # suffix of the file that holds a process's newest steps in memory
STEP = struct.Struct("=3q")  # a step in that memory: start, stop and input wait in ns
NEWEST_STEPS = 4096  # steps that this memory holds
STOPPED = "stopped"  # the file in it with the time after which no step is recorded, if there is one
FLUSH_NS = 250_000_000
_LEAVES = ("_exit", "execv", "execve")  # functions of ``os`` that end the program without handlers
now_ns = time.perf_counter_ns


class Recording:
    """The recording of this process.

    A step ends at ``mark_step`` and begins where the step before ended. ``explicit``: a person
    marks the steps (``watch``, a callback), so that calls of an optimizer mark none.
    """

    current: Recording | None = None

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file = -1
        self._identity: tuple[int, int] | None = None  # device and number of the file
        self._has_stepped = False
        self._rows: collections.deque[Row] = collections.deque()
        self._newest: NewestSteps | None = None
        self._last_ns = 0
        self._last_event: Any = None
        self._input_ns = 0
        self._flush_ns = self._log_ns = 0
        self.explicit = False
        self.waits_for_input = False
        self._thread = get_ident()  # the thread that steps: only its waits count
        self.clock: GpuClock | None = None  # once the script uses a GPU
        self.before_flush: Callable[[Recording], None] = write_host_memory
        self.at_end: Callable[[Recording], None] = lambda _: None

    @classmethod
    def begin(cls, folder: str) -> Recording:
        """Begin the recording of this process, which its forks do not continue."""
        recording = cls.current = cls(folder)
        atexit.register(recording.finish)
        for name in _LEAVES:
            if hasattr(os, name):
                setattr(os, name, recording._written_before(getattr(os, name)))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=recording._forget)
        return recording

    def mark_step(self) -> None:
        """End a step; the next one begins."""
        clock = self.clock
        event = None if clock is None else clock.mark()
        ended_ns = now_ns()
        is_first = bool(self._last_ns) and not self._has_stepped
        if self._last_ns:
            self._rows.append((self._last_ns, ended_ns, self._input_ns, self._last_event, event))
            self._has_stepped = True
            if self._newest is not None:
                self._newest.add(self._last_ns, ended_ns, self._input_ns)
        self._last_ns, self._last_event, self._input_ns = ended_ns, event, 0
        self._thread = get_ident()
        if is_first or ended_ns >= self._flush_ns:
            self.flush(wait=is_first)  # at once: a process that steps later is not the script's

    def begin_step(self) -> None:
        """Begin a step now; the time since the last one (evaluation, a save) belongs to no step."""
        self._last_event = None if self.clock is None else self.clock.mark()
        self._last_ns, self._input_ns, self._thread = now_ns(), 0, get_ident()

    def mark_explicitly(self) -> None:
        """Let a person mark the steps from now on."""
        if not self.explicit:
            self.explicit = True
            self.write(explicit=True)

    def pause(self) -> None:
        """Exclude the time from now to the next ``begin_step`` from all steps."""
        self._last_ns = 0

    def add_input(self, start_ns: int) -> None:
        """Count the time from ``start_ns`` to now as waiting for input."""
        if not self._last_ns:
            self._last_ns = start_ns  # the first step begins with its input
        self._input_ns += now_ns() - start_ns

    def next_batch(self, fetch: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``fetch`` and count its time as waiting for input, once if calls are nested.

        A thread that fetches ahead lets no step wait.
        """
        if self.waits_for_input or self._thread != get_ident():
            return fetch(*arguments)
        self.waits_for_input = True
        start_ns = now_ns()
        try:
            return fetch(*arguments)
        finally:
            self.waits_for_input = False
            self.add_input(start_ns)

    def add_compile(self, start_ns: int) -> None:
        """Record that something was compiled from ``start_ns`` until now; from any thread."""
        self._rows.append(("compile", start_ns, now_ns()))

    def log(self, values: Any) -> None:
        """Record numbers by name, at most as often as rows are written: reading may wait."""
        if now_ns() < self._log_ns:
            return
        self._log_ns = now_ns() + FLUSH_NS
        numbers = {}
        for name, value in dict(values).items():
            with contextlib.suppress(TypeError, ValueError, RuntimeError):  # no number
                numbers[str(name)] = float(value)
        if numbers:
            self.write(values=numbers, at_ns=now_ns())

    def write(self, **entry: Any) -> None:
        """Append one entry to the file."""
        self._write(json.dumps(entry))

    def flush(self, wait: bool = False) -> None:
        """Write the finished rows; with ``wait`` also those whose step the GPU still computes."""
        try:
            self.before_flush(self)
            rows = self._finished(wait)
            if rows:
                self.write(rows=rows)
        except Exception as error:  # noqa: BLE001 - the script goes on
            self.fail(error)
        self._flush_ns = now_ns() + FLUSH_NS

    def fail(self, error: BaseException) -> None:
        """Write why something is not recorded."""
        self._write(json.dumps({"error": f"{type(error).__name__}: {error}"}))

    def finish(self, wait: bool = True) -> None:
        """Write the remaining rows when the process ends; ``wait`` as in ``flush``."""
        if self._file < 0 and not self._rows:
            return
        self.flush(wait)
        try:
            self.at_end(self)
        except Exception as error:  # noqa: BLE001 - the script ends as it would
            self.fail(error)

    def _written_before(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``leave``, before which the rows are written: it runs no exit handlers.

        It does not wait for the GPU: a script may leave because the GPU hangs.
        """

        @functools.wraps(leave)
        def write_and_leave(*arguments: Any, **keywords: Any) -> Any:
            try:
                self.finish(wait=False)
            finally:
                leave(*arguments, **keywords)

        return write_and_leave

    def _finished(self, wait: bool) -> list[Row]:
        rows: list[Row] = []
        while self._rows:
            row = self._rows[0]
            if row[0] != "compile":
                start_ns, stop_ns, input_ns, start, stop = row
                if start is not None and stop is not None and not wait and not stop.query():
                    break
                milliseconds = None
                if self.clock is not None and start is not None and stop is not None:
                    milliseconds = self.clock.elapsed_ms(start, stop)
                row = (start_ns, stop_ns, input_ns, milliseconds)
            self._rows.popleft()
            rows.append(row)
        return rows

    def _write(self, line: str) -> None:
        try:
            if self._file < 0 or self._identity != _identity(self._file):
                name = f"{os.getpid()}{SUFFIX}"
                path = os.path.join(self._folder, name)  # noqa: PTH118 - pathlib takes 3 ms
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                # A script that closes all files may have opened one of its own by that number.
                self._file = os.open(path, flags, 0o600)
                self._identity = _identity(self._file)
                first = {"pid": os.getpid(), "rank": os.environ.get("RANK", "0")}
                line = f"{json.dumps(first)}\n{line}"
                self._newest = self._newest or NewestSteps.in_file(
                    path[: -len(SUFFIX)] + NEWEST_SUFFIX
                )
            os.write(self._file, line.encode() + b"\n")
        except OSError:  # the folder is gone, or the disk is full: record nothing more
            self._folder = os.devnull

    def _forget(self) -> None:
        """Reset the recording in a fork, which records only its own steps."""
        if self._file >= 0 and self._identity == _identity(self._file):
            os.close(self._file)
        self._has_stepped = False
        self._file, self._last_ns, self._last_event, self.clock = -1, 0, None, None
        self._newest = None
        self._rows.clear()
        self._flush_ns, self.waits_for_input, self._thread = 0, False, get_ident()


class NewestSteps:
    """The newest steps of a process, in memory that outlives it because it is a mapped file."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._offset = 0

    @classmethod
    def in_file(cls, path: str) -> NewestSteps | None:
        """Return the memory of a new file; None if there is no space for it."""
        size = NEWEST_STEPS * STEP.size
        with contextlib.suppress(OSError, ValueError), open(path, "w+b") as file:  # noqa: PTH123
            file.write(bytes(size))  # allocate: a full disk must not end the script later
            file.flush()
            return cls(mmap.mmap(file.fileno(), size))
        return None

    def add(self, start_ns: int, stop_ns: int, input_ns: int) -> None:
        """Replace the oldest step."""
        STEP.pack_into(self._memory, self._offset, start_ns, stop_ns, input_ns)
        self._offset = (self._offset + STEP.size) % (NEWEST_STEPS * STEP.size)


def _identity(file: int) -> tuple[int, int] | None:
    """Return the device and the inode number of an open file; None if it is closed."""
    with contextlib.suppress(OSError):
        status = os.fstat(file)
        return status.st_dev, status.st_ino
    return None


def write_host_memory(recording: Recording) -> None:
    """Let the watcher read the memory of this process, which costs nothing here."""
    recording.write(memory=None)


class GpuClock:
    """Step times by CUDA events on the current stream, read when they have passed."""

    def __init__(self, cuda: Any) -> None:
        self._event = cuda.Event
        self._is_capturing = cuda.is_current_stream_capturing
        self._free: list[Any] = []
        self.device: int | None = None  # its index, once it is written

    def mark(self) -> Any:
        """Return an event recorded here; None while a CUDA graph is captured."""
        if self._is_capturing():
            return None
        event = self._free.pop() if self._free else self._event(enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, start: Any, stop: Any) -> float:
        """Return the time between two events, and keep the first one for reuse."""
        stop.synchronize()
        milliseconds: float = start.elapsed_time(stop)
        self._free.append(start)
        return milliseconds


class Watched:
    """Wrapper of a loader whose iterations are steps; all else is delegated to the loader."""

    def __init__(self, loader: Iterable[Any], recording: Recording) -> None:
        self._loader = loader
        self._recording = recording

    def __iter__(self) -> Iterator[Any]:
        recording = self._recording
        recording.mark_explicitly()
        recording.begin_step()
        iterator = recording.next_batch(iter, self._loader)
        end = object()
        try:
            while True:
                batch = recording.next_batch(next, iterator, end)
                if batch is end:
                    break
                yield batch
                recording.mark_step()
        finally:
            recording.pause()

    def __reduce__(self) -> tuple[Any, ...]:
        return watch, (self._loader,)  # a copy belongs to the process that has it

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def watch(loader: Iterable[Any]) -> Iterable[Any]:
    """Return the loader; each of its iterations is recorded as one step.

    Outside of ``workbench run -- COMMAND`` it is the loader itself.
    """
    recording = Recording.current
    return loader if recording is None else Watched(loader, recording)
