"""The journal: every line of the wire, appended as it arrives, so that a crash loses nothing.

A session that was never saved is rebuilt by replaying its journal. Lines are written unbuffered: a
killed window loses no line that it had read, and the last line may be cut short. A journal that
cannot be written (a full disk) ends no run: it ends there, and a person is told so once.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sessions.model import Event, Session
from workbench import protocol
from workbench.recorder import Recorder

KEPT = 20  # journals of unsaved sessions that are kept
ELSEWHERE = "make room there, or set XDG_STATE_HOME to a folder that can be written"


def folder() -> Path:
    """Where journals live: ``$XDG_STATE_HOME/workbench``, or ``~/.local/state/workbench``.

    Nobody can make a folder in ``/nonexistent``, the home of a user who has none.
    """
    try:
        home = Path.home()
    except RuntimeError:
        home = Path("/nonexistent")
    return Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "workbench"


class Journal:
    """An open journal file; one per session, however many runners it sees.

    Nothing here raises for a file that cannot be written: ``complaint`` tells.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._file: io.FileIO | None = None
        self._untold: protocol.Failure | None = None
        self.path = _new_path() if path is None else path
        try:
            if path is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                _forget_old(self.path.parent)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            self._end(error)
            return
        # Held until this process closes it or ends, however it ends: it tells a journal in use from
        # one that was left behind. Some network drives have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, line: bytes) -> None:
        """Append one line of the wire; one that was cut short is ended, so that the next is not."""
        file = self._file
        if file is None:
            return
        rest = memoryview(line if line.endswith(b"\n") else line + b"\n")
        try:
            while rest:  # a disk that is almost full takes a part
                rest = rest[file.write(rest) :]
        except OSError as error:
            self._end(error)

    def complaint(self) -> protocol.Failure | None:
        """What a person is to be told of a journal that could not be written; once."""
        untold, self._untold = self._untold, None
        return untold

    def _end(self, error: OSError) -> None:
        """Write nothing more: lines after a gap would be replayed as if there were none."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        self._untold = protocol.Failure(
            kind=protocol.JOURNAL,
            sentence=f"The journal {self.path} cannot be written ({error.strerror}): what is "
            "measured goes on, but a crash would lose what is not saved.",
            fix=f"Save the session soon; {ELSEWHERE}, and start again.",
        )

    def write(self, message: protocol.Message) -> None:
        """Append a message of the window's own (a note, a new title)."""
        self.append(protocol.encode(message))

    def close(self, *, keep: bool = True) -> None:
        """Close the file; ``keep=False`` removes it, for a session that is safe in its own file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # of a network drive, which may write this late
                file.close()
        if not keep:
            discard(self.path)


def unwritten(path: Path, error: OSError) -> str:
    """Why a file of the state folder could not be written, and what to do."""
    return f"{path} cannot be written ({error.strerror}): {ELSEWHERE}"


def discard(path: Path) -> None:
    """Remove a journal that nobody needs; one that cannot be removed, or never was, is left."""
    with contextlib.suppress(OSError):
        path.unlink()


def replay(path: Path) -> Iterator[protocol.AnyMessage]:
    """The journal's messages in order; lines that are none (a cut last one) are passed over."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                yield protocol.decode_message(line)
            except protocol.WireError:
                continue


def without_message(path: Path) -> str:
    """Why a file is no journal."""
    return f"{path}: no message in it; a journal holds one JSON message a line"


def recover(path: Path) -> Session:
    """Rebuild the session of a journal; raises ``OSError`` or ``ValueError`` with one sentence."""
    recorder = Recorder(Session(title=f"Recovered {path.stem}"))
    lost, found = 0, False
    for message in replay(path):
        found = True
        try:
            recorder.record(message)
        except protocol.WireError:
            lost += 1
    if not found:
        raise ValueError(without_message(path))
    if lost:
        text = f"{lost} of the journal's messages could not be read and were left out"
        recorder.session.events.append(Event(recorder.last_s, "warning", text))
    return recorder.session


def unfinished() -> list[Path]:
    """Journals of sessions that were never saved, newest first; those in use are left out."""
    return [path for path in reversed(_by_age(folder())) if not _in_use(path)]


def _new_path() -> Path:
    """A path that no other session has; the process number alone returns in every container."""
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
            discard(path)
