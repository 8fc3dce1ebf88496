"""Every number that the model reports about itself, over time: one band for each number.

The rows of the metric run from top to bottom, and each row contains its columns. Dark is low,
bright is high. If readings are closer together than pixels, one of them is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QImage, QPainter, QPen

from sessions.model import MetricSeries
from workbench.charts import time_axis
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.scale import scale_color
from workbench.charts.style import Style
from workbench.charts.units import SECONDS, STEPS
from workbench.plots._metrics import (
    Measured,
    Number,
    choices,
    chosen,
    key,
    latest,
    no_metrics,
    part,
    series_of,
    table,
)
from workbench.plots._steps import add_timeline

_SHADES = 32
_PLACE_PX = {False: 2.0, True: 6.0}  # width of a reading at least, by whether it is on paper
_LABELS = {False: 5, True: 12}


class Heat(Layer):
    """The bands of one metric; ``bands`` of them fit between y = 0 and y = -bands."""

    z = 2.0  # over the phases, under segments and markers

    def __init__(self, run: Run, name: str, bands: int, style: Style) -> None:
        super().__init__()
        self._run, self._name, self._bands, self._style = run, name, bands, style
        self._unit = Number(latest([run], name).unit)
        self._measured: list[Measured] = []
        self._readings = -1
        self._limits = (math.nan, math.nan)
        self._shades: Array = np.empty((0, 0), np.int8)  # (bands, places); below 0: nothing there

    def pull(self) -> None:
        """Add new readings, and update their lowest and highest value."""
        self._measured = series_of(self._run, self._name)
        readings = sum(len(series.table["t_s"]) for _, series in self._measured)
        if readings != self._readings:
            self._readings = readings
            self.fresh = -math.inf
            self._limits = self._find_limits()

    def x_span(self) -> tuple[float, float] | None:
        """Return the times of the first and the last reading."""
        times = [series.table["t_s"] for _, series in self._measured if len(series.table["t_s"])]
        if not times:
            return None
        axis = self._run.axis
        return axis.position(float(times[0][0])), axis.position(float(times[-1][-1]))

    def decimate(self, frame: Frame) -> None:
        """Compute the shade of every band at every column of pixels."""
        count = max(1, math.ceil(frame.width / _PLACE_PX[self._style.paper]))
        places = frame.x[0] + (np.arange(count) + 0.5) * (frame.x[1] - frame.x[0]) / count
        times = self._run.axis.times_s(places)
        values = np.full((count, self._bands), np.nan, np.float32)
        starts = [segment.start_s for segment in self._run.session.segments]
        for segment, series in self._measured:
            following = [start_s for start_s in starts if start_s > segment.start_s]
            covered, readings = _readings_at(series, times, min(following, default=math.inf))
            bands = min(self._bands, math.prod(series.shape))
            # For no readings, reshape cannot infer -1.
            flat = readings.reshape(len(readings), math.prod(series.shape))
            values[covered, :bands] = flat[:, :bands]
        self._shades = _shades(values, *self._limits).T

    def entries(self) -> list[Entry]:
        """Return the scale: lowest, middle, highest."""
        low, high = self._limits
        if not math.isfinite(low):
            return []
        scale = {self._unit.text(low): 0.0, self._unit.text((low + high) / 2): 0.5}
        scale[self._unit.text(high)] = 1.0
        return [
            Entry(text, "patch", QPen(Qt.PenStyle.NoPen), QBrush(scale_color(share)))
            for text, share in (scale.items() if low < high else [(self._unit.text(low), 0.5)])
        ]

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw an image on the screen, and rectangles on paper, which stays vector."""
        if not self._shades.size:
            return
        if self._style.paper:
            self._draw_rectangles(painter, frame)
            return
        colors = np.append(_palette(), np.uint32(0))
        pixels = np.ascontiguousarray(colors[self._shades])  # -1 is the last: transparent
        bands, places = pixels.shape
        image = QImage(pixels.data, places, bands, 4 * places, QImage.Format.Format_ARGB32)
        painter.drawImage(QRectF(0, 0, frame.width, frame.height), image)

    def _draw_rectangles(self, painter: QPainter, frame: Frame) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        bands, places = self._shades.shape
        height, width = frame.height / bands, frame.width / places
        seam = 0.5  # over the next one, or readers of PDF show the ground between them
        for band, row in enumerate(self._shades):
            starts = np.flatnonzero(np.diff(row, prepend=row[0] - 1))
            for start, stop in zip(starts, [*starts[1:], places], strict=True):
                if row[start] >= 0:
                    color = scale_color(row[start] / (_SHADES - 1))
                    right = min((stop * width) + seam, frame.width)
                    bottom = min((band + 1) * height + seam, frame.height)
                    top_left = QPointF(start * width, band * height)
                    painter.fillRect(QRectF(top_left, QPointF(right, bottom)), color)

    def _find_limits(self) -> tuple[float, float]:
        low, high = math.inf, -math.inf
        for _, series in self._measured:
            values = np.asarray(series.table["values"])
            finite = values[np.isfinite(values)]
            if finite.size:
                low, high = min(low, float(finite.min())), max(high, float(finite.max()))
        return (low, high) if low <= high else (math.nan, math.nan)


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, metric: str = "") -> None:
    """Draw one map of one session."""
    name = chosen(runs, metric)
    series = latest(runs, name)
    bands = max(math.prod(s.shape) for run in runs for _, s in series_of(run, name))
    plot_item.describe((SECONDS, time_axis.TITLE), (STEPS, series.title))
    plot_item.fixed_y = (-float(bands), 0.0)
    plot_item.axis("left").categories = _labels(series, _LABELS[style.paper])
    notes = [plot_item.header.subtitle, series.title]
    notes += [f"{series.shape[1]} {series.column or 'value'}s per {series.row or 'row'}"] * (
        min(series.shape) > 1
    )
    plot_item.header.subtitle = ", ".join(filter(None, notes))
    add_timeline(plot_item, runs, style)
    plot_item.add(Heat(runs[0], name, bands, style))


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if one session has metrics."""
    if len(runs) > 1:
        return f"The map shows one session, but {len(runs)} were given."
    return no_metrics(runs)


def _labels(series: MetricSeries, most: int) -> list[tuple[float, str]]:
    """Return the names of some rows (of columns if there is one row) at their middle."""
    rows, columns = series.shape
    count, height, noun = (rows, columns, series.row) if rows > 1 else (columns, 1, series.column)
    every = -(-count // most)
    return [
        (-(number + 0.5) * height, part(noun, number, "row") if count > 1 else series.title)
        for number in range(0, count, every)
    ]


def _readings_at(series: MetricSeries, places: Array, stop_s: float) -> tuple[Array, Array]:
    """Return the indices of ``places`` that lie within a reading's time, and those readings.

    A reading lasts until the next, the last one for the median distance, and none beyond
    ``stop_s``.
    """
    t_s = series.table["t_s"]
    if not len(t_s):
        return np.empty(0, int), np.empty((0, *series.shape), np.float32)
    held_s = float(np.median(np.diff(t_s))) if len(t_s) > 1 else 0.25
    last = np.searchsorted(t_s, places, side="right") - 1
    covered = np.flatnonzero((last >= 0) & (places <= min(t_s[-1] + held_s, stop_s)))
    return covered, np.asarray(series.table["values"][last[covered]])


def _shades(values: Array, low: float, high: float) -> Array:
    """Return the numbers as shades 0 to 31, -1 for a missing number."""
    span = high - low
    share = (values - low) / span if span > 0 else np.where(np.isfinite(values), 0.5, np.nan)
    known = np.isfinite(share)
    return np.where(known, np.where(known, share, 0) * (_SHADES - 1), -1).round().astype(np.int8)


def _palette() -> Array:
    return np.array(
        [scale_color(number / (_SHADES - 1)).rgb() for number in range(_SHADES)], np.uint32
    )


PLOT = Plot(
    name="model_metrics_map",
    title="Model metrics, map",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="time",
    choices_in=choices,
    key=key,
)
