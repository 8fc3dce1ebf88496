"""Sources of curves: columns of a session, decimated to the pixels that show them.

A ``Track`` follows one column as it grows, without a copy; ``Rolling`` derives the rolling median
and percentiles of a segment's steps. Both add only new samples when they are pulled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sessions.columns import Columns
from sessions.model import Phase, Segment
from workbench.charts.arrays import Array
from workbench.charts.series.pyramid import Pyramid, reduce_bins

WINDOW = 41  # steps; puts the 5th, 50th and 95th percentile exactly on the 3rd, 21st and 39th
FEWEST = 20  # 5 % of these steps are one: of fewer, the outer percentiles are the extremes
# Up to how many steps every how many get rolling values: as many as a screen can show apart.
_HOPS = ((4096, 1), (65_536, 8), (np.inf, 32))
_EVERY = ((np.inf, 1),)
_TAIL = 1 << 13  # samples since the last view that are cheaper to reduce than to look up
_CHUNK = 1 << 14  # windows sorted at a time, which bounds the scratch memory to a few megabytes


@dataclass(frozen=True)
class View:
    """A stretch of a track as drawn: ``low`` and ``high`` (n,) per place ``x`` (n,).

    ``dense`` says that places stand for several samples each; otherwise low equals high.
    """

    x: Array
    low: Array
    high: Array
    dense: bool

    @functools.cached_property
    def height(self) -> float:
        """Mean of high minus low; 0 where nothing was measured."""
        height = self.high - self.low
        height = height[np.isfinite(height)]
        return float(height.mean()) if len(height) else 0.0


class Grid:
    """The beginnings of bins of x among the samples; computed once for all tracks of the same x."""

    def __init__(self) -> None:
        self._key: tuple[float, ...] = ()
        self._edges = np.empty(0, np.int64)

    def edges(
        self, x: Array, first: int, last: int, start: float, stop: float, width: float
    ) -> Array:
        """Sample numbers from ``first`` to ``last`` at which bins of ``width`` begin.

        Bins lie at whole multiples of their width, so that a scrolling view does not shimmer.
        """
        key = (first, last, start, stop, width)
        if key != self._key:
            lowest = np.floor(start / width)
            highest = max(np.ceil(stop / width), lowest + 1)  # all samples may have one x
            places = np.arange(lowest, highest + 1) * width
            edges = np.searchsorted(x[first:last], places) + first
            edges[0], edges[-1] = first, last
            self._key, self._edges = key, edges
        return self._edges


@dataclass(frozen=True)
class Bins:
    """Decimated samples from a place ``start`` of x on: first sample, lowest, highest (n,)."""

    start: float
    starts: Array
    low: Array
    high: Array


class Track:
    """One column against another that ascends, with a pyramid; both may grow.

    Tracks of one x share a ``grid``. ``places`` maps x to the axis, and keeps its number of rows.
    """

    def __init__(
        self,
        columns: Mapping[str, Array],
        x: str,
        y: str,
        pull: Callable[[], None] | None = None,
        grid: Grid | None = None,
        places: Callable[[Array], Array] = lambda x: x,
    ) -> None:
        self._columns = columns
        self._places = places
        self._names = (x, y)
        self._source_pull = pull
        self._pyramid = Pyramid()
        self._grid = grid or Grid()
        self._bins: dict[float, Bins] = {}  # bins of the last view that reached the newest sample
        self.x: Array = np.empty(0)
        self.y: Array = np.empty(0, np.float32)

    def pull(self) -> None:
        """Add the new rows of the columns."""
        if self._source_pull is not None:
            self._source_pull()
        if len(self.x) and not isinstance(self._columns, Columns):
            return  # read from a file, which does not grow
        x, y = (self._columns[name] for name in self._names)
        rows = min(len(x), len(y))
        if rows > len(self.x):
            self.x, self.y = self._places(x[:rows]), y[:rows]

    @property
    def span(self) -> tuple[float, float] | None:
        """First and last place of a sample."""
        return (float(self.x[0]), float(self.x[-1])) if len(self.x) else None

    @property
    def gap(self) -> float:
        """Distance in x from which two neighbours are not joined by a line."""
        if len(self.x) < 2:
            return np.inf
        return max(1.0, 20.0 * float(self.x[-1] - self.x[0]) / (len(self.x) - 1))

    def view(self, start: float, stop: float, width: float) -> View:
        """Return the samples to show from ``start`` to ``stop``, in bins of ``width`` (units of x).

        One sample beyond either end is included, so that lines leave the view at its edge.
        """
        first = max(0, int(np.searchsorted(self.x, start)) - 1)
        last = min(len(self.x), int(np.searchsorted(self.x, stop, side="right")) + 1)
        if last > first:  # many tracks may share the view: only the part with samples counts
            start, stop = map(float, self.x[first:last][[0, -1]].clip(start, stop))
        if last - first <= max(2.0, (stop - start) / width):
            y = self.y[first:last]
            return View(self.x[first:last], y, y, dense=False)
        bins_ = self._grown(first, last, start, stop, width)
        if bins_ is None:
            self._pyramid.extend(self.y)
            edges = self._grid.edges(self.x, first, last, start, stop, width)
            bins_ = Bins(start, *self._pyramid.query(self.y, edges))
        self._bins = {width: bins_} if last == len(self.x) else {}
        return View(self.x[bins_.starts], bins_.low, bins_.high, dense=True)

    def _grown(self, first: int, last: int, start: float, stop: float, width: float) -> Bins | None:
        """Return the bins of the last view and those of the samples since; None if that is no help.

        While a session grows only its last bin does, and new ones follow.
        """
        known = self._bins.get(width)
        if known is None or known.start > start or last < len(self.x):
            return None
        begin = int(known.starts[-1])
        if last - begin > _TAIL or begin < first:
            return None
        edges = self._grid.edges(self.x, begin, last, float(self.x[begin]), stop, width)
        starts, low, high = reduce_bins(self.y, edges)
        reused = slice(max(0, int(np.searchsorted(known.starts, first, side="right")) - 1), -1)
        return Bins(
            start,
            np.concatenate([known.starts[reused], starts]),
            np.concatenate([known.low[reused], low]),
            np.concatenate([known.high[reused], high]),
        )

    def at(self, x: float) -> float:
        """Return the value of the last sample at or before ``x``; NaN if there is none near."""
        index = int(np.searchsorted(self.x, x, side="right")) - 1
        if index < 0 or x - self.x[index] > self.gap:
            return float("nan")
        return float(self.y[index])


class Rolling:
    """Rolling median, 5th and 95th percentile over the last ``WINDOW`` steady steps of a segment.

    Compiling and warming up are left out: one slow first step would lift the percentiles of the
    next twenty. The first windows hold fewer steps, and below ``FEWEST`` a median alone. Unless it
    is not to be ``thin``, only some steps of a long segment get values, every 8th or 32nd.
    ``columns`` has the steady step's start, its number among the steady steps, its row among all
    steps, and the three percentiles.
    """

    def __init__(self, segment: Segment, column: str, *, thin: bool = True) -> None:
        self._segment = segment
        self._column = column
        self._thin = thin
        self._pulled_rows = 0
        self.steady = 0  # steady steps so far
        self._tail = np.empty(0, np.float32)
        self.columns = Columns(
            {"t_s": "f8", "number": "f8", "row": "i8", "p5": "f4", "median": "f4", "p95": "f4"}
        )

    def pull(self) -> None:
        """Add the new steps of the segment."""
        steps = self._segment.steps
        if self._pulled_rows and not isinstance(steps, Columns):
            return
        t_s = steps["t_s"]
        if len(t_s) <= self._pulled_rows:
            return
        new = slice(self._pulled_rows, len(t_s))
        values = np.asarray(steps[self._column][new], np.float32)
        steady = (steps["phase"][new] == Phase.STEADY) & np.isfinite(values)
        rows = np.flatnonzero(steady) + self._pulled_rows
        self._pulled_rows = len(t_s)
        self._append(t_s[rows], values[steady], rows)

    def _append(self, t_s: Array, values: Array, rows: Array) -> None:
        if not len(values):
            return
        number = np.arange(self.steady, self.steady + len(values))
        selected = np.zeros(len(values), bool)
        for until, hop in _HOPS if self._thin else _EVERY:
            selected |= (number < until) & (number % hop == 0)
        padding = np.full(max(0, WINDOW - 1 - len(self._tail)), np.nan, np.float32)
        history = np.concatenate([padding, self._tail, values])
        windows = sliding_window_view(history, WINDOW)[selected]
        low, middle, high = rolling_percentiles(windows)
        self.columns.append(
            {
                "t_s": t_s[selected],
                "number": number[selected],
                "row": rows[selected],
                "p5": low,
                "median": middle,
                "p95": high,
            }
        )
        self.steady += len(values)
        self._tail = history[-(WINDOW - 1) :]


def rolling_percentiles(windows: Array) -> tuple[Array, Array, Array]:
    """Compute percentiles 5, 50 and 95 of every window (n, WINDOW); leading NaN is ignored.

    The outer two are NaN where fewer than ``FEWEST`` values are left.

    Trailing windows, unlike the centred ones of ``sessions``: a live line cannot wait
    for the steps that come after it.
    """
    results = np.empty((3, len(windows)), np.float32)
    partial = int(np.count_nonzero(np.isnan(windows[:WINDOW, 0])))
    # NaN is sorted to the end.
    ordered = np.sort(windows[:partial], axis=1)
    counts, rows = np.count_nonzero(~np.isnan(ordered), axis=1), np.arange(partial)
    results[1, :partial] = (ordered[rows, counts // 2] + ordered[rows, (counts - 1) // 2]) / 2
    for row, share in ((0, 0.05), (2, 0.95)):
        nearest = np.rint((counts - 1) * share).astype(np.int64)
        outer = np.where(counts >= FEWEST, ordered[rows, nearest], np.nan)
        results[row, :partial] = outer
    ranks = [(WINDOW - 1) * percent // 100 for percent in (5, 50, 95)]
    for start in range(partial, len(windows), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        results[:, chunk] = np.partition(windows[chunk], ranks, axis=1)[:, ranks].T
    return results[0], results[1], results[2]
