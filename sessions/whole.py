"""Files that are written whole or not at all: under a temporary name, then renamed into place.

A crash or a full disk at any moment leaves the old content or the new one, and nothing beside it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import stat
import time
from pathlib import Path

_STALE_S = 3600.0  # a temporary file this old belongs to a save that was killed


def write(path: Path, content: bytes | memoryview) -> None:
    """Put ``content`` at ``path`` in one step, through a symbolic link and with the file's mode.

    What is there and is no regular file (a pipe, a terminal) is written to as it is. Raises
    ``OSError``, ``ValueError`` (a NUL in the path) or ``RuntimeError`` (a loop of links).
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            stream.write(content)
        return
    _remove_stale(target)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def reason(error: Exception) -> str:
    """Why a file could not be written, in a few words."""
    return getattr(error, "strerror", None) or str(error)


def _remove_stale(target: Path) -> None:
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE_S:
                leftover.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the rename last through a power cut, where folders can be opened (not on Windows)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
