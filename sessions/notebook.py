"""A saved session in a notebook: arrays of steps and telemetry, and tables.

``sessions.open(path)`` returns it. ``workbench.notebook.draw`` draws its charts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sessions.errors import Lacking
from sessions.exports import EXPORTS, exportable
from sessions.model import Segment, Session
from sessions.numbers import counted
from sessions.storage import hdf5
from sessions.tables import Table, segments_table

Arrays = dict[str, NDArray]


class OpenedSession:
    """A session of a file; ``session`` is all of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.session: Session = hdf5.load(path)

    def __repr__(self) -> str:
        """Return the file, its title and how many segments it has."""
        count = len(self.session.segments)
        return f"<session {str(self.path)!r}: {self.session.title!r}, {counted(count, 'segment')}>"

    def _repr_markdown_(self) -> str:
        """Return the table of segments, for notebooks."""
        return segments_table(self.session).to_markdown()

    @property
    def segments(self) -> list[Segment]:
        """The segments, in the order in which they ran."""
        return self.session.segments

    def steps(self, segment: int = 0) -> Arrays:
        """Return the columns of a segment's steps, as ``sessions.schema.STEPS`` describes them."""
        return _arrays(self._segment(segment).steps)

    def telemetry(self, device: str = "") -> Arrays:
        """Return the columns of a device's telemetry; of the first device without a name."""
        devices = self.session.telemetry
        name = device or next(iter(devices), "")
        if name not in devices:
            known = ", ".join(devices) or "none"
            raise Lacking(
                f"{self.path} has no telemetry of {name or 'any device'}; it has: {known}"
            )
        return _arrays(devices[name])

    @property
    def tables(self) -> dict[str, list[Table]]:
        """The tables that this session has, by the names of ``workbench export --table``."""
        return exportable(self.session)

    def table(self, name: str, number: int = 1) -> Table:
        """Return the table of that name; the ``number``-th, from 1, if there are several."""
        tables = EXPORTS[name].tables(self.session) if name in EXPORTS else []
        if not tables:
            raise Lacking(f"{self.path} has no table {name!r}; it has: {', '.join(self.tables)}")
        if not 1 <= number <= len(tables):
            raise Lacking(
                f"{self.path} has {counted(len(tables), 'table')} {name!r}, but no number {number}"
            )
        return tables[number - 1]

    def frame(self, table: str, number: int = 1) -> Any:
        """Return a table, or "steps" of segment ``number - 1``, as a pandas data frame.

        Raises ``ImportError`` where pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("frame() needs pandas: pip install pandas") from None
        if table == "steps":
            return pandas.DataFrame(self.steps(number - 1))
        chosen = self.table(table, number)
        data = chosen.to_data()
        return pandas.DataFrame(data["rows"], columns=data["columns"])

    def _segment(self, number: int) -> Segment:
        if not 0 <= number < len(self.segments):
            raise Lacking(
                f"{self.path} has {counted(len(self.segments), 'segment')}, but no number {number}"
            )
        return self.segments[number]


def open_session(path: str | os.PathLike[str]) -> OpenedSession:
    """Open a session file; raises ``SessionError`` with one sentence."""
    return OpenedSession(Path(path))


def _arrays(columns: Mapping[str, NDArray]) -> Arrays:
    """Return copies: the session may be live, or read from its file on demand."""
    return {name: np.array(columns[name]) for name in columns}
