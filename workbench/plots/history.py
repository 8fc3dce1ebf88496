"""Step time over the commits of a project, relative to a baseline; below 1 is faster.

A filled dot with a bar is a paired comparison with the baseline and its 95 % interval. A hollow dot
was measured at a different time than the baseline, and proves nothing. A vertical line marks a
step: a commit whose interval excludes that of the commit before it, of the same baseline and
machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QBrush, QPainter, QPen

from sessions.history import Point, history, step_text
from sessions.verdicts.ratios import PAIRED
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style
from workbench.charts.units import RATIO, STEPS

_RADIUS_PX = 4.0


class Commits(Layer):
    """A dot for each commit, its interval, and the steps."""

    z = 30.0

    def __init__(self, points: Sequence[Point], style: Style) -> None:
        super().__init__()
        self._points, self._style = points, style

    def x_span(self) -> tuple[float, float]:
        """Return the numbers of the first and the last commit, with room beside them."""
        return 0.5, len(self._points) + 0.5

    def y_span(self) -> tuple[float, float]:
        """Return the lowest and the highest end of all intervals; 1 lies within."""
        ends = [(point.ratio, point.low, point.high) for point in self._points]
        return min(1.0, float(np.nanmin(ends))), max(1.0, float(np.nanmax(ends)))

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw the commits from left to right."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        color, step_color = self._style.color(0), self._style.color(1)
        for number, point in enumerate(self._points, 1):
            x, y = float(frame.px(number)), float(frame.py(point.ratio))
            if point.step:
                painter.setPen(QPen(step_color, self._style.line_px, Qt.PenStyle.DashLine))
                between = float(frame.px(number - 0.5))
                painter.drawLine(QPointF(between, 0), QPointF(between, frame.height))
            painter.setPen(QPen(color, self._style.line_px))
            painter.setBrush(QBrush(color) if point.source == PAIRED else Qt.BrushStyle.NoBrush)
            if point.source == PAIRED:
                low, high = (float(frame.py(end)) for end in (point.low, point.high))
                painter.drawLine(QPointF(x, low), QPointF(x, high))
            painter.drawEllipse(QPointF(x, y), _RADIUS_PX, _RADIUS_PX)


def points_of(runs: Sequence[Run]) -> list[Point]:
    """Return the points of the sessions that are shown."""
    return history([run.session for run in runs], [run.title for run in runs])[0]


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw every commit, the oldest on the left."""
    points = points_of(runs)
    plot_item.describe((STEPS, "Session, by time"), (RATIO, "Step time, over the baseline's"))
    plot_item.zero = False
    plot_item.add(Commits(points, style))


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return the ratio and the interval of every commit."""
    points = points_of(runs)
    return {
        "session": np.array([point.title for point in points], object),
        "commit": np.array([point.commit for point in points], object),
        "created": np.array([point.created for point in points]),
        **{
            name: np.array([getattr(point, name) for point in points])
            for name in ("ratio", "low", "high")
        },
        "baseline": np.array([point.baseline for point in points], object),
        "basis": np.array([point.source for point in points], object),
        "step": np.array([step_text(point) for point in points], object),
    }


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show, if so."""
    if len(points_of(runs)) < 2:
        return "A history needs two sessions of one configuration."
    return None


PLOT = Plot(
    name="history",
    title="Step time over commits",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
)
