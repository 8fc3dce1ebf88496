"""A strip along the top that gives each segment the colour it has in the tables."""

from __future__ import annotations

import math

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter

from sessions.verdicts.background import baselines
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Layer
from workbench.charts.plot import Run
from workbench.charts.style import Style, shade
from workbench.charts.time_axis import stop_s

_STRIP_PX = 3.0


def alternating(run: Run) -> set[int]:
    """Return the indices of the chosen segments that alternated, as a comparison's arms do.

    Blocks that ran in the background of a run are no turn: their segment had ended before.
    """
    indices: set[int] = set()
    longest, until = -1, -math.inf
    segments, over = run.session.segments, baselines(run.session)
    for segment in run.chosen():
        t_s = segment.steps["t_s"]
        if not len(t_s):
            continue
        last = float(t_s[-1])
        if segment.index in over and segment.index + 1 < len(segments):
            last = min(last, segments[segment.index + 1].start_s)
        if t_s[0] < until:
            indices |= {longest, segment.index}
        if last > until:
            longest, until = segment.index, last
    return indices


class Segments(Layer):
    """One piece of the strip per segment; the selected one is tinted to the bottom.

    Segments that alternated have no piece, because they share their stretch.
    """

    z = 4.0

    def __init__(self, run: Run, style: Style) -> None:
        super().__init__()
        self._run = run
        self._style = style
        self._spans: list[tuple[int, float, float]] = []
        self._selected: int | None = None
        self._by_turns: set[int] = set()

    def pull(self) -> None:
        segments = self._run.chosen()
        self._by_turns = alternating(self._run)
        limits = [*(segment.start_s for segment in segments[1:]), math.inf]
        ends = [
            min(stop_s(segment), limit)
            for segment, limit in zip(segments, limits, strict=False)  # no segment: one limit
        ]
        starts = [segment.start_s for segment in segments]
        axis = self._run.axis
        spans = list(
            zip(
                [segment.index for segment in segments],
                axis.positions(starts).tolist(),
                axis.positions(ends).tolist(),
                strict=True,
            )
        )
        if spans != self._spans or self._run.selected != self._selected:
            grown = len(spans) == len(self._spans) and spans[:-1] == self._spans[:-1]
            same = grown and self._run.selected == self._selected
            self.fresh = min(self.fresh, self._spans[-1][2] if same else -math.inf)
        self._spans, self._selected = spans, self._run.selected

    def draw(self, painter: QPainter, frame: Frame) -> None:
        if len(self._spans) < 2:
            return
        scale = frame.width / (frame.x[1] - frame.x[0])
        for index, start, stop in self._spans:
            left = max(0.0, (start - frame.x[0]) * scale)
            right = min(frame.width, (stop - frame.x[0]) * scale)
            if right <= left:
                continue
            if index not in self._by_turns:
                strip = QRectF(left, 0, right - left, _STRIP_PX)
                painter.fillRect(strip, self._style.color(index))
            if index == self._run.selected:
                tint = shade(self._style.theme.accent, 0.12)
                painter.fillRect(QRectF(left, 0, right - left, frame.height), tint)
