"""Layers of the verdict's plot: the strip of the same, the narrowing interval, pairs, voids."""

from __future__ import annotations

import math

import numpy as np
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QPainter, QPen

from sessions.numbers import margin_text
from workbench.charts.arrays import Array
from workbench.charts.layers import strokes
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer, dot
from workbench.charts.style import Style, shade

_HATCH_PX = 6.0
_SHOWN_SHARE = 5.0  # % of the dots on either side that the axis need not reach
_DOT_PX = 3.0


class Same(Layer):
    """The strip of ratios that count as the same, and the line of no difference."""

    z = 2.0

    def __init__(self, region: float, style: Style) -> None:
        super().__init__()
        self._region = region
        self._style = style

    def entries(self) -> list[Entry]:
        name = f"the same: ±{margin_text(self._region)}"
        return [Entry(name, "patch", QPen(Qt.PenStyle.NoPen), QBrush(self._color()))]

    def y_span(self) -> tuple[float, float]:
        return 1 - 1.3 * self._region, 1 + 1.3 * self._region

    def draw(self, painter: QPainter, frame: Frame) -> None:
        top, bottom = frame.py(1 + self._region), frame.py(1 / (1 + self._region))
        top, bottom = max(0.0, top), min(frame.height, bottom)
        if bottom > top:
            painter.fillRect(QRectF(0, top, frame.width, bottom - top), self._color())
        middle = frame.py(1.0)
        if 0 <= middle <= frame.height:
            painter.setPen(QPen(shade(self._style.theme.muted), 1))
            painter.drawLine(QPointF(0, middle), QPointF(frame.width, middle))

    def _color(self) -> QColor:
        return shade(self._style.theme.muted, 0.22)


class Narrowing(Layer):
    """The interval after each pair, as a band with the ratio in it."""

    z = 10.0

    def __init__(self, x: Array, ratio: Array, low: Array, high: Array, style: Style) -> None:
        super().__init__()
        self._x, self._ratio, self._low, self._high = x, ratio, low, high
        self._style = style

    def entries(self) -> list[Entry]:
        if not len(self._x):
            return []
        pen = self._style.pen(0)
        return [
            Entry("ratio", "line", pen, QBrush(Qt.BrushStyle.NoBrush)),
            Entry("95 % interval", "band", QPen(Qt.PenStyle.NoPen), QBrush(self._color())),
        ]

    def y_span(self) -> tuple[float, float] | None:
        if not len(self._x):
            return None
        return float(self._low[-1]), float(self._high[-1])

    def draw(self, painter: QPainter, frame: Frame) -> None:
        if not len(self._x):
            return
        # To the right edge of the newest pair, so that a first interval has a width as well.
        x = np.append(frame.px(self._x), frame.px(self._x[-1] + 0.5))
        last = [-1]
        low, high, ratio = (
            np.clip(frame.py(np.concatenate([ends, ends[last]])), -1.0, frame.height + 1.0)
            for ends in (self._low, self._high, self._ratio)
        )
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        strokes.area(painter, QBrush(self._color()), x, high, low, math.inf, frame)
        pen = self._style.pen(0, width=1.3)
        strokes.polyline(painter, pen, x, ratio, math.inf, frame, joined=True)

    def _color(self) -> QColor:
        return self._style.color(0, 0.28)


class PairDots(Layer):
    """The ratio of each pair."""

    z = 30.0

    def __init__(self, x: Array, ratios: Array, style: Style) -> None:
        super().__init__()
        self._x, self._ratios = x, ratios
        self._style = style

    def entries(self) -> list[Entry]:
        if not len(self._x):
            return []
        color = self._style.color(1)
        return [Entry("one pair of blocks", "dots", QPen(color), QBrush(color))]

    def x_span(self) -> tuple[float, float] | None:
        return (0.5, max(8.5, float(self._x[-1]) + 0.5)) if len(self._x) else (0.5, 8.5)

    def y_span(self) -> tuple[float, float] | None:
        if not len(self._x):
            return None
        low, high = np.percentile(self._ratios, [_SHOWN_SHARE, 100 - _SHOWN_SHARE])
        return float(low), float(high)

    def draw(self, painter: QPainter, frame: Frame) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        color = self._style.color(1)
        radius = _DOT_PX * self._style.line_px / 1.5
        for x, y in zip(frame.px(self._x), frame.py(self._ratios), strict=True):
            if not 0 <= x <= frame.width:
                continue
            # A pair beyond the axis lies on its edge, as an arrow head would point.
            dot(painter, QPointF(x, min(max(y, radius), frame.height - radius)), radius, color)


class Voids(Layer):
    """Hatched stripes where a block of the pair did not count."""

    z = 5.0

    def __init__(self, pairs: Array, style: Style) -> None:
        super().__init__()
        self._pairs = pairs
        self._style = style

    def entries(self) -> list[Entry]:
        if not len(self._pairs):
            return []
        brush = QBrush(shade(self._style.theme.warning), Qt.BrushStyle.BDiagPattern)
        return [Entry("void block, repeated", "patch", QPen(Qt.PenStyle.NoPen), brush)]

    def x_span(self) -> tuple[float, float] | None:
        if not len(self._pairs):
            return None
        return float(self._pairs[0]) - 0.5, float(self._pairs[-1]) + 0.5

    def draw(self, painter: QPainter, frame: Frame) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        painter.setPen(QPen(shade(self._style.theme.warning, 0.7), 1))
        for pair in self._pairs:
            left = max(0.0, float(frame.px(pair - 0.5)))
            right = min(frame.width, float(frame.px(pair + 0.5)))
            if right > left:
                painter.drawLines(hatch(left, right, frame.height))


def hatch(left: float, right: float, height: float) -> list[QLineF]:
    """Return strokes of 45 degrees in a stripe: vector files lack pattern brushes."""
    width = right - left
    starts = np.arange(-width, height, _HATCH_PX)
    lines = []
    for start in starts.tolist():
        # The stroke y = start + (right - x), within 0 to the height.
        low, high = max(start, 0.0), min(start + width, height)
        if high > low:
            lines.append(QLineF(right - (low - start), low, right - (high - start), high))
    return lines
