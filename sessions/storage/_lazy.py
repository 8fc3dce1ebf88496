"""Columns that stay in the file until they are read.

A loaded session holds one file descriptor of the file that it was loaded from. The file can be
replaced or deleted meanwhile (it is then the old file that goes on being read), which reopening it
by its name would not allow. The descriptor is closed with the last of the columns that need it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from sessions.errors import SessionError
from sessions.model import Segment, Session


class Source:
    """An open file, by descriptor; HDF5 has it open only inside ``with source.open()``.

    ``descriptor``: of the file where it is open already, which then belongs to this object; the
    path is only named in messages.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.path = path
        self.trusted = False  # True if this program wrote the unchanged file
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self.descriptor = descriptor
        self._state = self._current_state()
        self._closer = weakref.finalize(self, os.close, self.descriptor)
        self._lock = threading.Lock()
        self._users = 0
        self._file: h5py.File = None
        self._stream: BinaryIO | None = None

    def close(self) -> None:
        """Close the descriptor now; columns not read so far cannot be read any more."""
        self._closer()

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self.descriptor).st_size

    def stream(self) -> BinaryIO:
        """Return the file as plain bytes; closing the stream leaves the file open."""
        return os.fdopen(os.dup(self.descriptor), "rb", buffering=0)

    @contextmanager
    def open(self) -> Iterator[h5py.File]:
        """Yield the file as HDF5, for reading; blocks may nest and overlap, the last one closes it.

        Raises ``OSError`` for a file that was written to since it was opened: its checksum is no
        longer valid, and HDF5 must not read it.
        """
        with self._lock:
            if self._users == 0:
                if self._current_state() != self._state:
                    raise OSError("its size or modification time has changed")
                self._stream = self.stream()
                try:
                    self._file = h5py.File(self._stream, "r")
                except BaseException:
                    self._stream.close()
                    raise
            self._users += 1
        try:
            yield self._file
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._stream is not None:
                    self._file.close()
                    self._stream.close()

    def _current_state(self) -> tuple[int, int]:
        status = os.fstat(self.descriptor)
        return status.st_size, status.st_mtime_ns


class LazyColumns(Mapping[str, NDArray]):
    """The columns of one group of a file, each read at its first access and kept.

    The arrays are read-only. A column of ``missing`` (name: dtype) is not in the file: it is NaN,
    or 0 where it is an integer.
    """

    def __init__(
        self, source: Source, group: str, names: list[str], missing: Mapping[str, str], rows: int
    ) -> None:
        self.rows = rows
        self.source = source
        self.group = group
        self._names = names
        self._missing = missing
        self._read: dict[str, NDArray] = {}

    def __getitem__(self, name: str) -> NDArray:
        if name not in self._read:
            column = self._load(name)
            column.flags.writeable = False
            self._read[name] = column
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._names
        yield from self._missing

    def __len__(self) -> int:
        return len(self._names) + len(self._missing)

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in self._missing

    @property
    def read_so_far(self) -> frozenset[str]:
        """Names of the columns that have been read."""
        return frozenset(self._read)

    def _load(self, name: str) -> NDArray:
        if name in self._missing:
            dtype = np.dtype(self._missing[name])
            return np.full(self.rows, np.nan if dtype.kind == "f" else 0, dtype)
        if name not in self._names:
            raise KeyError(name)
        try:
            with self.source.open() as file:
                return read_column(file[self.group][name])
        except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
            raise _lost(self.source, error) from error


class Lost(SessionError):  # noqa: N818 - what became of the column
    """A column can no longer be read; the cause is what the HDF5 library raised."""


def _lost(source: Source, error: Exception) -> Lost:
    return Lost(
        f"Cannot read the rest of {source.path}: after it was opened, it was changed or became "
        f"unreachable ({error})."
    )


def tables(session: Session) -> list[Mapping[str, NDArray]]:
    """All tables that may be long: steps, breakdown, memory, metrics, telemetry, of studies."""
    tables = list(session.telemetry.values())
    for segment in session.segments:
        tables += [segment.steps, segment.breakdown, segment.memory]
        tables += [series.table for series in segment.metrics.values()]
    for study in session.studies:
        tables += study.tables.values()
    return tables


@contextmanager
def kept_open(session: Session) -> Iterator[None]:
    """Keep the files of the session's lazy columns open, for reading many of them in a row."""
    with ExitStack() as stack:
        for source in _sources(session):
            try:
                stack.enter_context(source.open())
            except (OSError, RuntimeError) as error:
                raise _lost(source, error) from error
        yield


@contextmanager
def held_open(sessions: Iterable[Session]) -> Iterator[None]:
    """Open the files as ``kept_open`` does, for sessions that may have been read already.

    Opening HDF5 again for each column takes ten times as long as reading it. A file that cannot be
    opened any more is refused by the first column that is missing, and not by those at hand.
    """
    with ExitStack() as stack:
        for session in sessions:
            for source in _sources(session):
                with suppress(OSError, RuntimeError):
                    stack.enter_context(source.open())
        yield


def preload(session: Session, segments: Sequence[Segment], devices: Iterable[str]) -> None:
    """Read all columns of these segments and devices, so that later reads do not wait."""
    with held_open([session]):
        for segment in segments:
            series = [metric.table for metric in segment.metrics.values()]
            for table in (segment.steps, segment.breakdown, segment.memory, *series):
                dict(table)
        for device in devices:
            dict(session.telemetry[device])


def _sources(session: Session) -> list[Source]:
    lazy = [table for table in tables(session) if isinstance(table, LazyColumns)]
    return list({id(table.source): table.source for table in lazy}.values())


def read_column(dataset: h5py.Dataset) -> NDArray:
    """Return a column as an array: numbers in native byte order, text as str objects."""
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return np.asarray(dataset.asstr()[()], dtype=object)
    column = dataset[()]
    return np.asarray(column, dtype=column.dtype.newbyteorder("="))
