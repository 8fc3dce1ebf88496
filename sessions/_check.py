"""Reads a file of unknown origin in a process of its own: ``python -m sessions._check FILE``.

A corrupt HDF5 file can make the library crash, loop or ask for absurd amounts of memory. Files that
carry a seal that fits are exactly what a workbench wrote and need no such check; any other HDF5
file is read here first, to its last byte, and refused if this process dies or takes too long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py

from sessions._lazy import LazyColumns, Source, tables
from sessions._read import read
from sessions.errors import SessionError

TIMEOUT_S = 10.0  # and a second more for every 10 MB
_PIECE_ROWS = 1 << 20
_MEMORY_LIMIT = 8 << 30
# All that h5py is known to raise on what it cannot make sense of.
H5_ERRORS = (
    OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, MemoryError,
    OverflowError,
)  # fmt: skip


def check(path: Path, size: int, sealed: bool = False) -> None:
    """Read the file whole in a child process; raises ``SessionError`` with a sentence about "it".

    ``sealed`` makes it pass over a missing or unfitting seal.
    """
    package = Path(__file__).resolve().parent
    limit_s = TIMEOUT_S + size / 10e6
    command = [sys.executable, "-m", f"{package.name}._check", os.fspath(path.absolute())]
    try:
        child = subprocess.run(
            command + ["--sealed"] * sealed,
            cwd=package.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        raise SessionError(
            f"it is damaged: reading it did not end within {limit_s:.0f} s"
        ) from None
    if child.returncode < 0:
        raise SessionError(
            f"it is damaged: the HDF5 library crashed on it (signal {-child.returncode})"
        )
    try:
        refusal = json.loads(child.stdout)
    except ValueError:
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SessionError(f"it could not be checked: {last or child.returncode}") from None
    if refusal:
        raise SessionError(refusal)


def refusal(path: Path, sealed: bool) -> str:
    """Why the file cannot be used, or nothing; may crash or hang on a corrupt one."""
    source = Source(path)
    try:
        session = read(source, sealed)
        with source.open() as file:
            for table in tables(session):
                if isinstance(table, LazyColumns):
                    _walk(file[table.group])
    except SessionError as error:
        return str(error)
    except H5_ERRORS as error:
        return f"it is damaged ({error})"
    finally:
        source.close()
    return ""


def _walk(group: h5py.Group) -> None:
    for dataset in group.values():
        for first in range(0, dataset.shape[0], _PIECE_ROWS):
            dataset[first : first + _PIECE_ROWS]


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit; the time-out still holds there
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = _MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_LIMIT)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))


if __name__ == "__main__":
    _limit_memory()
    sys.stdout.write(json.dumps(refusal(Path(sys.argv[1]), "--sealed" in sys.argv)))
