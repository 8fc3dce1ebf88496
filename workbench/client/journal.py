"""The journal: every line of the wire, appended as it arrives, so that a crash loses nothing.

A session that was never saved is rebuilt by replaying its journal. Lines are written unbuffered: a
killed window loses no line that it had read, and the last line may be cut short. A journal that
cannot be written (a full disk) ends no run: it ends there, and one failure reports it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sessions.model import Configuration, Event, Session
from sessions.numbers import counted, moment
from sessions.storage import atomic_write
from workbench import protocol, state_folder
from workbench.client.recorder import Recorder
from workbench.client.throttle import bounded_lines

KEPT = 20  # journals of unsaved sessions that are kept
CHECK_S = 1.0  # between two checks that the file is still in its folder
RECOVERED_LABEL = "Recovered: its first line was damaged"


class Journal:
    """An open journal file; one per session, however many runners it sees.

    No method raises if the file cannot be written: ``complaint`` returns that failure.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._file: io.FileIO | None = None
        self._lock = contextlib.ExitStack()
        self._unreported: protocol.Failure | None = None
        self._checked_s = time.monotonic()
        self.path = _new_path() if path is None else path
        try:
            if path is None:
                _forget_old(state_folder.prepare())
            self._file = io.FileIO(self.path, "ab", opener=state_folder.opener)
            state_folder.narrow(self.path)
        except OSError as error:
            self._end(f"cannot be written ({error.strerror})")
            return
        # The lock lasts until this process closes it or ends. It shows whether a journal is in use
        # or was left behind.
        self._lock.enter_context(atomic_write.locked(_lock_of(self.path)))

    def append(self, line: bytes) -> None:
        """Append one line of the wire, and a line end if it has none."""
        file = self._file
        if file is None:
            return
        unwritten = memoryview(line if line.endswith(b"\n") else line + b"\n")
        try:
            while unwritten:  # an almost full disk accepts a part
                unwritten = unwritten[file.write(unwritten) :]
        except OSError as error:
            self._end(f"cannot be written ({error.strerror})")
            return
        if time.monotonic() - self._checked_s >= CHECK_S:
            self._check_place(file)

    def _check_place(self, file: io.FileIO) -> None:
        """End the journal if its file or folder was removed, which no write would report."""
        self._checked_s = time.monotonic()
        try:
            is_there = os.path.samestat(self.path.stat(), os.fstat(file.fileno()))
        except OSError:
            is_there = False
        if not is_there:
            self._end("was removed or moved by another program")

    def complaint(self) -> protocol.Failure | None:
        """Return the failure of a journal that could not be written; once."""
        failure, self._unreported = self._unreported, None
        return failure

    def _end(self, why: str) -> None:
        """Write nothing more: a replay would not notice a gap between lines."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        self._unreported = protocol.Failure(
            kind=protocol.JOURNAL,
            sentence=f"The journal {self.path} {why}: measuring continues, but a crash would lose "
            "everything that is not saved.",
            fix=f"Save the session soon; {state_folder.ELSEWHERE}, and start again.",
        )

    def write(self, message: protocol.Message) -> None:
        """Append a message of the window's own (a note, a new title)."""
        self.append(protocol.encode(message))

    def close(self, *, keep: bool = True) -> None:
        """Close the file; ``keep=False`` removes it, for a session that is safe in its own file."""
        file, self._file = self._file, None
        self._lock.close()
        if file is not None:
            with contextlib.suppress(OSError):  # a network drive may report a failed write here
                file.close()
        if not keep:
            discard(self.path)


def discard(path: Path) -> None:
    """Remove a journal that is not needed, if it exists and can be removed."""
    for file in (path, _lock_of(path)):
        with contextlib.suppress(OSError):
            file.unlink()


def replay(path: Path) -> Iterator[protocol.AnyMessage]:
    """Yield the journal's messages in order; skip other text, such as an incomplete last line.

    Zeros after a power cut, or a damaged line end, lose none of the messages beside them. Raises
    ``OSError`` also for a device or a pipe, which may have no end.
    """
    if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):  # open() refuses
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as lines:
        for line in bounded_lines(lines):  # other files may have no line end at all
            for part in (line, *_messages_within(line)):
                try:
                    yield protocol.decode_message(part)
                except protocol.WireError:
                    continue
                if part is line:
                    break


