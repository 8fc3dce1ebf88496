"""The live plots: stacked, with one time axis, one crosshair and one view that follows or holds."""

from __future__ import annotations

import time

import numpy as np
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QAction, QShowEvent
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QHBoxLayout,
    QLabel,
    QMenu,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from sessions.columns import row_count
from sessions.model import Session
from sessions.numbers import counted
from sessions.session_log import study_segments
from sessions.storage import open_files
from workbench import plot_export
from workbench.charts.units import SECONDS
from workbench.plots import PLOTS, Run
from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.ui.panels import _widgets
from workbench.ui.panels._chart import EMPTY_CHECK_S, Chart
from workbench.ui.panels._moments import Moments
from workbench.ui.panels._splitter import Splitter
from workbench.ui.panels._utilization import Utilization
from workbench.ui.panels._wrapped_row import WrappedRow
from workbench.ui.panels.start_page import StartPage
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

FRAME_MS = 16
SHOWN = ("step_time", "memory", "utilization", "power")  # plots of the first start
RUN, SEGMENT = "run", "segment"
WINDOWS: dict[str, float | str | None] = {
    "Whole session": None,
    "This run": RUN,
    "This segment": SEGMENT,
    "Last 10 s": 10.0,
    "Last 30 s": 30.0,
    "Last minute": 60.0,
    "Last 5 minutes": 300.0,
    "Last 30 minutes": 1800.0,
}
_LEAST_PX = 100  # least height of a plot, with two lines of legend
_LANE_PX = 16  # more of one above which markers are named
_AXIS_PX = 32  # more of one below which the time stands
_MOST_PX = 2**24 - 1  # Qt's QWIDGETSIZE_MAX: no limit
_LINE_PX = 36  # height of a plot without data beside plots with data
_ROOMS = 32  # steps in which the view of a growing session doubles
_MARGIN = 0.01  # free share of the range beyond the newest sample


