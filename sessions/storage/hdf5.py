"""Sessions as HDF5 files: save, load, rename.

One session is one file, laid out so that any HDF5 program reads it: groups ``environment``,
``segments/0000/steps``, ``telemetry/gpu0``, ``comparisons/0000``, ``studies/0000``, ``events``; one
dataset a column, each with ``units`` and ``description``. A file is written completely under a
temporary name and then renamed, so that at any moment the name has the old file or the new one.
The HDF5 library of this process reads only files that this program wrote: with a seal by the key of
this user account, or as a copy that a child process wrote after checking another file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sessions.errors import SessionError
from sessions.model import Session
from sessions.storage import account_key, atomic_write, seal
from sessions.storage._check import H5_ERRORS, checked_copy
from sessions.storage._lazy import Source
from sessions.storage._lazy import held_open as held_open
from sessions.storage._lazy import preload as preload
from sessions.storage._read import read
from sessions.storage._write import image


def save(session: Session, path: str | os.PathLike[str]) -> None:
    """Write the session to ``path``; an existing file is replaced.

    The path may be the one that the session was loaded from. Raises ``SessionError`` if it cannot
    be written; an existing file is then unchanged.
    """
    _replace(Path(path), image(session, account_key.read_or_make()))


def load(path: str | os.PathLike[str]) -> Session:
    """Return the session at ``path``; its columns are read when they are first used.

    Raises ``SessionError``, one sentence, for a file that is missing, foreign, newer, truncated or
    damaged.
    """
    path = Path(path)
    with _refusing(path), _source(path) as source:
        return _read(source)


def update_notes(
    path: str | os.PathLike[str], title: str | None = None, notes: str | None = None
) -> None:
    """Change title or notes of the session at ``path``.

    The file is written again rather than patched, so that a crash leaves the old or the new one.
    Raises ``SessionError`` as ``load`` and ``save`` do.
    """
    session = load(path)
    if title is not None:
        session.title = title
    if notes is not None:
        session.notes = notes
    save(session, path)


def accept(path: str | os.PathLike[str]) -> None:
    """Save a session again that another program changed, if all of it can be read.

    Raises ``SessionError`` as ``load`` does, except for a checksum that does not fit.
    """
    path = Path(path)
    with _refusing(path), _source(path) as source:
        session = _read_copy(source, sealed=True)
    save(session, path)


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except SessionError as error:
        raise SessionError(f"Cannot open {path}: {error}.") from error.__cause__
    except H5_ERRORS as error:
        raise SessionError(f"Cannot open {path}: it is damaged ({error}).") from error


@contextlib.contextmanager
def _source(path: Path) -> Iterator[Source]:
    """Yield the opened file; close it if the block fails, else with its last column."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise SessionError("it is a folder; choose a session file in it")
        if not stat.S_ISREG(mode):
            raise SessionError("it is not a regular file")
        source = Source(path)
    except FileNotFoundError:
        raise SessionError("there is no such file") from None
    except PermissionError:
        raise SessionError("you have no permission to read it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise SessionError(getattr(error, "strerror", None) or str(error)) from error
    try:
        yield source
    except BaseException:
        source.close()
        raise


def _read(source: Source) -> Session:
    """Return the session of a file, after a check unless this program wrote it here."""
    if source.size == 0:
        raise SessionError("it is empty")
    with source.stream() as stream:
        shown = seal.verify(stream, source.size, account_key.read())
        if shown is seal.Seal.OWN:
            source.trusted = True
            return read(source, sealed=True)
        if not seal.has_hdf5_signature(stream, source.size):
            raise SessionError("it is not an HDF5 file, so it is not a session of this workbench")
    return _read_copy(source, sealed=shown is seal.Seal.INTACT)


def _read_copy(source: Source, sealed: bool) -> Session:
    """Return the session of a checked copy, where its columns stay, and close the file."""
    copy = checked_copy(source, sealed)
    source.close()
    try:
        return read(copy, sealed=True)
    except BaseException:
        copy.close()
        raise


def _replace(path: Path, content: memoryview) -> None:
    """Put ``content`` at ``path`` in one step; a crash at any moment leaves old or new content."""
    try:
        atomic_write.write(path, content)
    except (OSError, ValueError, RuntimeError) as error:
        raise SessionError(
            f"Cannot save {path}: {atomic_write.reason(error)}; choose another place."
        ) from error
