"""Layers of tracks: lines, bands and samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QPainter, QPen

from workbench.charts.arrays import Array
from workbench.charts.layers import strokes
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.series.sources import Source
from workbench.charts.series.tracks import View
from workbench.charts.style import Style
from workbench.charts.units import Unit


@dataclass(frozen=True)
class Look:
    """The appearance of a layer of tracks."""

    name: str
    style: Style
    unit: Unit
    color: int
    dash: int | None = None  # None: the colour's own
    width: float = 1.0
    alpha: float = 1.0


class TrackLayer(Layer):
    """Base of the layers that show tracks: ``tracks`` is called at every pull.

    ``scales``: the y axis follows it. ``shown_as``: what one unit of the view is worth in the
    look's unit, for a layer that belongs to the right axis.
    """

    mark = "line"

    def __init__(
        self,
        appearance: Look,
        tracks: Callable[[], Sequence[Source]],
        *,
        scales: bool = True,
        shown_as: float = 1.0,
    ) -> None:
        super().__init__()
        self.in_legend = True
        self._shown_as = shown_as
        self.style = appearance.style
        self.appearance = appearance
        self.scales = scales
        self._tracks = tracks
        self._shown: Sequence[Source] = ()
        self._last_spans: dict[tuple[str, int], tuple[float, float]] = {}
        self._views: list[tuple[View, float]] = []
        self._extremes: tuple[float, float] | None = None
        self._entry: Entry | None = None

    def pull(self) -> None:
        self._shown = self._pulled(self._tracks())

    def _pulled(self, tracks: Sequence[Source], kind: str = "") -> list[Source]:
        """Pull the tracks and lower ``fresh`` to the first x that changed."""
        shown: list[Source] = []
        for track in tracks:
            track.pull()
            after = track.span
            if after is None:
                continue
            shown.append(track)
            last_span = self._last_spans.get(track_key := (kind, len(shown)))
            if last_span is None or last_span[0] != after[0]:
                self.fresh = -np.inf
            elif last_span != after:
                self.fresh = min(self.fresh, last_span[1])
            self._last_spans[track_key] = after
        return shown

    def x_span(self) -> tuple[float, float] | None:
        spans = [track.span for track in self._shown if track.span is not None]
        if not spans:
            return None
        return min(span[0] for span in spans), max(span[1] for span in spans)

    def decimate(self, frame: Frame) -> None:
        start, stop = frame.x
        self._views = [
            (view, max(track.gap, 2 * frame.bin) if view.dense else track.gap)
            for track in self._shown
            if _overlaps(track, start, stop)
            for view in (track.view(start, stop, frame.bin),)
        ]
        self._extremes = self._find_extremes()

    def extremes(self) -> tuple[float, float] | None:
        """Return lowest and highest finite value in view."""
        return self._extremes

    def extremes_within(self, low: float, high: float) -> tuple[float, float]:
        """Return lowest and highest value from ``low`` to ``high``; inf and -inf without any."""
        values = [bound for view, _ in self._views for bound in (view.low, view.high)]
        bounds = np.concatenate([np.empty(0), *values])
        bounds = bounds[(bounds >= low) & (bounds <= high)]
        return float(bounds.min(initial=np.inf)), float(bounds.max(initial=-np.inf))

    def _find_extremes(self) -> tuple[float, float] | None:
        views = [view for view, _ in self._views if len(view.low)]
        if not views:
            return None
        low = min(float(np.fmin.reduce(view.low)) for view in views)
        high = max(float(np.fmax.reduce(view.high)) for view in views)
        return (low, high) if np.isfinite(low) and np.isfinite(high) else None

    def y_span(self) -> tuple[float, float] | None:
        return self.extremes() if self.scales else None

    def reading(self, x: float) -> str:
        """Return the value at ``x`` as text; NaN means the newest."""
        return self.appearance.unit.text(self.value(x) * self._shown_as)

    def value(self, x: float) -> float:
        """Return the value at ``x``; NaN means the newest."""
        return _value(self._shown, x)

    def entries(self) -> list[Entry]:
        if not self.in_legend or (self.extremes() is None and not self._has_values()):
            return []
        if self._entry is None:
            self._entry = self._new_entry()
        return [self._entry]

    def _new_entry(self) -> Entry:
        pen, brush = self.pens()
        widest = self.appearance.unit.text(-888.8 / self.appearance.unit.scale)
        return Entry(self.appearance.name, self.mark, pen, brush, self.reading, widest)

    def pens(self) -> tuple[QPen, QBrush]:
        """Return the pen and brush that draw the layer."""
        appearance = self.appearance
        pen = appearance.style.pen(appearance.color, appearance.dash, appearance.width)
        return pen, QBrush(Qt.BrushStyle.NoBrush)

    def _pixels(self, view: View, frame: Frame) -> tuple[Array, Array, Array]:
        """Return x, top and bottom in pixels, of the painted range and a little beyond."""
        per_px = (frame.x[1] - frame.x[0]) / frame.width
        start = frame.x[0] + (self.exposed[0] - _BEYOND_PX) * per_px
        stop = frame.x[0] + (self.exposed[1] + _BEYOND_PX) * per_px
        first = max(0, int(np.searchsorted(view.x, start)) - 1)
        part = slice(first, int(np.searchsorted(view.x, stop)) + 1)
        return frame.px(view.x[part]), frame.py(view.high[part]), frame.py(view.low[part])

    def _has_values(self) -> bool:
        return bool(np.isfinite(_value(self._shown, float("nan"))))


class Line(TrackLayer):
    """A line through the values, broken at NaN and at gaps."""

    z = 30.0

    def draw(self, painter: QPainter, frame: Frame) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        pen, _ = self.pens()
        for view, gap in self._views:
            x, top, bottom = self._pixels(view, frame)
            gap_px = gap * frame.width / (frame.x[1] - frame.x[0])
            if view.dense and not self.style.paper:
                if view.height > _RAGGED_PX * (frame.y[1] - frame.y[0]) / frame.height:
                    strokes.ragged(painter, pen, x, top, bottom, gap_px, frame)
                    continue
                x, y = x, (top + bottom) / 2
                strokes.polyline(painter, pen, x, y, gap_px, frame, joined=False)
                continue
            dense, least_px = view.dense, self.style.least_px
            if len(x) > 2 and len(x) * least_px > 2 * (x[-1] - x[0]):
                x, top, bottom = strokes.merged(x, top, bottom, gap_px, least_px)
                dense, gap_px = True, max(gap_px, 2 * least_px)
            x, y = strokes.zigzag(x, top, bottom) if dense else (x, top)
            strokes.polyline(painter, pen, x, y, gap_px, frame, joined=self.style.paper)


class Band(TrackLayer):
    """The area between two tracks of the same places, such as the 5th and 95th percentile."""

    z = 10.0
    mark = "band"

    def __init__(
        self,
        appearance: Look,
        lows: Callable[[], Sequence[Source]],
        highs: Callable[[], Sequence[Source]],
    ) -> None:
        super().__init__(appearance, lows)
        self._highs = highs
        self._shown_highs: Sequence[Source] = ()

    def pull(self) -> None:
        super().pull()
        self._shown_highs = self._pulled(self._highs(), "high")

    def decimate(self, frame: Frame) -> None:
        super().decimate(frame)
        start, stop = frame.x
        highs = [
            track.view(start, stop, frame.bin)
            for track in self._shown_highs
            if _overlaps(track, start, stop)
        ]
        self._views = [
            (View(low.x, low.low, high.high, low.dense), gap)
            for (low, gap), high in zip(self._views, highs, strict=True)
        ]
        self._extremes = self._find_extremes()

    def reading(self, x: float) -> str:
        low, high = _value(self._shown, x), _value(self._shown_highs, x)
        if not (np.isfinite(low) and np.isfinite(high)):
            return "–"
        unit = self.appearance.unit
        first, last = unit.text(min(low, high)), unit.text(max(low, high))
        number, _, symbol = first.partition(" ")
        return f"{number}–{last}" if last.endswith(f" {symbol}") else f"{first} – {last}"

    def _new_entry(self) -> Entry:
        return dataclasses.replace(super()._new_entry(), widest="888–888 ms/s")

    def pens(self) -> tuple[QPen, QBrush]:
        appearance = self.appearance
        color = appearance.style.color(appearance.color, appearance.alpha)
        return QPen(Qt.PenStyle.NoPen), QBrush(color)

    def draw(self, painter: QPainter, frame: Frame) -> None:
        # Flat edges of a translucent area look the same without antialiasing, at half the cost.
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, self.style.paper)
        _, brush = self.pens()
        for view, gap in self._views:
            gap_px = gap * frame.width / (frame.x[1] - frame.x[0])
            x, top, bottom = self._pixels(view, frame)
            strokes.area(painter, brush, x, top, bottom, gap_px, frame)


class Samples(TrackLayer):
    """Every sample: faint points while they can be told apart, else the range of each column."""

    z = 20.0
    mark = "dots"

    def pens(self) -> tuple[QPen, QBrush]:
        appearance = self.appearance
        color = appearance.style.color(appearance.color, appearance.alpha)
        pen = QPen(color, 1.7 * appearance.style.line_px)
        pen.setCapStyle(Qt.PenCapStyle.RoundCap)
        return pen, QBrush(color)

    def draw(self, painter: QPainter, frame: Frame) -> None:
        pen, brush = self.pens()
        wide = QPen(pen)
        wide.setWidthF(2 * pen.widthF())
        for view, gap in self._views:
            x, top, bottom = self._pixels(view, frame)
            if not view.dense:
                painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
                few = len(view.x) <= _FEW
                strokes.points(painter, wide if few else pen, x, top, frame)
            elif self.style.paper:
                painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
                gap_px = gap * frame.width / (frame.x[1] - frame.x[0])
                strokes.area(painter, brush, x, top, bottom, gap_px, frame)
            else:
                painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
                strokes.columns(painter, QPen(brush.color(), 1), x, top, bottom, frame)


_BEYOND_PX = 6.0
_RAGGED_PX = 2.0  # mean height of a dense view's places from which it is not a thin line
_FEW = 60  # samples, that may be drawn larger


def _overlaps(track: Source, start: float, stop: float) -> bool:
    return track.span is not None and track.span[0] <= stop and track.span[1] >= start


def _value(tracks: Sequence[Source], x: float) -> float:
    """Return the value at ``x`` of the track that began last before it; the newest for NaN."""
    started = [track for track in tracks if track.span is not None and not x < track.span[0]]
    if not started:
        return float("nan")
    track = max(started, key=lambda track: track.span or (0.0, 0.0))
    return track.at(track.span[1] if np.isnan(x) and track.span else x)
