"""Shading of the stretches that were not steady: building, compiling, warming up."""

from __future__ import annotations

import math
from collections.abc import Iterator

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter, QPen

from sessions.model import Phase, PhaseSpan
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.runs import Run
from workbench.charts.style import Style, shade

_ALPHA = 0.16


class Phases(Layer):
    """One translucent area per phase other than steady, named inside where there is room."""

    z = 0.0

    def __init__(self, run: Run, style: Style) -> None:
        super().__init__()
        self._run = run
        self._style = style
        self._spans: list[PhaseSpan] = []
        self._places: list[list[float]] = []  # begin and end of each on the axis
        self._named_until = math.inf

    def name_left_of(self, left: float) -> None:
        """Reserve the room from ``place`` (pixels) to the right for another text."""
        if left != self._named_until:
            self._named_until = left
            self.fresh = -math.inf

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
        ends = [(span.start_s, span.stop_s) for span in spans]
        self._places = self._run.axis.positions(ends).tolist() if ends else []

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

    def areas(self, frame: Frame) -> Iterator[tuple[QRectF, int, str]]:
        """Yield each phase's area in pixels, the phase, and its name, empty without room for it."""
        metrics = QFontMetricsF(self._style.font(small=True))
        for span, (start, stop) in zip(self._spans, self._places, strict=True):
            if not 0 <= span.phase < len(self._style.theme.phases):
                continue
            left = max(0.0, frame.px(start))
            right = min(frame.width, frame.px(stop))
            name = Phase(span.phase).title
            room = min(right, self._named_until) - left
            if room <= metrics.horizontalAdvance(name) + 8 or frame.height <= 60:
                name = ""
            yield QRectF(left, 0, max(1.0, right - left), frame.height), span.phase, name

    def draw(self, painter: QPainter, frame: Frame) -> None:
        style = self._style
        font = style.font(small=True)
        ascent = QFontMetricsF(font).ascent()
        for area, phase, name in self.areas(frame):
            if area.right() < max(0.0, self.exposed[0]):
                continue
            if area.left() > min(frame.width, self.exposed[1]):
                continue
            painter.fillRect(area, shade(style.theme.phases[phase], _ALPHA))
            painter.setFont(font)
            painter.setPen(shade(style.theme.muted))
            painter.drawText(QPointF(area.left() + 4, 3 + ascent), name)
        painter.setPen(Qt.PenStyle.NoPen)
