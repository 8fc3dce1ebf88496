"""The folder of journals, logs and calibrations, which only its user can enter and read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sessions.storage import account_key

ELSEWHERE = "make room there, or set XDG_STATE_HOME to a writable folder"
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_OF_OTHERS = 0o077


def path() -> Path:
    """Return the user's folder for the state of this program, as ``account_key.folder`` does.

    A user without a home gets a path in which no folder can be made.
    """
    return account_key.folder()


def prepare(folder: Path | None = None) -> Path:
    """Make the folder, and return it; close it and its files to other users. Raises ``OSError``."""
    folder = folder or path()
    folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    narrow(folder, _FOLDER_MODE)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                narrow(Path(entry.path))
    return folder


def narrow(file: Path, mode: int = _FILE_MODE) -> None:
    """Remove other users' permissions for a file that an earlier version made."""
    try:
        if stat.S_IMODE(file.stat().st_mode) & _OF_OTHERS:
            file.chmod(mode)
    except FileNotFoundError:
        return  # another process removed it
    except PermissionError:
        return  # another user's file: it holds nothing of ours


def opener(file: str, flags: int) -> int:
    """Open a file for ``open(..., opener=...)`` that only its user can read, if it is made."""
    return os.open(file, flags, _FILE_MODE)


def unwritten(file: Path, error: OSError) -> str:
    """Return why a file of this folder could not be written, and what to do."""
    return f"{file} cannot be written ({error.strerror}): {ELSEWHERE}"
