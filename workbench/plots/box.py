"""Step times as boxes: the quartiles, the median, and whiskers from the 5th to the 95th percentile.

Only steady steps count. The ticks outside the whiskers are the fastest and the slowest step, if
they are within the axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QFontMetricsF, QPainter, QPen

from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style, shade
from workbench.charts.units import MILLISECONDS, STEPS
from workbench.plots._distributions import (
    Distribution,
    distributions,
    drawn,
    no_steady_steps,
)
from workbench.theming.icons import mixed

_PERCENTS = (0, 5, 25, 50, 75, 95, 100)
_HALF_PX = 13.0


class Box(Layer):
    """One distribution, lying at one height."""

    z = 30.0

    def __init__(self, distribution: Distribution, height: float, style: Style) -> None:
        super().__init__()
        self._distribution = distribution
        self._height = height
        self._style = style
        self._marks = np.percentile(distribution.values, _PERCENTS)

    def x_span(self) -> tuple[float, float]:
        """Return the ends of the whiskers."""
        return float(self._marks[1]), float(self._marks[5])

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw whiskers, box, median and, where there is room, its value."""
        style = self._style
        color = style.color(self._distribution.color)
        least, low, first, middle, third, high, most = frame.px(self._marks).tolist()
        y = frame.py(self._height)
        row = abs(frame.height / (frame.y[1] - frame.y[0]))
        half = min(_HALF_PX, 0.32 * row)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        pen = QPen(color, style.line_px)
        painter.setPen(pen)
        painter.drawLine(QPointF(max(0.0, low), y), QPointF(min(high, frame.width), y))
        for x, size in ((low, 0.5), (high, 0.5), (least, 0.25), (most, 0.25)):
            if 0 <= x <= frame.width:
                painter.drawLine(QPointF(x, y - size * half), QPointF(x, y + size * half))
        left, right = np.clip([first, third], 0, frame.width)
        # Opaque, so that the whisker does not show through.
        painter.setBrush(shade(mixed(color.name(), style.theme.surface, 0.35)))
        painter.drawRect(QRectF(left, y - half, max(1.0, right - left), 2 * half))
        if 0 <= middle <= frame.width:
            painter.setPen(QPen(shade(style.theme.text), 2 * style.line_px))
            painter.drawLine(QPointF(middle, y - half), QPointF(middle, y + half))
        font = style.font()
        painter.setFont(font)
        metrics = QFontMetricsF(font)
        text = MILLISECONDS.text(float(self._marks[3]))
        width = metrics.horizontalAdvance(text)
        text_left = min(high, frame.width) + 10
        if text_left + width > frame.width:
            text_left = max(0.0, low) - 10 - width
        if text_left < 0:  # no room beside it
            if self._height < 0 and row < 2 * half + metrics.height():
                return  # above it would lie on another box
            text_left = min(max(0.0, middle - width / 2), frame.width - width)
            y = max(metrics.height() / 2, y - half - metrics.height() / 2)  # none is cut off
        plate = QRectF(text_left - 3, y - metrics.height() / 2, width + 6, metrics.height())
        painter.fillRect(plate, shade(style.theme.surface))
        painter.setPen(shade(style.theme.text))
        painter.drawText(QPointF(text_left, y + (metrics.ascent() - metrics.descent()) / 2), text)


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw one box per segment, the first on top."""
    boxes = drawn(runs, plot_item)
    left = plot_item.axis("left")
    left.categories = [(-float(row), item.label) for row, item in enumerate(boxes)]
    plot_item.describe((MILLISECONDS, "Step time"), (STEPS, ""))
    plot_item.fixed_y = (-len(boxes) + 0.4, 0.6)
    plot_item.pad_x = 0.16
    for row, distribution in enumerate(boxes):
        plot_item.add(Box(distribution, -float(row), style))


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return the percentiles that are drawn, in milliseconds."""
    shown = distributions(runs)
    marks = np.array([np.percentile(item.values, _PERCENTS) for item in shown]).reshape(-1, 7)
    names = ("minimum", "p5", "p25", "median", "p75", "p95", "maximum")
    return {
        "distribution": np.array([item.label for item in shown], dtype=object),
        "steps": np.array([len(item.values) for item in shown], dtype=np.int64),
        **{f"{name}_ms": marks[:, column] for column, name in enumerate(names)},
    }


PLOT = Plot(
    name="box",
    title="Step times by configuration",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=no_steady_steps,
    axis="value",
)
