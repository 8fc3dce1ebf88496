"""The time axis of a session's plots: seconds of running, from the first run on, no idle time.

Telemetry continues between two runs, and a person may wait for hours. The axis leaves that out: a
run begins where the one before it ended. Times of a session and positions on the axis are both
seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike

from sessions.columns import Columns, row_count
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


def _growth(segment: Segment) -> tuple[object, ...]:
    """Return what changes whenever ``stop_s`` of a segment may."""
    steps = segment.steps
    return segment.phases[-1:], row_count(steps), getattr(steps, "read_so_far", None)


class TimeAxis:
    """Maps a session's seconds to positions on the axis and back; grows with the session.

    A time in an idle gap has the position of the gap. Without a segment, times and positions are
    equal. The running time of ``hidden`` segments is a gap too.
    """

    def __init__(self, session: Session, hidden: frozenset[int] = frozenset()) -> None:
        self._session, self._hidden = session, hidden
        # A run consists of segments without an idle gap between them. Runs are not objects:
        # thousands of new objects start the garbage collector, which stops the window.
        self._starts: list[float] = []
        self._stops: list[float] = []
        self._places: list[float] = []  # positions of the starts
        self._newest: deque[Segment] = deque(maxlen=_GROWING)  # segments of the last run
        self._segments = 0  # taken so far
        self._pulled: tuple[object, ...] | None = None  # how far the segments had grown then
        self._knots: tuple[Array, Array] = (np.empty(0), np.empty(0))
        self.gaps: list[tuple[float, float]] = []  # position and seconds of left-out idle time

    def pull(self) -> None:
        """Add new segments, and the end of the last run."""
        segments = self._session.segments
        if self._growth() == self._pulled:
            return
        if len(segments) > self._segments:
            self._extend()
        for segment in segments[self._segments :]:
            if segment.index in self._hidden:
                continue
            began_s = start_s(segment)
            if not self._stops or began_s - self._stops[-1] > IDLE_S:
                self._places.append(self.run_span()[1])
                self._starts.append(began_s)
                self._stops.append(began_s)
                self._newest.clear()
            self._newest.append(segment)
            self._stops[-1] = max(self._stops[-1], stop_s(segment))
        self._segments = len(segments)
        self._extend()
        starts, stops, places = map(np.array, (self._starts, self._stops, self._places))
        ends = places + stops - starts
        self._knots = np.stack([starts, stops], 1).ravel(), np.stack([places, ends], 1).ravel()
        if len(self.gaps) != len(places) - 1:
            idle = starts[1:] - stops[:-1]
            self.gaps = list(zip(places[1:].tolist(), idle.tolist(), strict=True))
        self._pulled = self._growth()

    def _growth(self) -> tuple[object, ...]:
        return len(self._session.segments), [*map(_growth, self._newest)]

    def _extend(self) -> None:
        if self._newest:
            self._stops[-1] = max([self._stops[-1], *map(stop_s, self._newest)])
            steps = self._newest[-1].steps
            if isinstance(steps, Columns):  # a step may come before its phase's message
                self._stops[-1] = max([self._stops[-1], *steps["t_s"][-1:].tolist()])

    @property
    def begun(self) -> bool:
        """True once anything ran: the axis begins there."""
        return bool(self._stops)

    @property
    def last_s(self) -> float:
        """Time at which the last run ended."""
        return self._stops[-1] if self._stops else -np.inf

    def run_span(self) -> tuple[float, float]:
        """Return first and last position of the last run."""
        if not self._stops:
            return (0.0, 0.0)
        return self._places[-1], self._places[-1] + self._stops[-1] - self._starts[-1]

    def segment_span(self, segment: Segment) -> tuple[float, float]:
        """Return first and last position of a segment."""
        first, last = self.positions([start_s(segment), stop_s(segment)])
        return float(first), float(last)

    def positions(self, times_s: ArrayLike) -> Array:
        """Return the positions of times."""
        times = np.asarray(times_s, np.float64)
        return np.interp(times, *self._knots) if self.begun else times

    def position(self, time_s: float) -> float:
        """Return the position of one time."""
        return float(self.positions(time_s))

    def times_s(self, positions: ArrayLike) -> Array:
        """Return the times of positions; beyond both ends, time continues evenly."""
        requested = np.asarray(positions, np.float64)
        if not self.begun:
            return requested
        times, known = self._knots
        inside = np.interp(requested, known, times)
        beyond = np.minimum(0.0, requested - known[0]) + np.maximum(0.0, requested - known[-1])
        return inside + beyond

    def is_running(self, times_s: Array) -> Array:
        """Return a mask (n,) of the times that lie in a run."""
        if not self.begun:
            return np.ones(len(times_s), bool)
        starts, stops = self._knots[0][::2], self._knots[0][1::2]
        run = np.searchsorted(starts, times_s, side="right") - 1
        return (run >= 0) & (times_s <= stops[run])


_AXES: WeakValueDictionary[tuple[int, frozenset[int]], TimeAxis] = WeakValueDictionary()


def shared_axis(session: Session, hidden: frozenset[int] = frozenset()) -> TimeAxis:
    """Return the axis that all panels share while one of them uses it."""
    key = id(session), hidden  # no other session has this id: an axis refers to its session
    axis = _AXES.get(key)
    if axis is None:
        _AXES[key] = axis = TimeAxis(session, hidden)
    return axis


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
        self._rows = 0  # rows of the table that were read
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
