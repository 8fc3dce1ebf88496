"""Shading of the stretches that were not steady: building, compiling, warming up."""

from __future__ import annotations

import math

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter, QPen

from sessions.model import Phase, PhaseSpan
from workbench.ui.plots._layers import Entry, Frame, Layer
from workbench.ui.plots._plot import Run
from workbench.ui.style import Style, shade

_ALPHA = 0.16


class Phases(Layer):
    """One translucent area per phase other than steady, named inside where there is room."""

    z = 0.0

    def __init__(self, run: Run, style: Style) -> None:
        super().__init__()
        self._run = run
        self._style = style
        self._spans: list[PhaseSpan] = []

    def pull(self) -> None:
        spans: list[PhaseSpan] = []
        for segment in self._run.chosen():
            for span in segment.phases:
                if span.phase == Phase.STEADY or span.stop_s <= span.start_s:
                    continue
                last = spans[-1] if spans else None
                if last and last.phase == span.phase and span.start_s <= last.stop_s:
                    spans[-1] = PhaseSpan(span.phase, last.start_s, max(last.stop_s, span.stop_s))
                else:
                    spans.append(span)
        if spans != self._spans:
            self.fresh = -math.inf
        self._spans = spans

    def entries(self) -> list[Entry]:
        present = sorted({span.phase for span in self._spans if span.phase in set(Phase)})
        return [
            Entry(
                Phase(phase).title,
                "patch",
                QPen(shade(self._style.theme.phases[phase], 0.7), 1),
                QBrush(shade(self._style.theme.phases[phase], 2 * _ALPHA)),
            )
            for phase in present
        ]

    def draw(self, painter: QPainter, frame: Frame) -> None:
        style = self._style
        scale = frame.width / (frame.x[1] - frame.x[0])
        for span in self._spans:
            if not 0 <= span.phase < len(style.theme.phases):
                continue
            left = max(0.0, (span.start_s - frame.x[0]) * scale)
            right = min(frame.width, (span.stop_s - frame.x[0]) * scale)
            if right < max(0.0, self.exposed[0]) or left > min(frame.width, self.exposed[1]):
                continue
            font = style.font(small=True)
            metrics = QFontMetricsF(font)
            color = style.theme.phases[span.phase]
            width = max(1.0, right - left)
            painter.fillRect(QRectF(left, 0, width, frame.height), shade(color, _ALPHA))
            text = Phase(span.phase).title
            if width > metrics.horizontalAdvance(text) + 8 and frame.height > 60:
                painter.setFont(font)
                painter.setPen(shade(style.theme.muted))
                painter.drawText(QPointF(left + 4, 3 + metrics.ascent()), text)
        painter.setPen(Qt.PenStyle.NoPen)
