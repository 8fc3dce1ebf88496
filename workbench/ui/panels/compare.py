"""A comparison of two to ten sessions: distributions, aligned time lines, ratios, differences."""

from __future__ import annotations

from dataclasses import dataclass, replace

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import (
    QComboBox,
    QHBoxLayout,
    QMenu,
    QStackedWidget,
    QTabWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from sessions.errors import SessionError
from sessions.model import Session
from sessions.plain_text import for_menu
from sessions.storage import open_files
from sessions.tables import comparison_table
from sessions.verdicts.comparison import Comparison, choose, compare
from workbench import plot_export
from workbench.plots import PLOTS, Run
from workbench.plots._distributions import distributions
from workbench.plots._steps import rolling
from workbench.theming.icons import icon
from workbench.titles import distinct
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.menus.option_picker import NoWheelComboBox
from workbench.ui.panels import _widgets
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._compare_tables import DifferencesTable, SessionsTable
from workbench.ui.panels._splitter import Splitter
from workbench.ui.panels._wrapped_row import WrappedRow
from workbench.ui.panels.empty import Empty
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state import session_files
from workbench.ui.state.comparison import ComparisonModel
from workbench.ui.state.failures import FailureModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

_BOX_FRAME, _BOX_GAP = 84, 4  # pixels around the boxes, and between two of their names
_LINES_LEAST = 100
_TABLES_LEAST = 120  # pixels: the names of the tabs, a heading and two rows
_TITLE_LETTERS = 24  # length of a session's title in the baseline's box
NOTHING = (
    "Nothing to compare yet",
    "Drop two session files (.h5) onto the window, or choose Compare with … to put saved sessions "
    "beside this one.",
)
LIVE_MS = 3000  # between two comparisons while a session grows
_ALIGNED = {"By time": "time", "By step": "step"}


@dataclass
class Result:
    """Result of the comparison in the background; ``reason`` says why there is none."""

    runs: list[Run]
    comparison: Comparison | None
    reason: str = ""


class ComparePanel(QWidget):
    """The shown session and those beside it; each takes part with one of its segments."""

    def __init__(
        self,
        session: SessionModel,
        compared: ComparisonModel,
        verdicts: Verdicts,
        failures: FailureModel,
        theme: ThemeModel,
        tasks: Tasks,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._compared, self._theme, self._tasks = session, compared, theme, tasks
        self._baseline = ""  # id of a session
        self._chosen: dict[str, int] = {}  # segment by id of the session
        self._runs: dict[str, Run] = {}
        self._busy = self._stale = False
        self._listed: list[tuple[str, str]] = []  # ids and titles in the box of the baseline
        self.result: Result | None = None
        self.charts = {
            name: Chart(PLOTS[name], theme.current, tasks)
            for name in ("aligned_timeline", "ecdf", "box")
        }
        for chart in self.charts.values():
            chart.readings = True
            chart.setMinimumSize(200, 120)
            chart.cursorMoved.connect(chart.set_cursor)
        self.sessions = SessionsTable(session, compared, verdicts, failures, theme)
        self.sessions.segmentChosen.connect(self.choose_segment)
        self.sessions.baselineChosen.connect(self.set_baseline)
        self.sessions.removed.connect(self._remove)
        self.differences = DifferencesTable()
        self._empty = Empty(theme, "compare", *NOTHING)
        self._out = self._empty.offer("", self._take_out)
        self._out.hide()
        self._warning = QWidget()
        self._warnings = _widgets.tight(QVBoxLayout(self._warning), 2)
        self._warnings.setContentsMargins(8, 0, 8, 4)
        self._pages = QStackedWidget()
        self._pages.addWidget(self._empty)
        self._pages.addWidget(self._make_body())
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._pages)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._compute)
        compared.changed.connect(lambda: self._compute_in(0))
        session.sessionChanged.connect(lambda: self._compute_in(0))
        session.segmentsChanged.connect(lambda: self._compute_in(LIVE_MS))
        session.dataArrived.connect(lambda: self._compute_in(LIVE_MS))
        theme.changed.connect(self._draw)
        self._draw()
        self._compute_in(0)

    def set_baseline(self, session: Session) -> None:
        """Let the ratios refer to this session."""
        self._baseline = session.id
        self._compute_in(0)

    def choose_segment(self, session: Session, index: int) -> None:
        """Choose the segment that represents a session."""
        self._chosen[session.id] = index
        self._compute_in(0)

    def set_align(self, align: str) -> None:
        """Align the time lines by ``time`` or by ``step``."""
        self._align.setCurrentIndex(list(_ALIGNED.values()).index(align))
        self.charts["aligned_timeline"].set_option("align", align)

    def copy_table(self, suffix: str) -> None:
        """Put the table of ratios on the clipboard as ``.csv`` or ``.md``."""
        if self.result is not None and self.result.comparison is not None:
            plot_export.copy_table(comparison_table(self.result.comparison), suffix)

    def _make_body(self) -> QWidget:
        body = _widgets.surface()
        charts = ((self.charts["ecdf"], 1), (self.charts["box"], 1))
        lower = Splitter(Qt.Orientation.Horizontal, *charts)
        self._tabs = QTabWidget()
        self._tabs.setDocumentMode(True)
        self._tabs.setMinimumHeight(_TABLES_LEAST)
        self._tabs.addTab(self.sessions, "Sessions")
        self._tabs.addTab(self.differences, "Differences")
        parts = ((self.charts["aligned_timeline"], 4), (lower, 5), (self._tabs, 3))
        split = Splitter(Qt.Orientation.Vertical, *parts)
        column = _widgets.tight(QVBoxLayout(body), 0)
        column.addWidget(self._make_bar())
        column.addWidget(self._warning)
        column.addWidget(_widgets.scrolled(split), 1)
        return body

    def _make_bar(self) -> QWidget:
        toolbar = QWidget()
        self._base = NoWheelComboBox()
        self._base.setToolTip("The session that ratios refer to")
        self._base.setMinimumContentsLength(_TITLE_LETTERS)
        self._base.activated.connect(
            lambda index: self.set_baseline(self._base.itemData(index).session)
        )
        self._align = QComboBox()
        self._align.addItems(list(_ALIGNED))
        self._align.setToolTip("How the time lines are aligned")
        self._align.activated.connect(lambda index: self.set_align(list(_ALIGNED.values())[index]))
        self._copy = QToolButton()
        self._copy.setText("Copy table")
        self._copy.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._copy.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = QMenu(self._copy)
        menu.addAction("As Markdown", lambda: self.copy_table(".md"))
        menu.addAction("As CSV", lambda: self.copy_table(".csv"))
        self._copy.setMenu(menu)
        controls = WrappedRow(
            _widgets.named("Baseline", self._base), _widgets.named("Time lines", self._align)
        )
        row = QHBoxLayout(toolbar)
        row.setContentsMargins(8, 4, 8, 4)
        row.setSpacing(8)
        row.addLayout(controls, 1)
        row.addWidget(self._copy)
        return toolbar

    def _take_out(self) -> None:
        """Continue without the session that was added last."""
        if self._compared.sessions:
            self._remove(self._compared.sessions[-1])

    def _remove(self, session: Session) -> None:
        if session in self._compared.sessions:
            self._compared.remove(session)

    def _compute_in(self, delay_ms: int) -> None:
        """Compute the comparison again; with a delay, only if a live session grows."""
        if delay_ms and not (self._session.live and self._compared.sessions):
            return
        if not self._timer.isActive() or delay_ms == 0:
            self._timer.start(delay_ms)

    def _compute(self) -> None:
        if self._busy:
            self._stale = True
            return
        candidates = [self._session.shown, *self._compared.sessions]
        sessions = [session for session in candidates if session.segments]
        known = {session.id for session in sessions}
        self._runs = {key: run for key, run in self._runs.items() if key in known}
        if len(sessions) < 2:
            self._show(Result([], None))
            return
        runs = [self._run(session, color) for color, session in enumerate(sessions)]
        for run, label in zip(runs, distinct(sessions), strict=True):
            run.label = label
        ids = [run.session.id for run in runs]
        baseline = ids.index(self._baseline) if self._baseline in ids else 0
        chosen = [self._chosen.get(session_id) for session_id in ids]
        self._busy = True
        self._out.hide()
        self._empty.say(f"Comparing {len(runs)} sessions", "Long sessions take a moment.")
        self._tasks.start(lambda: work_out(runs, baseline, chosen), self._worked_out, self._failed)

    def _run(self, session: Session, color: int) -> Run:
        """Return the session's run; of a live session, a copy of its current data."""
        if self._session.live and session is self._session.shown:
            return Run(session_files.snapshot(session), color=color)
        run = self._runs.get(session.id)
        if run is None or run.session is not session:
            run = self._runs[session.id] = Run(session)
        run.color = color
        return run

    def _worked_out(self, result: Result) -> None:
        self._busy = False
        if self._stale:
            self._stale = False
            self._compute()
        else:
            self._show(result)

    def _failed(self, error: Exception, _detail: str) -> None:
        self._worked_out(Result([], None, f"The sessions could not be compared ({error!r})."))

    def _show(self, result: Result) -> None:
        self.result = result
        comparison = result.comparison
        if comparison is None:
            self._pages.setCurrentIndex(0)
            failed = ("These sessions cannot be compared", result.reason)
            self._empty.say(*(failed if result.reason else NOTHING))
            added = self._compared.sessions
            self._out.setVisible(bool(result.reason and added))
            if added:  # the hidden table has their buttons
                label = distinct([self._session.shown, *added])[-1]
                self._out.setText(for_menu(f"Remove {label!r}"))
            return
        self._pages.setCurrentIndex(1)
        listed = [(run.session.id, run.title) for run in result.runs]
        if listed != self._listed:  # keep it otherwise: it may be open
            self._listed = listed
            self._base.clear()
            for run in result.runs:
                self._base.addItem(run.title, run)
        self._base.setCurrentIndex(comparison.baseline)
        self.sessions.show_comparison(result.runs, comparison)
        self.differences.show_comparison(comparison)
        self._tabs.setTabText(1, f"Differences ({len(comparison.differences)})")
        _widgets.clear(self._warnings)
        for text in comparison.warnings:
            note = _widgets.note(self._session.titled(text), "warning")
            self._warnings.addWidget(
                _widgets.marked(note, "warning", self._theme.current, "warning")
            )
        self._warning.setVisible(bool(comparison.warnings))
        line, count = self.fontMetrics().height(), len(result.runs)
        self.charts["box"].setMinimumHeight(_BOX_FRAME + (line + _BOX_GAP) * count)
        # Its legend has two or three names a line.
        self.charts["aligned_timeline"].setMinimumHeight(_LINES_LEAST + line * count // 2)
        for chart in self.charts.values():
            chart.show_runs(result.runs)

    def _draw(self) -> None:
        self._copy.setIcon(icon("copy", self._theme.current, "muted"))
        for chart in self.charts.values():
            chart.set_theme(self._theme.current)
        if self.result is not None:
            self._show(self.result)


def work_out(runs: list[Run], baseline: int, chosen: list[int | None]) -> Result:
    """Compare, and derive the content of the plots; run on a separate thread.

    A session without a chosen segment is represented by the one with the most steady steps.
    """
    sessions = [replace(run.session, title=run.title) for run in runs]
    with open_files.reading(*sessions):
        try:
            indices = [
                session.segments.index(choose(session, index))
                for session, index in zip(sessions, chosen, strict=True)
            ]
            comparison = compare(sessions, baseline, indices)
        except SessionError as error:
            return Result(runs, None, str(error))
        for run, index in zip(runs, indices, strict=True):
            run.segments = (index,)
            distributions([run])
            rolling(run, run.session.segments[index]).pull()
    return Result(runs, comparison)
