"""The time axis of a session's plots: seconds of running, from the first run on, no idle time.

Telemetry continues between two runs, and a person may wait for hours. The axis leaves that out: a
run begins where the one before it ended. Times of a session and positions on the axis are both
seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from sessions.columns import Columns
from sessions.model import TELEMETRY_COLUMNS, Segment, Session
from workbench.charts.arrays import Array

TITLE = "Running time"
_GROWING = 32  # segments at the end that may still grow: the arms of a comparison
IDLE_S = 2.0  # between two segments; shorter gaps stay on the axis


def start_s(segment: Segment) -> float:
    """Return when a segment's run began: what was measured for it before is a phase of it."""
    phases = segment.phases
    return min(segment.start_s, phases[0].start_s) if phases else segment.start_s


def stop_s(segment: Segment) -> float:
    """Return when a segment was last measured or in a phase."""
    if segment.phases:  # steps of a baseline continue in the background of later segments
        return max(segment.start_s, segment.phases[-1].stop_s)
    if "t_s" not in getattr(segment.steps, "read_so_far", ("t_s",)):
        return segment.start_s  # in a file, and not drawn: to read thousands would take minutes
    times_s = segment.steps["t_s"]
    return max(segment.start_s, float(times_s[-1])) if len(times_s) else segment.start_s


@dataclass
class _Run:
    """Segments without an idle gap between them: session times, position on the axis."""

    start_s: float
    stop_s: float
    position: float
    segments: list[Segment] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.position + self.stop_s - self.start_s


class TimeAxis:
    """Maps a session's seconds to positions on the axis and back; grows with the session.

    A time in an idle gap has the position of the gap. Without a segment, times and positions are
    equal. The running time of ``hidden`` segments is a gap too.
    """

    def __init__(self, session: Session, hidden: frozenset[int] = frozenset()) -> None:
        self._session, self._hidden = session, hidden
        self._runs: list[_Run] = []
        self._segments = 0  # taken so far
        self._knots: tuple[Array, Array] = (np.empty(0), np.empty(0))
        self.gaps: list[tuple[float, float]] = []  # position and seconds of left-out idle time

    def pull(self) -> None:
        """Add new segments, and the end of the last run."""
        segments = self._session.segments
        before = (self._segments, self.last_s)
        if len(segments) > self._segments:
            self._extend()
        for segment in segments[self._segments :]:
            if segment.index in self._hidden:
                continue
            began_s, last = start_s(segment), self._runs[-1] if self._runs else None
            if last is None or began_s - last.stop_s > IDLE_S:
                position = 0.0 if last is None else last.end
                last = _Run(began_s, began_s, position)
                self._runs.append(last)
            last.segments.append(segment)
            last.stop_s = max(last.stop_s, stop_s(segment))
        self._segments = len(segments)
        self._extend()
        if self._runs and before != (self._segments, self.last_s):
            times = [time for run in self._runs for time in (run.start_s, run.stop_s)]
            positions = [position for run in self._runs for position in (run.position, run.end)]
            self._knots = np.array(times), np.array(positions)
            if len(self.gaps) != len(self._runs) - 1:
                self.gaps = [
                    (later.position, later.start_s - earlier.stop_s)
                    for earlier, later in zip(self._runs, self._runs[1:], strict=False)
                ]

    def _extend(self) -> None:
        if self._runs:
            last = self._runs[-1]
            newest = last.segments[-1]
            last.stop_s = max([last.stop_s, *map(stop_s, last.segments[-_GROWING:])])
            if isinstance(newest.steps, Columns):  # a step may come before its phase's message
                last.stop_s = max([last.stop_s, *newest.steps["t_s"][-1:].tolist()])

    @property
    def begun(self) -> bool:
        """True once anything ran: the axis begins there."""
        return bool(self._runs)

    @property
    def last_s(self) -> float:
        """Time at which the last run ended."""
        return self._runs[-1].stop_s if self._runs else -np.inf

    def run_span(self) -> tuple[float, float]:
        """Return first and last position of the last run."""
        return (self._runs[-1].position, self._runs[-1].end) if self._runs else (0.0, 0.0)

    def segment_span(self, segment: Segment) -> tuple[float, float]:
        """Return first and last position of a segment."""
        first, last = self.positions([start_s(segment), stop_s(segment)])
        return float(first), float(last)

    def positions(self, times_s: ArrayLike) -> Array:
        """Return the positions of times."""
        times = np.asarray(times_s, np.float64)
        return np.interp(times, *self._knots) if self._runs else times

    def position(self, time_s: float) -> float:
        """Return the position of one time."""
        return float(self.positions(time_s))

    def times_s(self, positions: ArrayLike) -> Array:
        """Return the times of positions; beyond both ends, time continues evenly."""
        requested = np.asarray(positions, np.float64)
        if not self._runs:
            return requested
        times, known = self._knots
        inside = np.interp(requested, known, times)
        beyond = np.minimum(0.0, requested - known[0]) + np.maximum(0.0, requested - known[-1])
        return inside + beyond

    def is_running(self, times_s: Array) -> Array:
        """Return a mask (n,) of the times that lie in a run."""
        if not self._runs:
            return np.ones(len(times_s), bool)
        starts, stops = self._knots[0][::2], self._knots[0][1::2]
        run = np.searchsorted(starts, times_s, side="right") - 1
        return (run >= 0) & (times_s <= stops[run])


class Positions:
    """Positions of a growing column of times; adds only new times."""

    def __init__(self, axis: TimeAxis) -> None:
        self._axis = axis
        self._columns = Columns({"position": "f8"})

    def __call__(self, times_s: Array) -> Array:
        """Return the positions (n,) of ``times_s`` (n,), a column that only grows."""
        known = self._columns.rows
        if len(times_s) > known:
            self._axis.pull()
            self._columns.append({"position": self._axis.positions(times_s[known:])})
        return self._columns["position"]


class RunningSamples:
    """Samples of one column of telemetry that were taken in a run; grows with the table."""

    def __init__(self, axis: TimeAxis, table: Mapping[str, Array], column: str) -> None:
        self._axis, self._table, self._column = axis, table, column
        self._rows = 0  # of the table, taken in so far
        self.columns = Columns({"position": "f8", column: TELEMETRY_COLUMNS[column]})

    def pull(self) -> None:
        """Add the samples up to the end of the last run; later ones may be idle time."""
        if self._rows and not isinstance(self._table, Columns):
            return  # read from a file, which does not grow
        self._axis.pull()
        times = self._table["t_s"][self._rows :]
        taken = int(np.searchsorted(times, self._axis.last_s, side="right"))
        if not taken:
            return
        rows = np.flatnonzero(self._axis.is_running(times[:taken]))
        values = self._table[self._column][self._rows : self._rows + taken][rows]
        self._rows += taken
        self.columns.append({"position": self._axis.positions(times[rows]), self._column: values})
