"""Two cursors that measure: a marked range of x with its length, shared by stacked plots."""

from __future__ import annotations

import math

from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QFontMetricsF, QPainter

from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Layer
from workbench.charts.style import Style, shade
from workbench.charts.units import SECONDS

_TINT = 0.14
_MARGIN_PX = 3.0


class MarkedRange(Layer):
    """A tinted range between two lines; ``span`` is None where nothing is marked."""

    z = 55.0

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._style = style
        self.span: tuple[float, float] | None = None
        self.named = False  # write how long it is

    def show_span(self, span: tuple[float, float] | None) -> None:
        """Mark another range, or none."""
        if span != self.span:
            self.span, self.fresh = span, -math.inf
            if self.frame is not None:
                self.settle(self.frame)

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw the part that is in view."""
        if self.span is None:
            return
        first, last = (float(frame.px(end)) for end in self.span)
        left, right = max(0.0, first), min(frame.width, last)
        if right < left:
            return
        accent = self._style.theme.accent
        painter.fillRect(QRectF(left, 0, right - left, frame.height), shade(accent, _TINT))
        for end in (first, last):
            if 0 <= end <= frame.width:
                painter.fillRect(QRectF(round(end), 0, 1, frame.height), shade(accent))
        font = self._style.font(small=True, bold=True)
        metrics = QFontMetricsF(font)
        text = SECONDS.text(self.span[1] - self.span[0], digits=4)
        width = metrics.horizontalAdvance(text)
        if self.named and width + 2 * _MARGIN_PX < right - left:
            middle, bottom = (left + right) / 2, frame.height - metrics.descent() - _MARGIN_PX
            plate = QRectF(
                middle - width / 2 - _MARGIN_PX,
                bottom - metrics.ascent(),
                width + 2 * _MARGIN_PX,
                metrics.height(),
            )
            painter.fillRect(plate, shade(self._style.theme.surface, 0.85))
            painter.setFont(font)
            painter.setPen(shade(self._style.theme.text))
            painter.drawText(QPointF(middle - width / 2, bottom), text)
