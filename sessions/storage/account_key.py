"""The secret of this user account that shows which session files this program wrote here.

The key file lies in the state folder and only its user can read it. Without one (no home, a full
disk) files are checked every time they are opened, which takes half a second longer.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

import platformdirs

SIZE = 32  # bytes
_NAME = "account.key"


def folder() -> Path:
    """Return the user's folder for the state of this program.

    On Linux ``$XDG_STATE_HOME/workbench``, or ``~/.local/state/workbench``. Nobody can make a
    folder in ``/nonexistent``, the home of a user who has none.
    """
    try:
        path = platformdirs.user_state_path("workbench", appauthor=False)
    except RuntimeError:  # newer versions of platformdirs raise; older ones keep the "~"
        return Path("/nonexistent/.local/state/workbench")
    return Path("/nonexistent", *path.parts[1:]) if path.parts[0] == "~" else path


def read() -> bytes | None:
    """Return the key; None where there is none, or where other users could have read it."""
    try:
        with (folder() / _NAME).open("rb") as stream:
            status = os.fstat(stream.fileno())
            key = stream.read(SIZE + 1)
    except OSError:
        return None
    # Other systems than POSIX have no such modes and owners.
    is_private = os.name != "posix" or (
        status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
    )
    return key if is_private and len(key) == SIZE else None


def read_or_make() -> bytes | None:
    """Return the key, and make one where there is none; None where that is not possible."""
    if (key := read()) is not None:
        return key
    path = folder() / _NAME
    temporary = path.with_name(f".{_NAME}.{secrets.token_hex(4)}.partial")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(SIZE))
        try:
            os.link(temporary, path)  # two processes that start at once must end with one key
        except OSError:
            if read() is None:
                temporary.replace(path)  # instead of one that other users could read
    except OSError:
        pass
    with contextlib.suppress(OSError):
        temporary.unlink()
    return read()
