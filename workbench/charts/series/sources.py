"""Sources of a layer: a track, or a track in other units or from another origin."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from workbench.charts.series.tracks import View


class Source(Protocol):
    """Samples in order of x, decimated on demand."""

    @property
    def span(self) -> tuple[float, float] | None:
        """First and last place of a sample; None while there is none."""

    @property
    def gap(self) -> float:
        """Distance in x from which two neighbours are not joined by a line."""

    def pull(self) -> None:
        """Take in what is new."""

    def view(self, start: float, stop: float, width: float) -> View:
        """Return what is to be seen between ``start`` and ``stop``, in bins of ``width``."""

    def at(self, x: float) -> float:
        """Return the value of the last sample at or before ``x``; NaN if there is none near."""


class Inverse:
    """``factor`` divided by a track: throughput from step time, read from the same pyramid."""

    def __init__(self, track: Source, factor: float) -> None:
        self._track = track
        self._factor = factor

    @property
    def span(self) -> tuple[float, float] | None:
        """First and last place of a sample; None while there is none."""
        return self._track.span

    @property
    def gap(self) -> float:
        """Distance in x from which two neighbours are not joined by a line."""
        return self._track.gap

    def pull(self) -> None:
        """Take in what is new."""
        self._track.pull()

    def view(self, start: float, stop: float, width: float) -> View:
        """Return the track's view; the fastest step of a bin is its highest throughput."""
        view = self._track.view(start, stop, width)
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = self._factor / view.high, self._factor / view.low
        low[~np.isfinite(low)] = np.nan
        high[~np.isfinite(high)] = np.nan
        return View(view.x, low, high, view.dense)

    def at(self, x: float) -> float:
        """Return the throughput at ``x``."""
        value = self._track.at(x)
        return self._factor / value if value else float("nan")


class Moved:
    """A track whose x is counted from another origin and whose y is multiplied."""

    def __init__(self, track: Source, offset: float = 0.0, factor: float = 1.0) -> None:
        self._track = track
        self._offset = offset
        self._factor = factor

    @property
    def span(self) -> tuple[float, float] | None:
        """First and last place of a sample; None while there is none."""
        span = self._track.span
        return None if span is None else (span[0] + self._offset, span[1] + self._offset)

    @property
    def gap(self) -> float:
        """Distance in x from which two neighbours are not joined by a line."""
        return self._track.gap

    def pull(self) -> None:
        """Take in what is new."""
        self._track.pull()

    def view(self, start: float, stop: float, width: float) -> View:
        """Return the track's view in other units."""
        view = self._track.view(start - self._offset, stop - self._offset, width)
        low, high = view.low * self._factor, view.high * self._factor
        return View(view.x + self._offset, low, high, view.dense)

    def at(self, x: float) -> float:
        """Return the value at ``x`` in other units."""
        return self._track.at(x - self._offset) * self._factor
