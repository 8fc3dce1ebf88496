"""Files of other profilers as sessions: Kineto traces, reports of Nsight Compute.

A child process reads them: ``python -m sessions.storage.foreign KIND TITLE PATH``, with limits on
time and memory (``sessions.storage._check``). Standard input is the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sessions.errors import SessionError
from sessions.model import Session
from sessions.storage import _check
from sessions.storage._lazy import Source
from sessions.storage._read import read as read_session
from sessions.tracing import foreign, nsight
from sessions.tracing.files import is_report

TRACE, REPORT = "trace", "report"
MOST_BYTES = 1 << 30  # bytes of a file
_SECONDS, _BYTES_PER_S = 60.0, 2e6  # limits of processor time


def load(path: Path) -> Session:
    """Return a session with the profile of a trace or report; raise ``SessionError``."""
    kind = REPORT if is_report(path) else TRACE
    try:
        if kind == REPORT:
            nsight.require()
        if not path.is_file():
            raise SessionError("there is no such file" if not path.exists() else "it is not a file")
        source = Source(path.resolve())
        try:
            if source.size > MOST_BYTES:
                raise SessionError(f"it is larger than {MOST_BYTES >> 20} MiB: record fewer steps")
            arguments = [kind, path.name.partition(".")[0] or path.name, str(path.resolve())]
            library = "Nsight" if kind == REPORT else "JSON"
            copy = _check.child_copy(source, __name__, arguments, _limit_s(source.size), library)
        finally:
            source.close()
        return read_session(copy, sealed=True)
    except (SessionError, OSError) as error:
        raise type(error)(f"Cannot open {path}: {error}") from None


def _limit_s(size: int) -> float:
    return _SECONDS + size / _BYTES_PER_S


def _refusal(source: Source, kind: str, title: str, path: str) -> str:
    try:
        if kind == REPORT:
            session = nsight.read(Path(path), title)
        else:
            with source.stream() as stream:
                stream.seek(0)
                _check.forbid_other_files()
                session = foreign.read(stream, title)
        return _check.answer(session, sys.stdout.fileno())
    except SessionError as error:
        return str(error)
    except MemoryError:
        return "it needs more memory than expected for its size: record fewer steps"


def _main() -> int:
    source = Source(Path("it"), os.dup(sys.stdin.fileno()))
    _check.limit_resources(source.size, _limit_s(source.size))
    return _check.exit_code(_refusal(source, *sys.argv[1:4]))


if __name__ == "__main__":
    sys.exit(_main())
