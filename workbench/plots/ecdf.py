"""Share of the steady steps up to each step time: the complete distribution, not its mean.

A curve further left is faster; a steep curve means even step times. If two curves cross, one
configuration may have the faster median and the other one the shorter tail.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QPainter

from sessions.verdicts.statistics import ecdf
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers import strokes
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style
from workbench.charts.units import MILLISECONDS, PERCENT
from workbench.plots._distributions import (
    Distribution,
    distribution_table,
    drawn,
    no_steady_steps,
)

_LABEL = 40  # characters of a label; more are left out in its middle
_RANKS = 2000  # points of a long distribution; more than a curve has pixels
_TAIL = 0.995  # the axis ends where the slowest of the distributions reaches this share


class Curve(Layer):
    """The share of steps up to each time."""

    z = 30.0

    def __init__(self, distribution: Distribution, style: Style) -> None:
        super().__init__()
        self._distribution = distribution
        self._style = style
        times_ms, shares = ecdf(distribution.values, _RANKS)
        # A stair: up at each value, level between them.
        self._x = np.repeat(times_ms, 2)
        self._y = np.concatenate([[0.0], np.repeat(shares, 2)[:-1]]) * 100

    def entries(self) -> list[Entry]:
        """Return the segment's name; its reading is the median without a pointer."""
        pen = self._style.pen(self._distribution.color)
        no_brush = QBrush(Qt.BrushStyle.NoBrush)
        label = self._distribution.label
        if len(label) > _LABEL and not self._style.paper:  # there, the legend shortens it
            label = f"{label[: _LABEL - 12]}…{label[-11:]}"
        tail = f" ({self._median()})" if self._style.paper else ""
        return [Entry(label, "line", pen, no_brush, self._reading, "median 100 ms", tail)]

    def _median(self) -> str:
        return f"median {MILLISECONDS.text(float(np.median(self._distribution.values)))}"

    def x_span(self) -> tuple[float, float]:
        """Return the range from the fastest step to the start of the slow tail."""
        values = self._distribution.values
        return float(values[0]), float(values[int(_TAIL * (len(values) - 1))])

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw the stair, level beyond its ends."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        pen = self._style.pen(self._distribution.color)
        x, y = frame.px(self._x), frame.py(self._y)
        x = np.concatenate([[min(0.0, x[0])], x, [max(frame.width, x[-1])]])
        y = np.concatenate([[frame.py(0.0)], y, [frame.py(100.0)]])
        strokes.polyline(painter, pen, x, y, np.inf, frame, joined=True)

    def _reading(self, x: float) -> str:
        values = self._distribution.values
        if np.isnan(x):
            return self._median()
        share = np.searchsorted(values, x, side="right") / len(values)
        return PERCENT.text(100 * float(share))


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw one stair per segment."""
    plot_item.describe((MILLISECONDS, "Step time"), (PERCENT, "Share of steps"))
    plot_item.fixed_y = (0.0, 101.0)
    plot_item.pad_x = 0.04
    for distribution in drawn(runs, plot_item):
        plot_item.add(Curve(distribution, style))


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return every steady step in ascending order."""
    return distribution_table(runs)


PLOT = Plot(
    name="ecdf",
    title="Distribution of step times",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=no_steady_steps,
    axis="value",
)
