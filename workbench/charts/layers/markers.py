"""Markers of what happened: a line across the plot and a short label in a lane above it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPen
from PySide6.QtWidgets import (
    QGraphicsSceneHoverEvent,
    QGraphicsWidget,
    QSizePolicy,
    QStyleOptionGraphicsItem,
    QWidget,
)

from sessions.model import Segment, Session
from sessions.plain_text import LONGEST_SHOWN, one_line, wrapped
from workbench.charts.drawn import MOST_SEGMENTS
from workbench.charts.guard import guarded
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Layer
from workbench.charts.runs import Run
from workbench.charts.style import Style, shade

MARKED = ("toggle", "note", "bookmark", "warning", "error")
_LOW_PX = 100.0  # a plot this low under one row of labels has no second
_LABEL_PX = 200.0  # a longer label is elided; hovering shows it whole
_LEAST_PX = 96.0  # a label makes room for those after it, but becomes no shorter
MOST_MARKS = 256  # the newest; lines of more would cover the plot
_SAME_S = 0.5  # a segment that begins this close to a toggle's mark needs no mark of its own


@dataclass(frozen=True)
class Mark:
    """One moment: seconds of the session, or of the axis; an event's kind, its text."""

    t_s: float
    kind: str
    text: str


def marks(session: Session, titled: Callable[[str], str] = str) -> list[Mark]:
    """Return the events worth a mark, and the segments that no toggle announces, in order of time.

    ``titled`` gives each text as people are to read it.
    """
    events = [event for event in session.events if event.kind in MARKED]
    marks_made = [
        Mark(event.t_s, event.kind, titled(one_line(event.text, LONGEST_SHOWN)))
        for event in events[-MOST_MARKS:]
    ]
    toggle_times = [mark.t_s for mark in marks_made if mark.kind == "toggle"]
    marks_made += [
        Mark(segment.start_s, "toggle", titled(_segment_text(segment, before)))
        for before, segment in itertools.pairwise(session.segments[-MOST_SEGMENTS:])
        if not any(abs(segment.start_s - t_s) <= _SAME_S for t_s in toggle_times)
    ]
    return sorted(marks_made, key=lambda mark: mark.t_s)


def _segment_text(segment: Segment, before: Segment) -> str:
    """Return a segment's name, after the model and workload if these differ from those before."""
    title = segment.configuration.title
    return segment.label if title == before.configuration.title else f"{title}: {segment.label}"


class Markers(Layer):
    """The lines of the marks."""

    z = 5.0

    def __init__(self, run: Run, style: Style) -> None:
        super().__init__()
        self._run = run
        self._style = style
        self.marks: list[Mark] = []
        self._known = (-1, -1)

    def pull(self) -> None:
        session = self._run.session
        known = (len(session.events), len(session.segments))
        if known != self._known:
            self._known = known
            axis = self._run.axis
            self.marks = [
                replace(mark, t_s=axis.position(mark.t_s))
                for mark in marks(session, self._run.titled)
                if mark.kind != "toggle" or axis.is_running(np.array([mark.t_s]))[0]
            ]
            self.fresh = -math.inf

    def draw(self, painter: QPainter, frame: Frame) -> None:
        for mark in self.marks:
            if frame.x[0] <= mark.t_s <= frame.x[1]:
                x = (mark.t_s - frame.x[0]) * frame.width / (frame.x[1] - frame.x[0])
                painter.setPen(_pen(mark, self._style))
                painter.drawLine(QPointF(x, 0), QPointF(x, frame.height))


class Lane(QGraphicsWidget):
    """The labels of the marks: greedily from left to right, in as many rows as there are."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._style = style
        self._labels: list[tuple[float, float, int, str, Mark]] = []  # x, text x, row, text, mark
        self.most_rows = 3 if style.paper else 2
        self._key: object = None
        self.setAcceptHoverEvents(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMaximumHeight(0.0)

    def show_marks(self, marks: Sequence[Mark], frame: Frame) -> bool:
        """Label these marks over the plot that shows ``frame``; True if the height changed."""
        # Compare with plot and lane: otherwise a second row could remove itself.
        one_row = self._row_px() + 2
        high = frame.height + self.size().height() - one_row > _LOW_PX
        key = (marks, frame.x, frame.width, high)
        if key == self._key:
            return False
        self._key = key
        metrics = QFontMetricsF(self._style.font(small=True))
        rows = self.most_rows if high else 1
        free = [0.0] * rows
        self._labels = []
        scale = frame.width / (frame.x[1] - frame.x[0])
        visible = [mark for mark in marks if frame.x[0] <= mark.t_s <= frame.x[1]]
        places = [(mark.t_s - frame.x[0]) * scale for mark in visible]
        for number, (mark, x) in enumerate(zip(visible, places, strict=True)):
            after = places[number + rows] if number + rows < len(places) else frame.width
            most = min(_LABEL_PX, max(_LEAST_PX, after - x - 14))
            text = metrics.elidedText(mark.text, Qt.TextElideMode.ElideRight, most)
            width = metrics.horizontalAdvance(text)
            for row, left in itertools.product(range(rows), (x + 4, x - 4 - width)):
                if left >= free[row] and left + width <= frame.width:
                    self._labels.append((x, left, row, text, mark))
                    free[row] = max(left + width, x) + 10
                    break
            else:
                self._labels.append((x, x, 0, "", mark))
        used = max((label[2] + 1 for label in self._labels), default=1)
        height = self._row_px() * used + 2 if marks else 0.0
        self.update()
        if height == self.minimumHeight():
            return False
        self.setMinimumHeight(height)
        self.setMaximumHeight(height)
        self.setPreferredHeight(height)
        return True

    @guarded
    def paint(
        self,
        painter: QPainter,
        _option: QStyleOptionGraphicsItem,
        _widget: QWidget | None = None,
    ) -> None:
        font = self._style.font(small=True)
        painter.setFont(font)
        metrics = QFontMetricsF(font)
        height = self.size().height()
        for x, _, row, text, mark in self._labels:
            top = row * self._row_px() if text else height - 4
            painter.setPen(_pen(mark, self._style))
            painter.drawLine(QPointF(x, top + 2), QPointF(x, height))
        ground = shade(self._style.theme.surface)
        for _, left, row, text, mark in self._labels:
            if text:
                top = row * self._row_px()
                width = metrics.horizontalAdvance(text)
                painter.fillRect(QRectF(left - 2, top, width + 4, self._row_px()), ground)
                painter.setPen(shade(_color(mark, self._style, text=True)))
                painter.drawText(QPointF(left, top + metrics.ascent()), text)

    def hoverMoveEvent(self, event: QGraphicsSceneHoverEvent) -> None:
        near = [label for label in self._labels if abs(label[0] - event.pos().x()) < 5]
        inside = [
            label
            for label in self._labels
            if label[1] <= event.pos().x() <= label[1] + _LABEL_PX and label[3]
        ]
        hovered = near or inside[-1:]
        self.setToolTip(wrapped("\n".join(label[4].text for label in hovered)))

    def _row_px(self) -> float:
        return QFontMetricsF(self._style.font(small=True)).height()


def _color(mark: Mark, style: Style, *, text: bool = False) -> str:
    theme = style.theme
    kinds = {"error": theme.bad, "warning": theme.warning}
    return kinds.get(mark.kind, theme.text if text else theme.muted)


def _pen(mark: Mark, style: Style) -> QPen:
    pen = QPen(shade(_color(mark, style), 0.8), 1)
    pen.setDashPattern([4, 3])
    return pen
