"""Marks of background pairing: where a run returned to its baseline for a pair of blocks."""

from __future__ import annotations

import functools
import math

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter, QPen

from sessions.columns import Columns
from sessions.model import Segment
from sessions.verdicts.background import is_background
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.plot import Run
from workbench.charts.style import Style, shade

_ALPHA = 0.12
_LOW_PX = 60.0  # a plot this low names nothing inside
NAME = "pairing"


class BlockSpans:
    """Times of a segment's blocks, in seconds of the session; ``pull`` reads only new steps."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._rows = 0
        self._last = 0  # number of the last block
        self.spans: list[tuple[float, float]] = []

    def pull(self) -> None:
        """Add the new steps of the segment."""
        steps = self._segment.steps
        if self._rows and not isinstance(steps, Columns):
            return  # read from a file, which does not grow
        rows = len(steps["t_s"])
        if rows == self._rows:
            return
        new = slice(self._rows, rows)
        self._rows = rows
        blocks = np.asarray(steps["block"][new])
        inside = np.flatnonzero(blocks > 0)
        if not len(inside):
            return
        starts = np.asarray(steps["t_s"][new], np.float64)[inside]
        stops = starts + 1e-3 * np.nan_to_num(np.asarray(steps["wall_ms"][new])[inside])
        for number, start, stop in zip(blocks[inside].tolist(), starts, stops, strict=True):
            if number == self._last:
                start = self.spans.pop()[0]
            self._last = number
            self.spans.append((float(start), float(stop)))


class Pairing(Layer):
    """One translucent area per block that ran in the background of a run."""

    z = 0.0

    def __init__(self, run: Run, style: Style) -> None:
        super().__init__()
        self._run = run
        self._style = style
        self._spans: list[tuple[float, float]] = []

    def pull(self) -> None:
        paired = {
            index
            for comparison in self._run.session.comparisons
            if is_background(comparison)
            for index in comparison.segment_indices
        }
        spans: list[tuple[float, float]] = []
        for segment in self._run.chosen():
            if segment.index in paired:
                blocks = self._run.keep(
                    (segment.index, NAME), functools.partial(BlockSpans, segment)
                )
                blocks.pull()
                spans += blocks.spans
        spans.sort()
        if spans:
            spans = [(first, last) for first, last in self._run.axis.positions(spans).tolist()]
        if spans != self._spans:
            known = len(self._spans)
            grown = spans[:known] == self._spans
            self.fresh = min(self.fresh, spans[known][0]) if grown else -math.inf
        self._spans = spans

    def entries(self) -> list[Entry]:
        if not self._spans:
            return []
        accent = self._style.theme.accent
        return [
            Entry(NAME, "patch", QPen(shade(accent, 0.7), 1), QBrush(shade(accent, 2 * _ALPHA)))
        ]

    def draw(self, painter: QPainter, frame: Frame) -> None:
        color = shade(self._style.theme.accent, _ALPHA)
        font = self._style.font(small=True)
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        for start, stop in self._spans:
            left, right = max(0.0, frame.px(start)), min(frame.width, frame.px(stop))
            if right < max(0.0, self.exposed[0]) or left > min(frame.width, self.exposed[1]):
                continue
            painter.fillRect(QRectF(left, 0, max(1.0, right - left), frame.height), color)
            if right - left > metrics.horizontalAdvance(NAME) + 8 and frame.height > _LOW_PX:
                painter.setPen(shade(self._style.theme.muted))
                painter.drawText(QPointF(left + 4, 3 + metrics.ascent()), NAME)
