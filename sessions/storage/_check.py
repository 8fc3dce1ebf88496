"""Reads a file of unknown origin in a separate process: ``python -m sessions.storage._check``.

A corrupt or hostile HDF5 file can make the library crash, loop, ask for absurd amounts of memory or
read other files. A seal with the key of this account shows that this program wrote the file. Any
other file is read here completely, in a child process with limits on time, memory and files. The
child checks its structure and content and writes a plain copy. The HDF5 library of this process
reads only this copy. Standard input is the file, standard output the copy, standard error the
reason for a refusal.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sessions.errors import SessionError
from sessions.model import Session
from sessions.plain_text import one_line
from sessions.storage._lazy import Lost, Source
from sessions.storage._read import read
from sessions.storage._structure import require_plain
from sessions.storage._write import image
from sessions.storage.content import cleaned

TIMEOUT_S = 10.0  # processor time, plus a second for every 10 MB
_PATIENCE = 3.0  # times as long by the clock: other processes may keep the processors busy
_CPU_SIGNAL = getattr(signal, "SIGXCPU", 0)
_MEMORY_BYTES, _MEMORY_PER_BYTE = 4 << 30, 20
_REFUSED = 4  # exit code
_LONGEST_REASON = 300  # characters
# All errors that h5py is known to raise for data that it cannot read.
H5_ERRORS = (
    OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, MemoryError,
    OverflowError,
)  # fmt: skip


def checked_copy(source: Source, sealed: bool = False) -> Source:
    """Return a checked copy of the file; raise ``SessionError`` with a sentence about "it".

    ``sealed``: its checksum fits, or does not matter.
    """
    return child_copy(source, __name__, ["--sealed"] * sealed, _limit_s(source.size))


def child_copy(
    source: Source, module: str, arguments: Sequence[str], limit_s: float, library: str = "HDF5"
) -> Source:
    """Return a child process's answer about the file: ``python -m module arguments``.

    The child has ``limit_s`` seconds of processor time, writes a session without a seal, or a
    refusal (``answer``). Raise ``SessionError`` with a sentence about "it"; ``library``: which one
    reads the file.
    """
    with source.stream() as stream, tempfile.TemporaryFile() as copy:
        stream.seek(0)
        try:
            child = subprocess.run(
                [sys.executable, "-m", module, *arguments],
                cwd=Path(__file__).resolve().parents[2],
                stdin=stream,
                stdout=copy,
                stderr=subprocess.PIPE,
                timeout=_PATIENCE * limit_s,
                env={
                    **os.environ,
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                    "HDF5_PLUGIN_PRELOAD": "::",  # no filters from shared libraries
                },
            )
        except subprocess.TimeoutExpired:
            raise _endless(limit_s) from None
        if child.returncode == -_CPU_SIGNAL:
            raise _endless(limit_s)
        if child.returncode < 0:
            raise SessionError(
                f"it is damaged: the {library} library crashed on it (signal {-child.returncode})"
            )
        errors = child.stderr.decode(errors="replace").strip()
        if child.returncode == _REFUSED:
            raise SessionError(json.loads(errors.rpartition("\n")[2]))
        if child.returncode:
            last = errors.rpartition("\n")[2] or str(child.returncode)
            raise SessionError(f"it could not be checked: {one_line(last, _LONGEST_REASON)}")
        checked = Source(source.path, os.dup(copy.fileno()))
    checked.trusted = True
    return checked


def refusal(source: Source, sealed: bool, output: int) -> str:
    """Write the checked copy; return why there is none, or nothing. May crash or hang."""
    try:
        with source.open() as file:
            forbid_other_files()
            require_plain(file, source.size)
            session = read(source, sealed)
            return answer(session, output)
    except Lost as error:
        return _damaged(error.__cause__)
    except SessionError as error:
        return str(error)
    except H5_ERRORS as error:
        return _damaged(error)


def answer(session: Session, output: int) -> str:
    """Write the checked session for the parent; return why that is not possible, or nothing."""
    copy = image(cleaned(session), compressed=False)
    try:
        with open(output, "wb", buffering=0, closefd=False) as stream:
            unwritten = copy
            while unwritten:
                unwritten = unwritten[stream.write(unwritten) :]
    except OSError as error:
        return f"there is no room for a checked copy of it in {tempfile.gettempdir()} ({error})"
    return ""


def _endless(limit_s: float) -> SessionError:
    return SessionError(f"it is damaged: reading it did not end within {limit_s:.0f} s")


def _damaged(error: BaseException | None) -> str:
    return f"it is damaged ({one_line(str(error) or type(error).__name__, _LONGEST_REASON)})"


def _limit_s(size: int) -> float:
    return TIMEOUT_S + size / 10e6


def limit_resources(size: int, limit_s: float, mapped_bytes: int = 0) -> None:
    """Limit processor time and memory of this process, for a file of this size.

    ``mapped_bytes`` are what a forked process has mapped already.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit; the time-out still holds there
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = math.ceil(limit_s)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = mapped_bytes + _MEMORY_BYTES + _MEMORY_PER_BYTE * size
    allowed = allowed if hard == resource.RLIM_INFINITY else min(hard, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))


def forbid_other_files() -> None:
    """Let this process open nothing more, whatever a file names."""
    codecs.lookup("ascii")  # text of fixed length needs it, and Python would open its module
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def _main() -> int:
    source = Source(Path("it"), os.dup(sys.stdin.fileno()))
    limit_resources(source.size, _limit_s(source.size))
    return exit_code(refusal(source, "--sealed" in sys.argv, sys.stdout.fileno()))


def exit_code(why: str) -> int:
    """Tell the parent why the file is refused, if it is, and return the exit code."""
    if why:
        sys.stderr.write(f"\n{json.dumps(why)}\n")
    return _REFUSED if why else 0


if __name__ == "__main__":
    sys.exit(_main())