def _messages_within(line: bytes) -> Iterator[bytes]:
    """Yield the parts of a damaged line that begin as a message does."""
    starts = [match.start() for match in re.finditer(rb'\{"type":"', line)]
    for start, stop in itertools.pairwise([*starts, len(line)]):
        yield line[start : line.rfind(b"}", start, stop) + 1]


def without_message(path: Path) -> str:
    """Return why a file is not a journal."""
    return f"{path}: no message in it; a journal has one JSON message per line"


def recover(path: Path) -> Session:
    """Rebuild the session of a journal; raises ``OSError`` or ``ValueError`` with one sentence."""
    recorder = Recorder(Session(title=f"Recovered {path.stem}"))
    lost, is_empty = 0, True
    for message in replay(path):
        is_empty = False
        try:
            recorder.record(message)
        except protocol.WireError:
            lost += not _record_with_segment(recorder, message)
    if is_empty:
        raise ValueError(without_message(path))
    if lost:
        text = f"{lost} of the journal's messages could not be read and were left out"
        recorder.session.events.append(Event(recorder.last_s, "warning", text))
    return recorder.session


def _record_with_segment(recorder: Recorder, message: protocol.AnyMessage) -> bool:
    """Record a message of a segment whose first line was damaged; return False if it fits nowhere.

    The segment gets the configuration of the segment before it, or of the command.
    """
    if getattr(message, "segment", None) != recorder.next_segment:
        return False
    started = protocol.SegmentStarted(
        t_s=message.t_s,
        index=recorder.next_segment,
        configuration=_last_configuration(recorder.session),
        label=RECOVERED_LABEL,
    )
    recorder.record(started)
    try:
        recorder.record(message)
    except protocol.WireError:
        return False
    return True


def _last_configuration(session: Session) -> Configuration:
    if session.segments:
        return session.segments[-1].configuration
    for order in reversed(session.orders):
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(order.command.get("configuration"), Configuration)
    return Configuration(family="unknown", preset="unknown")


def unfinished() -> list[Path]:
    """Return journals that were never saved, newest first, without those in use."""
    return [path for path in reversed(_by_age(state_folder.path())) if not _in_use(path)]


@dataclass(frozen=True)
class Summary:
    """A journal's session in a few facts; times are Unix times."""

    title: str
    first: float
    last: float
    segments: int

    def text(self) -> str:
        """Return "hydra tiny train, 16:23 to 16:36, 17 segments"."""
        day = "%Y-%m-%d"
        is_today = moment(self.first, day) == moment(time.time(), day)
        start_text = moment(self.first, "%H:%M" if is_today else "%d %B %H:%M")
        count = counted(self.segments, "segment")
        return f"{self.title}, {start_text} to {moment(self.last, '%H:%M')}, {count}"


def summarize(path: Path) -> Summary:
    """Return what a journal holds, without its numbers; raises ``OSError``."""
    created = first_s = last_s = offset = 0.0
    title, segments = "", 0
    for message in replay(path):
        match message:
            case protocol.Catalogue():
                created = created or message.created
                offset = message.created - created
            case protocol.SegmentStarted():
                title = title or message.configuration.title
                first_s = first_s or offset + message.t_s
                segments += 1
            case protocol.Described() if message.title:
                title = message.title
        if not isinstance(message, protocol.Catalogue) and created:
            last_s = max(last_s, offset + message.t_s)
    return Summary(title or "Untitled", created + first_s, created + last_s, segments)


def has_segment(path: Path) -> bool:
    """Return True if a run had begun by the journal's end; raises ``OSError``."""
    return any(isinstance(message, protocol.SegmentStarted) for message in replay(path))


def _new_path() -> Path:
    """Return a path that no other session has; process numbers repeat in containers."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    path = state_folder.path() / f"{stem}.journal"
    number = 1
    while path.exists():
        number += 1
        path = state_folder.path() / f"{stem}-{number}.journal"
    return path


def _by_age(directory: Path) -> list[Path]:
    """Return the folder's journals, oldest first."""
    ages = {}
    for path in directory.glob("*.journal"):
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it
            ages[path] = path.stat().st_mtime
    return sorted(ages, key=ages.__getitem__)


def _in_use(path: Path) -> bool:
    with atomic_write.locked(_lock_of(path)) as is_held:
        return is_held is False


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _forget_old(directory: Path) -> None:
    for path in _by_age(directory)[:-KEPT]:
        if not _in_use(path):
            discard(path)