class LivePanel(QWidget):
    """Plots over time of the shown session, live or from a file.

    While ``session.follow`` is true, they scroll with the newest step. Otherwise the view is
    paused: nothing moves or is drawn again until the user moves it or follows again. The run
    continues.
    """

    def __init__(
        self, session: SessionModel, theme: ThemeModel, tasks: Tasks, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._session, self._theme = session, theme
        self._shows_studies = False
        self._run = self._new_run()
        self._window: float | str | None = None
        self.crosshair: float | None = None  # position on the axis
        self._held_at = 0
        self._dirty = False
        self._frame_at = 0.0
        self._spreading = False
        self._undrawn: list[Chart] = []  # still show the previous session
        self._fresh = False  # the session has not been shown whole yet
        self.charts = {
            name: Chart(plot, theme.current, tasks)
            for name, plot in PLOTS.items()
            if plot.axis == "time"
        }
        self.moments = Moments(self, self, session)
        order = sorted(self.charts, key=lambda n: (SHOWN.index(n) if n in SHOWN else len(SHOWN), n))
        for name in order:
            chart = self.charts[name]
            chart.readings = True
            chart.setMinimumHeight(_LEAST_PX)
            chart.cursorMoved.connect(self._move_cursor)
            chart.rangePicked.connect(lambda c=chart: self._picked(c))
            chart.resetWanted.connect(self._follow_all)
            self.moments.attach(chart)
        # Equal shares: otherwise room is divided by size hints, which depend on the last texts.
        parts = [(self.charts[name], 1) for name in order]
        self._splitter = Splitter(Qt.Orientation.Vertical, *parts)
        for name, chart in self.charts.items():  # not earlier: it would be a window of its own
            chart.setVisible(name in SHOWN)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._frame)
        self._next = QTimer(self)
        self._next.setSingleShot(True)
        self._next.timeout.connect(self._draw_next)
        self._empty = StartPage(session, theme)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._empty)
        self._area = _widgets.scrolled(self._splitter)
        self._stack.addWidget(self._area)
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._make_bar())
        layout.addWidget(self._stack, 1)
        layout.addWidget(self.moments.bar)
        session.dataArrived.connect(self._touch)
        session.segmentsChanged.connect(self._renew_run)
        session.segmentsChanged.connect(self._touch)
        session.eventsChanged.connect(self._touch)
        session.sessionChanged.connect(self._show_session)
        session.selectionChanged.connect(self._select)
        session.followChanged.connect(self._follow_changed)
        session.focusRequested.connect(self.focus)
        theme.changed.connect(self._draw)
        self._draw()
        self.redraw()

    @property
    def shown(self) -> list[Chart]:
        """The charts that were chosen, from top to bottom."""
        widgets = [self._splitter.widget(index) for index in range(self._splitter.count())]
        return [chart for chart in widgets if isinstance(chart, Chart) and not chart.isHidden()]

    @property
    def is_drawn(self) -> bool:
        """False while plots still show the previous session."""
        return not self._undrawn

    @property
    def run(self) -> Run:
        """The session as the plots show it."""
        return self._run

    def view_span(self) -> tuple[float, float] | None:
        """Return the range of the axis that is in view."""
        shown = self.shown
        return tuple(shown[0].canvas.vb.viewRange()[0]) if shown else None  # type: ignore[return-value]

    def show_span(self, start: float, stop: float) -> None:
        """Hold the view, and show this range of the axis."""
        self._draw_rest()
        self._session.set_follow(False)
        self._spread(start, stop, pull=True)

    def show_plot(self, name: str, shown: bool = True) -> None:
        """Add a plot to the stack, or take it away."""
        self.charts[name].setVisible(shown)
        self.redraw()

    def set_window(self, window: float | str | None) -> None:
        """Follow the last seconds, ``RUN`` or ``SEGMENT``; None follows the whole session."""
        self._window = window
        titles = {value: text for text, value in WINDOWS.items()}
        self._choice.setCurrentText(titles.get(window, titles[None]))
        self._session.set_follow(True)
        self._touch()

    def focus(self, t_s: float) -> None:
        """Show this moment of the session, as wide as the view is."""
        self._draw_rest()
        shown = self.shown
        if not shown:
            return
        if self._run.hidden and not self._run.axis.is_running(np.array([t_s]))[0]:
            self._studies.setChecked(True)
        start, stop = shown[0].canvas.vb.viewRange()[0]
        half, middle = (stop - start) / 2, self._run.axis.position(t_s)
        self._spread(middle - half, middle + half, pull=True)

    def export_plot(self) -> None:
        """Ask for a file and write the topmost plot that has data."""
        chart = next((chart for chart in self.shown if chart.reason is None), None)
        if chart is not None:
            chart.export_plot()

    def copy_image(self) -> None:
        """Copy a picture of all visible plots to the clipboard."""
        plot_export.copy_pixmap(self._splitter.grab())

    def redraw(self) -> None:
        """Draw every shown plot again."""
        self._undrawn = self.shown
        self._draw_next()  # needed without plots too: the start page may change
        self._draw_rest()

    def _draw_rest(self) -> None:
        while self._undrawn:
            self._draw_next()

    def _draw_next(self) -> None:
        """Draw one more plot of the session; after the last one, give all the same range."""
        with open_files.reading(self._run.session):
            if self._undrawn:
                self._undrawn.pop(0).show_runs([self._run])
            if not self._undrawn:
                self._next.stop()
                self._stack_up()
                self._refresh()
                return
        self._next.start(0)

    def _stack_up(self) -> None:
        """Name phases and markers on the topmost plot only, and times under the lowest."""
        drawn = [chart for chart in self.shown if chart.reason is None]
        self._fold()
        for chart in drawn:
            first, last = chart is drawn[0], chart is drawn[-1]
            chart.canvas.captions = first
            chart.canvas.axis("bottom").texts = last
            self._limit_height(chart, first * _LANE_PX + last * _AXIS_PX)
        for chart in self.shown:
            if chart not in drawn:
                self._limit_height(chart)
        self._align()

    def _limit_height(self, chart: Chart, more_px: int = 0) -> None:
        """Set the least height of a plot in the present type; a folded plot has no other."""
        height_px = _LINE_PX if chart.brief else _LEAST_PX + more_px
        height = fonts.in_type(height_px, QApplication.font())
        chart.setMinimumHeight(height)
        chart.setMaximumHeight(height if chart.brief else _MOST_PX)

    def _fold(self) -> None:
        """Reduce a plot without data to one line once there are steps.

        By then, most plots have all the kinds of data that they will ever have.
        """
        stepped = any(row_count(segment.steps) for segment in self._run.session.segments)
        for chart in self.shown:
            folded = stepped and chart.reason is not None
            if folded and not chart.brief:  # ``reason`` may be older than the first step
                folded = chart.plot.can_show([self._run]) is not None
            if folded != chart.brief:
                chart.brief = folded
                self._limit_height(chart)
                chart.show_runs([self._run])

    def _make_bar(self) -> QWidget:
        toolbar = QWidget()
        toolbar.setProperty("panel", True)
        toolbar.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._plots = QToolButton()
        self._plots.setText("Plots ▾")
        self._plots.setToolTip("Choose which plots are shown")
        self._plots.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = QMenu(self._plots)
        for name, chart in self.charts.items():
            action = QAction(chart.plot.title, menu)
            menu.addAction(action)
            action.setCheckable(True)
            action.setChecked(name in SHOWN)
            action.toggled.connect(lambda on, n=name: self.show_plot(n, on))
        menu.addSeparator()
        self._studies = QAction("Segments of studies", menu)
        self._studies.setCheckable(True)
        self._studies.toggled.connect(self.show_studies)
        menu.addAction(self._studies)
        self._plots.setMenu(menu)
        self._choice = QComboBox()
        self._choice.addItems(list(WINDOWS))
        self._choice.setToolTip("Which part of the session the plots show")
        self._choice.activated.connect(lambda: self.set_window(WINDOWS[self._choice.currentText()]))
        self._hold = QToolButton()
        self._hold.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._hold.setText("Pause view")
        self._hold.setToolTip("Stop moving the plots; the run continues")
        self._hold.clicked.connect(lambda: self._session.set_follow(False))
        self._live = _widgets.button("Live")
        self._live.setProperty("primary", True)
        self._live.setToolTip("Follow the newest step again")
        self._live.clicked.connect(lambda: self._session.set_follow(True))
        self._status = QLabel()
        self._status.setProperty("muted", True)
        self.utilization = Utilization(self._session)
        self._place = QLabel()
        self._place.setFont(fonts.numbers())
        row = QHBoxLayout(toolbar)
        row.setContentsMargins(8, 4, 8, 4)
        row.setSpacing(8)
        controls = (self._plots, self._choice, self._hold, self._live, self._status)
        row.addLayout(WrappedRow(*controls), 1)
        row.addWidget(self._place)
        row.addWidget(self.utilization)
        return toolbar

    def _show_session(self) -> None:
        if self._run.session is not self._session.shown:
            self._run = self._new_run()
            self.moments.clear()
            for chart in self.charts.values():
                chart.canvas.auto_range_x = chart.canvas.auto_range_y = True
            self._session.set_follow(True)
            self._undrawn, self._fresh = self.shown, True
            self._next.start(0)  # one plot per event, so that the window answers

    def _new_run(self) -> Run:
        hidden = frozenset() if self._shows_studies else hidden_segments(self._session.shown)
        return Run(self._session.shown, titled=self._session.titled, hidden=hidden)

    def show_studies(self, shown: bool) -> None:
        """Show the segments of studies among the others, or leave them out."""
        self._shows_studies = shown
        self._renew_run()

    def _renew_run(self) -> None:
        """Redraw if the set of hidden segments changed."""
        run = self._new_run()
        if run.hidden != self._run.hidden:
            run.selected, self._run = self._run.selected, run
            self.moments.clear()
            self.redraw()

    def _select(self) -> None:
        self._run.selected = self._session.selection
        self._touch()

    def _touch(self) -> None:
        """Something has changed: draw at the next frame, unless the view is held."""
        self._dirty = True
        if not self._timer.isActive():
            passed_ms = 1e3 * (time.perf_counter() - self._frame_at)
            self._timer.start(max(0, round(FRAME_MS - passed_ms)))

    def _frame(self) -> None:
        self._frame_at = time.perf_counter()
        if self._dirty and self.isVisible() and not self._undrawn:
            self._refresh()

    def showEvent(self, event: QShowEvent) -> None:
        """Catch up with what came while the panel was hidden."""
        super().showEvent(event)
        self._touch()

    def _refresh(self) -> None:
        self._dirty = False
        self.utilization.refresh()
        has_data = bool(self._run.session.segments)  # telemetry alone comes before the first run
        self._stack.setCurrentWidget(self._area if has_data else self._empty)
        if not self._session.follow and not self._fresh:
            self._tell_held()
            return
        self._fresh = False
        shown = self.shown
        spans = []
        for chart in shown:
            chart.renew()
            chart.canvas.auto_range_x = False
            for layer in chart.canvas.layers:
                layer.pull()
            if (span := chart.canvas.x_span()) is not None:
                spans.append(span)
        if spans:
            start, stop = min(s[0] for s in spans), max(s[1] for s in spans)
            if isinstance(self._window, float) and self._session.live:
                start = stop - self._window
            elif isinstance(self._window, str):
                start, stop = self._named_span()
            self._spread(*self._range(start, stop), pull=False)
            self.moments.measure()
        again_ms = 0.0
        for chart in shown:
            if chart.reason is not None:
                if not chart.refresh():
                    again_ms = again_ms or 1e3 * EMPTY_CHECK_S
                elif chart.reason is None:
                    again_ms = FRAME_MS  # its new data is not in the range yet
                    self._stack_up()
        self._fold()
        if again_ms:
            self._dirty = True
            if not self._timer.isActive():
                self._timer.start(round(again_ms))
        self._align()

    def _named_span(self) -> tuple[float, float]:
        """Return the range of the last run, or of the selected or else the last segment."""
        axis, segments = self._run.axis, self._run.chosen()
        if self._window == RUN or not segments:
            return axis.run_span()
        selected = [s for s in segments if s.index == self._run.selected]
        return axis.segment_span((selected or segments)[-1])

    def _range(self, start: float, stop: float) -> tuple[float, float]:
        """Return the range to show for data from ``start`` to ``stop``.

        The range of a growing session grows in steps, so that the plots do not shrink at every
        frame.
        """
        span = stop - start if stop > start else 1.0  # a run may end before its first step
        if not self._session.live:
            return start - _MARGIN * span, stop + _MARGIN * span
        if isinstance(self._window, float):
            return start, stop + _MARGIN * span
        step = 2.0 ** np.floor(np.log2(span)) / _ROOMS
        return start - step / 2, start + (np.floor(span / step) + 1.5) * step

    def _spread(self, start: float, stop: float, *, pull: bool) -> None:
        """Give every chart this range of x."""
        self._spreading = True
        for chart in self.shown:
            if pull:
                chart.refresh()
            chart.canvas.show_x(start, stop)
        self._spreading = False

    def _align(self) -> None:
        """Give the stack one left and one right margin, so that equal times are above another."""
        shown = [chart for chart in self.shown if chart.reason is None]
        left = max((chart.canvas.axis("left").size().width() for chart in shown), default=0.0)
        right = max((_right_px(chart) for chart in shown), default=0.0)
        for chart in shown:
            chart.canvas.align(left, right)

    def _picked(self, chart: Chart) -> None:
        if self._spreading:
            return
        self.show_span(*chart.canvas.vb.viewRange()[0])

    def _follow_all(self) -> None:
        self.set_window(None)

    def _follow_changed(self) -> None:
        follow = self._session.follow
        self._hold.setVisible(follow)
        self._live.setVisible(not follow)
        self._held_at = _steps(self._run)
        self._status.setText("")
        if follow:
            for chart in self.charts.values():
                chart.canvas.auto_range_y = True
            self._touch()
        else:
            self._tell_held()

    def _tell_held(self) -> None:
        gained = _steps(self._run) - self._held_at
        gained_text = f", {counted(gained, 'step')} since" if gained > 0 else ""
        self._status.setText(
            f"View paused; the run continues{gained_text}" if self._session.live else ""
        )

    def _move_cursor(self, x: float | None) -> None:
        self.crosshair = x
        for chart in self.shown:
            chart.set_cursor(x)
        self._place.setText("" if x is None else f"at {SECONDS.text(x, digits=4)}")

    def _draw(self) -> None:
        theme = self._theme.current
        self._hold.setIcon(icon("view-pause", theme, "text"))
        self._live.setIcon(icon("jump", theme, "on_accent"))
        for chart in self.charts.values():
            chart.set_theme(theme)
        self._stack_up()
        self._follow_changed()


def hidden_segments(session: Session) -> frozenset[int]:
    """Return the segments of studies that are over, if the session has other segments.

    The segments of the last study are shown until another order: it may be running.
    """
    orders, last = study_segments(session), len(session.orders) - 1
    if len(orders) == len(session.segments):
        return frozenset()
    return frozenset(index for index, order in orders.items() if order != last)


def _right_px(chart: Chart) -> float:
    right = chart.canvas.axis("right")
    return float(right.size().width()) if right.isVisible() else 0.0


def _steps(run: Run) -> int:
    return sum(row_count(segment.steps) for segment in run.session.segments)
