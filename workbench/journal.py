"""The journal: every line of the wire, appended as it arrives, so that a crash loses nothing.

A session that was never saved is rebuilt by replaying its journal. Lines are written unbuffered: a
killed window loses no line that it had read, and the last line may be cut short.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sessions.model import Event, Session
from workbench import protocol
from workbench.recorder import Recorder

KEPT = 20  # journals of unsaved sessions that are kept


def folder() -> Path:
    """Where journals live: ``$XDG_STATE_HOME/workbench``, or ``~/.local/state/workbench``."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "workbench"


class Journal:
    """An open journal file; one per session, however many runners it sees."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            path = _new_path()
            _forget_old(path.parent)
        self.path = path
        self._file = path.open("ab", buffering=0)
        # Held until this process closes it or ends, however it ends: it tells a journal in use from
        # one that was left behind. Some network drives have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, line: bytes) -> None:
        """Append one line of the wire; one that was cut short is ended, so that the next is not."""
        self._file.write(line if line.endswith(b"\n") else line + b"\n")

    def write(self, message: protocol.Message) -> None:
        """Append a message of the window's own (a note, a new title)."""
        self.append(protocol.encode(message))

    def close(self, *, keep: bool = True) -> None:
        """Close the file; ``keep=False`` removes it, for a session that is safe in its own file."""
        self._file.close()
        if not keep:
            self.path.unlink(missing_ok=True)


def replay(path: Path) -> Iterator[protocol.AnyMessage]:
    """The journal's messages in order; lines that are none (a cut last one) are passed over."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                yield protocol.decode_message(line)
            except protocol.WireError:
                continue


def recover(path: Path) -> Session:
    """Rebuild the session of a journal; raises ``OSError`` or ``ValueError`` with one sentence."""
    recorder = Recorder(Session(title=f"Recovered {path.stem}"))
    lost = 0
    last_s = 0.0
    found = False
    for message in replay(path):
        found = True
        try:
            recorder.record(message)
        except protocol.WireError:
            lost += 1
        last_s = message.t_s
    if not found:
        raise ValueError(f"{path}: no message in it; a journal holds one JSON message a line")
    if lost:
        text = f"{lost} of the journal's messages could not be read and were left out"
        recorder.session.events.append(Event(last_s, "warning", text))
    return recorder.session


def unfinished() -> list[Path]:
    """Journals of sessions that were never saved, newest first; those in use are left out."""
    return [path for path in reversed(_by_age(folder())) if not _in_use(path)]


def _new_path() -> Path:
    """A path that no other session has; the process number alone returns in every container."""
    folder().mkdir(parents=True, exist_ok=True)
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    path = folder() / f"{stem}.journal"
    number = 1
    while path.exists():
        number += 1
        path = folder() / f"{stem}-{number}.journal"
    return path


def _by_age(directory: Path) -> list[Path]:
    """The folder's journals, oldest first."""
    ages = {}
    for path in directory.glob("*.journal"):
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it
            ages[path] = path.stat().st_mtime
    return sorted(ages, key=ages.__getitem__)


def _in_use(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _forget_old(directory: Path) -> None:
    for path in _by_age(directory)[:-KEPT]:
        if not _in_use(path):
            path.unlink(missing_ok=True)
