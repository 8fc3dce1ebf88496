"""A min/max pyramid: what a million samples look like at any zoom, in microseconds.

Level k holds the minimum and maximum of every ``BRANCH ** k`` samples in a row; appending touches
only the blocks at the end. A query reads the coarsest level that still gives each bin several
blocks, so its cost depends on the number of bins and not on the number of samples. NaN samples are
ignored; a bin of nothing but NaN is NaN.
"""

from __future__ import annotations

import numpy as np

from workbench.charts.arrays import Array

BRANCH = 16
# A bin made of fewer blocks would have its edges moved visibly by rounding them to whole blocks.
_BLOCKS_PER_BIN = 4


class _Level:
    """Minima and maxima of blocks, in growable arrays; the last block may still be filling."""

    def __init__(self) -> None:
        self._low = np.empty(64, np.float32)
        self._high = np.empty(64, np.float32)
        self.blocks = 0

    @property
    def low(self) -> Array:
        return self._low[: self.blocks]

    @property
    def high(self) -> Array:
        return self._high[: self.blocks]

    def rewrite(self, first: int, low: Array, high: Array) -> None:
        """Replace the blocks from ``first`` on by these."""
        end = first + len(low)
        if end > len(self._low):
            capacity = max(end, 2 * len(self._low))
            self._low = np.concatenate([self.low, np.empty(capacity - self.blocks, np.float32)])
            self._high = np.concatenate([self.high, np.empty(capacity - self.blocks, np.float32)])
        self._low[first:end] = low
        self._high[first:end] = high
        self.blocks = end


class Pyramid:
    """Minima and maxima of a growing series; holds no copy of the series itself."""

    def __init__(self) -> None:
        self._levels: list[_Level] = []
        self.rows = 0

    def extend(self, values: Array) -> None:
        """Add ``values[self.rows:]``; ``values`` (n,) is the whole series so far."""
        before, self.rows = self.rows, len(values)
        if self.rows <= before:
            self.rows = before
            return
        low = high = values
        level = 0
        while len(low) > BRANCH:
            if level == len(self._levels):
                self._levels.append(_Level())
                before = 0
            first = before // BRANCH
            self._levels[level].rewrite(
                first,
                _reduce(np.fmin, low[first * BRANCH :]),
                _reduce(np.fmax, high[first * BRANCH :]),
            )
            low, high = self._levels[level].low, self._levels[level].high
            before = first
            level += 1

    def query(self, values: Array, edges: Array) -> tuple[Array, Array, Array]:
        """Return minimum and maximum between neighbouring ``edges`` (ascending sample numbers).

        Returns ``(starts, low, high)``: the first sample of every bin that is left when the inner
        edges are rounded down to whole blocks and empty bins are dropped. The bins cover
        ``edges[0]`` to ``edges[-1]`` without gap or overlap, up to that rounding.
        """
        edges = np.asarray(edges, np.int64)
        bins = max(1, len(edges) - 1)
        samples_per_bin = (int(edges[-1]) - int(edges[0])) / bins
        level, block = 0, 1
        while level < len(self._levels) and samples_per_bin >= block * BRANCH * _BLOCKS_PER_BIN:
            level += 1
            block *= BRANCH
        if level == 0:
            return reduce_bins(values, edges)
        blocks = edges // block
        blocks[-1] = -(-int(edges[-1]) // block)
        store = self._levels[level - 1]
        starts, low, high = reduce_bins(store.low, blocks, store.high)
        return starts * block, low, high


def reduce_bins(
    values: Array, edges: Array, highest: Array | None = None
) -> tuple[Array, Array, Array]:
    """Compute lowest of ``values`` and highest of ``highest`` (or of ``values``) between the edges.

    Returns ``(starts, low, high)`` of the bins that are not empty; ``edges`` ascend.
    """
    starts, end = edges[:-1], int(edges[-1])
    # Ascending already: np.unique would sort, which took longer than all the rest.
    starts = starts[starts < edges[1:]]
    if not len(starts):
        empty = np.empty(0, np.float32)
        return starts, empty, empty
    low = np.fmin.reduceat(values[:end], starts)
    high = np.fmax.reduceat((values if highest is None else highest)[:end], starts)
    return starts, low, high


def _reduce(function: np.ufunc, values: Array) -> Array:
    """Reduce every ``BRANCH`` values with ``function``; the last group may be shorter."""
    complete = len(values) // BRANCH * BRANCH
    reduced: Array = function.reduce(values[:complete].reshape(-1, BRANCH), axis=1)
    if complete == len(values):
        return reduced
    return np.append(reduced, function.reduce(values[complete:]))
