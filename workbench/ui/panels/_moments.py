"""Marked ranges, single steps and bookmarks of the live plots, and their keys and menu."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from PySide6.QtCore import QObject, QPointF, Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMenu, QWidget

from sessions.storage import open_files
from workbench.charts.range_statistics import (
    Step,
    events_near,
    explain_step,
    measure_range,
    nearest_step,
    slowest_step,
)
from workbench.plots import Run
from workbench.ui.dialogs import message_boxes
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._range_bar import RangeBar
from workbench.ui.state.session import SessionModel

_NEAR_PX = 12.0  # greatest distance of a click from its step
_STEP_SPANS = 40.0  # width of the view after a jump to a step, in durations of that step


class TimeView(Protocol):
    """Plots over one time axis, and the part of it that they show."""

    @property
    def run(self) -> Run:
        """The session as the plots show it."""

    @property
    def charts(self) -> Mapping[str, Chart]:
        """The charts by the names of their plots."""

    @property
    def crosshair(self) -> float | None:
        """Position of the mouse on the axis; None outside."""

    def view_span(self) -> tuple[float, float] | None:
        """Return the visible range of the axis."""

    def show_span(self, start: float, stop: float) -> None:
        """Show this range of the axis."""


@dataclass(frozen=True)
class MomentKey:
    """Action of the live plots, and its key."""

    text: str
    key: str
    act: Callable[[Moments], None]


class Moments(QObject):
    """Marked ranges and steps of the live panel, and notes for its session."""

    def __init__(self, panel: QWidget, view: TimeView, session: SessionModel) -> None:
        super().__init__(panel)
        self._panel, self._view, self._session = panel, view, session
        self.bar = RangeBar()
        self.span: tuple[float, float] | None = None  # marked, in positions on the axis
        self._anchor: float | None = None  # the first of two cursors, until the second is set
        self._step: Step | None = None
        self.bar.zoomWanted.connect(self.zoom)
        self.bar.slowestWanted.connect(self.jump_to_slowest)
        self.bar.eventsWanted.connect(self._show_events)
        self.bar.closed.connect(self.clear)
        for key in MOMENT_KEYS:
            action = QAction(key.text, panel)
            action.setShortcut(QKeySequence(key.key))
            action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
            action.triggered.connect(lambda _=False, act=key.act: act(self))
            panel.addAction(action)

    def attach(self, chart: Chart) -> None:
        """Listen to a chart, and extend its menu."""
        chart.clicked.connect(lambda point, c=chart: self._click(c, point))
        chart.rangeMarked.connect(self.mark)
        chart.menu_extension = self._extend

    def mark(self, first: float, last: float) -> None:
        """Mark a range of the axis, and measure it."""
        self._anchor = self._step = None
        self._show_span((first, last))
        self.measure()

    def measure(self) -> None:
        """Bring the statistics of the marked range up to date."""
        if self.span is None or self._step is not None or self.span[0] == self.span[1]:
            return
        run = self._view.run
        first, last = run.axis.times_s(self.span).tolist()
        with open_files.reading(run.session):
            statistics = measure_range(run.chosen(), first, last, self.span[1] - self.span[0])
        self.bar.show_range(statistics)

    def set_cursor(self) -> None:
        """Set the first measuring cursor where the crosshair is; then the second."""
        position = self._view.crosshair
        if position is None:
            return
        if self._anchor is None:
            self.clear()
            self._anchor = position
            self._show_span((position, position))
        else:
            self.mark(min(self._anchor, position), max(self._anchor, position))

    def clear(self) -> None:
        """Take the marks away."""
        self._anchor = self._step = None
        self._show_span(None)
        self.bar.hide()

    def zoom(self) -> None:
        """Show only the marked range."""
        if self.span is not None and self.span[1] > self.span[0]:
            self._view.show_span(*self.span)

    def jump_to_slowest(self) -> None:
        """Show the slowest step of the marked range, or of the view, and its events."""
        run = self._view.run
        span = self.span if self.span and self.span[1] > self.span[0] else self._view.view_span()
        if span is None:
            return
        with open_files.reading(run.session):
            step = slowest_step(run.chosen(), *run.axis.times_s(span).tolist())
        if step is not None:
            self.show_step(step, move=True)

    def show_step(self, step: Step, *, move: bool) -> None:
        """Explain a step; ``move`` shows it, with some on either side."""
        run, self._step = self._view.run, step
        position = run.axis.position(step.t_s)
        with open_files.reading(run.session):
            clauses = explain_step(run.session, step)
            events = bool(events_near(run.session, step))
        self._show_span((position, position + 1e-3 * step.ms))
        if move:
            half = _STEP_SPANS / 2 * 1e-3 * max(step.ms, 1e-3)
            self._view.show_span(position - half, position + half)
        self.bar.show_step(step, position, list(map(run.titled, clauses)), events=events)

    def bookmark(self) -> None:
        """Bookmark the crosshair's moment."""
        if (position := self._view.crosshair) is not None:
            self._session.add_note("Bookmark", self._time_s(position), kind="bookmark")

    def add_note(self, position: float | None = None) -> None:
        """Ask for a note to a moment: the crosshair's, where none is given."""
        position = self._view.crosshair if position is None else position
        if position is None:
            return
        t_s = self._time_s(position)
        message_boxes.ask(
            self._panel, "Add note", "Note", "", lambda text: self._session.add_note(text, t_s)
        )

    def _time_s(self, position: float) -> float:
        return float(self._view.run.axis.times_s(position))

    def _show_span(self, span: tuple[float, float] | None) -> None:
        self.span = span
        for chart in self._view.charts.values():
            chart.canvas.mark_range(span)

    def _show_events(self) -> None:
        if self._step is not None:
            self._session.eventsWanted.emit(self._step.t_s)

    def _click(self, chart: Chart, point: QPointF) -> None:
        if chart.plot.name not in ("step_time", "throughput"):
            return
        run = self._view.run
        start, stop = chart.canvas.vb.viewRange()[0]
        within = _NEAR_PX * (stop - start) / max(1.0, chart.canvas.vb.rect().width())
        with open_files.reading(run.session):
            step = nearest_step(run.chosen(), self._time_s(point.x()), within)
        if step is not None:
            self.show_step(step, move=False)

    def _extend(self, menu: QMenu, position: float | None) -> None:
        """Add entries about the moment under the mouse to a plot's menu."""
        menu.addAction("Slowest step in view", self.jump_to_slowest)
        if position is not None:
            menu.addAction("Add note here …", lambda: self.add_note(position))
            menu.addAction(
                "Bookmark here",
                lambda: self._session.add_note("Bookmark", self._time_s(position), kind="bookmark"),
            )
        if self.span is not None:
            menu.addAction("Clear the marked range", self.clear)
        menu.addSeparator()


MOMENT_KEYS = (
    MomentKey("Set a measuring cursor, then the second", "M", Moments.set_cursor),
    MomentKey("Jump to the slowest step", "J", Moments.jump_to_slowest),
    MomentKey("Bookmark this moment", "B", Moments.bookmark),
    MomentKey("Add a note to this moment", "N", Moments.add_note),
    MomentKey("Zoom to the marked range", "Z", Moments.zoom),
    MomentKey("Clear the marked range", "Esc", Moments.clear),
)
