"""The table of segments: differences, step time, its interval against the baseline, memory."""

from __future__ import annotations

import dataclasses
import time

from PySide6.QtCore import (
    QModelIndex,
    QPoint,
    Qt,
    QTimer,
)
from PySide6.QtGui import QGuiApplication, QHideEvent, QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QMenu,
    QStackedWidget,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from sessions.columns import row_count
from sessions.errors import SessionError
from sessions.model import Configuration, Segment, Session
from sessions.plain_text import clip, for_menu
from sessions.reproduction import command_lines
from sessions.storage import open_files
from sessions.tables import UNPAIRED_NOTE, Table, segments_table
from workbench.protocol import Failure
from workbench.theming import fonts
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.panels import _widgets
from workbench.ui.panels._names_share import NamesShare
from workbench.ui.panels._segment_model import OPTIONAL, RESERVE, Group, SegmentModel
from workbench.ui.panels._segment_model import swatch as swatch
from workbench.ui.panels.empty import Empty
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state import config_edit, session_files
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.failures import FailureModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

JUDGE = "Measure a verdict against the baseline"
PERIOD_MS = 1000  # between two computations while steps arrive
IDLE_SHARE = 4  # pause between two computations, in multiples of the time that one takes
SIZED_ROWS = 100  # rows that decide the widths of columns: each cell costs a dozen calls
MOST_PAIRS = 20  # rows that a menu offers to compare with
_LONGEST_NAME = 60  # characters
MOST_SEGMENTS = 1000  # rows of the table; each takes milliseconds to compare


class SegmentsPanel(QWidget):
    """Table of segments, computed in the background."""

    def __init__(
        self,
        session: SessionModel,
        configuration: ConfigurationModel,
        verdicts: Verdicts,
        failures: FailureModel,
        theme: ThemeModel,
        tasks: Tasks,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._configuration = session, configuration
        self._verdicts, self._failures = verdicts, failures
        self._tasks = tasks
        self._busy = False
        self._stale = False
        self._period_ms = PERIOD_MS
        self._scrolled_to = 0  # number of segments when it last scrolled to the end
        self._rows = 0  # steps of the session at the last computation
        self.model = SegmentModel(session, theme, self)
        self.table = self._make_table()
        self._names = NamesShare(self.table)
        empty = Empty(
            theme,
            "segments",
            "No segments yet",
            "Press Run. Every change of a toggle begins a new segment; this table compares them.",
        )
        self._pages = QStackedWidget()
        self._pages.addWidget(empty)
        self._pages.addWidget(self.table)
        self.note = _widgets.note(tone="warning")
        self.note.setContentsMargins(8, 2, 8, 2)
        self.note.hide()
        self._column = layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._pages)
        self._left_out = _widgets.note()
        self._left_out.hide()
        layout.addWidget(self._left_out)
        layout.addWidget(self.note)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._compute)
        session.segmentsChanged.connect(lambda: self._compute_in(0))
        session.sessionChanged.connect(self._show_session)
        session.dataArrived.connect(self._on_data_arrived)
        session.comparisonsChanged.connect(lambda: self._compute_in(self._period_ms))
        session.selectionChanged.connect(self._show_selection)
        configuration.catalogueChanged.connect(lambda: self._compute_in(0))
        theme.changed.connect(self.model.redraw)
        self._show_session()

    def _make_table(self) -> QTableView:
        table = QTableView()
        table.setModel(self.model)
        self.model.modelReset.connect(self._span_groups)
        table.setShowGrid(False)
        table.setTabKeyNavigation(False)  # Tab goes on; arrows move within
        table.setAlternatingRowColors(True)
        table.setWordWrap(False)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        table.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        table.customContextMenuRequested.connect(self._show_menu)
        table.doubleClicked.connect(self._double_click)
        table.clicked.connect(self._click)
        table.selectionModel().currentRowChanged.connect(
            lambda index, _: self._session.select(self.model.segment_at(index.row()))
        )
        table.verticalHeader().hide()
        fonts.fix_rows(table)
        header = table.horizontalHeader()
        header.setHighlightSections(False)
        header.setTextElideMode(Qt.TextElideMode.ElideRight)
        header.setMinimumSectionSize(56)
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setResizeContentsPrecision(SIZED_ROWS)
        expand = QShortcut(QKeySequence(Qt.Key.Key_Space), table)
        expand.setContext(Qt.ShortcutContext.WidgetShortcut)
        expand.activated.connect(self._expand_current)
        copy = QShortcut(QKeySequence.StandardKey.Copy, table)
        copy.setContext(Qt.ShortcutContext.WidgetShortcut)
        copy.activated.connect(self.copy_csv)
        return table

    def _span_groups(self) -> None:
        """Let the titles of groups use the complete row."""
        self.table.clearSpans()
        columns = self.model.columnCount() - 1
        for row, item in enumerate(self.model.rows):
            if isinstance(item, Group) and columns > 1:
                self.table.setSpan(row, 1, 1, columns)

    def showEvent(self, event: QShowEvent) -> None:
        """Bring the table up to date."""
        super().showEvent(event)
        self._compute_in(0)

    def hideEvent(self, event: QHideEvent) -> None:
        """Stop computing while nobody sees the table."""
        super().hideEvent(event)
        self._timer.stop()

    @property
    def current(self) -> bool:
        """True if everything that arrived is shown, or nobody sees it."""
        return not (self._busy or self._timer.isActive())

    def copy_csv(self) -> None:
        """Put the table on the clipboard as CSV."""
        if self.model.table is not None:
            QGuiApplication.clipboard().setText(self.model.table.to_csv())

    def copy_markdown(self) -> None:
        """Put the table on the clipboard as Markdown."""
        if self.model.table is not None:
            QGuiApplication.clipboard().setText(self.model.table.to_markdown())

    def _show_session(self) -> None:
        self.model.show_table(None)
        self.note.hide()
        self._pages.setCurrentIndex(1 if self._session.shown.segments else 0)
        self._compute_in(0)

    def _compute_in(self, milliseconds: int) -> None:
        if not self.isVisible():
            return
        if not self._timer.isActive() or milliseconds < self._timer.remainingTime():
            self._timer.start(milliseconds)

    def _on_data_arrived(self) -> None:
        rows = sum(row_count(segment.steps) for segment in self._session.shown.segments)
        if rows != self._rows:  # telemetry alone, which goes on after a run, changes nothing here
            self._rows = rows
            self._compute_in(self._period_ms)

    def _compute(self) -> None:
        session = self._session.shown
        if not session.segments:
            return
        if self._busy:
            self._stale = True
            return
        self._busy, self._stale = True, False
        shown = dataclasses.replace(session, segments=session.segments[:MOST_SEGMENTS])
        frozen = session_files.snapshot(shown)
        baseline = min(self._session.baseline, MOST_SEGMENTS - 1)
        count = len(session.segments)
        self._left_out.setVisible(count > MOST_SEGMENTS)
        self._left_out.setText(
            f"The first {MOST_SEGMENTS} of {count:,} segments. All of them: workbench export FILE "
            "--table segments."
        )
        self._tasks.start(
            lambda: _tabulate(frozen, baseline),
            lambda result: self._show_table(session, *result),
            self._failed,
        )

    def _show_table(self, session: Session, table: Table, took_s: float) -> None:
        self._busy = False
        self._period_ms = max(PERIOD_MS, round(1000 * IDLE_SHARE * took_s))
        if session is self._session.shown:
            self.model.show_table(table)
            self._show_notes(table)
            self._pages.setCurrentIndex(1)
            if self.model.columnCount() > 1:
                optional, reserve = map(self.model.columns_named, (OPTIONAL, RESERVE))
                self._names.set_columns([1], optional, reserve)
            self._show_selection()
            self._scroll_to_running()
        if self._stale or session is not self._session.shown:
            self._compute_in(self._period_ms)

    def _scroll_to_running(self) -> None:
        """Show the segment that began last, once: the user may scroll away from it."""
        count = len(self._session.shown.segments)
        if not self._session.live or count == self._scrolled_to or not count:
            return
        if (row := self.model.row_of(count - 1)) is not None:
            self._scrolled_to = count
            self._column.activate()  # a note below may be new
            self.table.doItemsLayout()  # or its range is that of the rows before
            self.table.scrollTo(self.model.index(row, 0))

    def _failed(self, error: Exception, detail: str) -> None:
        self._busy = False
        self._failures.report(
            Failure(kind="mistake", sentence=f"The segments could not be compared: {error}",
                    detail=detail)
        )  # fmt: skip

    def _show_selection(self) -> None:
        index = self._session.selection
        if index is not None and self.model.rowCount():
            row = self.model.row_of(index)
            if row is not None and self.table.currentIndex().row() != row:
                self.table.selectRow(row)
        else:
            self.table.clearSelection()

    def _show_notes(self, table: Table) -> None:
        """Show what the reader of the ratios must know: that the machine drifted."""
        notes = [note for note in table.notes if note != UNPAIRED_NOTE]
        self.note.setText(" ".join(notes))
        self.note.setVisible(bool(notes))

    def _pair(self, row: int) -> tuple[Configuration, Configuration]:
        """Return the configurations of the baseline and of a row."""
        segments = self._session.shown.segments
        return segments[self._session.baseline].configuration, segments[row].configuration

    def _click(self, index: QModelIndex) -> None:
        segment = self.model.segment_at(index.row())
        if segment is None:
            self.model.toggle_group(index.row())
        elif self.model.is_offer(index):
            self._judge(*self._pair(segment))

    def _expand_current(self) -> None:
        """Expand or collapse the group that has the keyboard."""
        if (index := self.table.currentIndex()).isValid():
            self.model.toggle_group(index.row())

    def _double_click(self, index: QModelIndex) -> None:
        segment = self.model.segment_at(index.row())
        if segment is not None and not self.model.is_offer(index):
            self._session.set_baseline(segment)

    def _judge(self, *pair: Configuration) -> None:
        """Measure a verdict of a row against another, or say why that cannot be."""
        verdicts = self._verdicts
        if why_not := verdicts.why_not_pair(*pair):
            self._failures.report(Failure(kind="mistake", sentence=why_not))
        else:
            verdicts.judge_pair(*pair)

    def _show_menu(self, position: QPoint) -> None:
        index = self.table.indexAt(position)
        menu = QMenu(self)
        number = self.model.segment_at(index.row()) if index.isValid() else None
        if number is not None:
            segment = self._session.shown.segments[number]
            menu.addAction("Set as baseline", lambda: self._session.set_baseline(number))
            self._add_verdict(menu, JUDGE, *self._pair(number))
            self._add_verdicts(menu.addMenu("Verdict against this"), number)
            menu.setToolTipsVisible(True)
            menu.addAction("Show in the plots", lambda: self._session.focus(segment.start_s))
            use = menu.addAction("Use its configuration", lambda: self._use(segment))
            catalogue = self._configuration.catalogue
            if missing := config_edit.missing(catalogue, segment.configuration):
                use.setText(for_menu(f"Use its configuration (the runner has no {missing})"))
                use.setEnabled(False)
            menu.addAction("Copy the command that runs it", lambda: self._copy_command(segment))
            menu.addSeparator()
        menu.addAction("Copy table as CSV", self.copy_csv)
        menu.addAction("Copy table as Markdown", self.copy_markdown)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(self.table.viewport().mapToGlobal(position))

    def _add_verdict(self, menu: QMenu, text: str, *pair: Configuration) -> None:
        """Offer a verdict on two configurations; its tip says why there can be none."""
        judge = menu.addAction(text, lambda: self._judge(*pair))
        if why_not := self._verdicts.why_not_pair(*pair):
            judge.setEnabled(False)
            judge.setToolTip(why_not)

    def _add_verdicts(self, menu: QMenu, base: int) -> None:
        """Offer every other row of the table against the base, the newest first."""
        menu.setToolTipsVisible(True)
        segments = self._session.shown.segments
        rows = [row for row in self.model.rows if isinstance(row, int) and row != base]
        for row in rows[: -MOST_PAIRS - 1 : -1]:
            text = f"#{row} {self._session.titled(segments[row].title)}"
            pair = segments[base].configuration, segments[row].configuration
            self._add_verdict(menu, for_menu(clip(text, _LONGEST_NAME)), *pair)

    def _use(self, segment: Segment) -> None:
        catalogue = self._configuration.catalogue
        if catalogue is not None and not config_edit.missing(catalogue, segment.configuration):
            self._configuration.edit(config_edit.adopt(catalogue, segment.configuration))

    def _copy_command(self, segment: Segment) -> None:
        """Copy the command to the clipboard, or say why there is none."""
        try:
            QGuiApplication.clipboard().setText(command_lines.segment_command(segment))
        except SessionError as refusal:
            self._failures.report(Failure(kind="mistake", sentence=str(refusal)))


def _tabulate(session: Session, baseline: int) -> tuple[Table, float]:
    """Return the table, and the seconds of processor time that it took."""
    began = time.thread_time()
    with open_files.reading(session):
        return segments_table(session, baseline), time.thread_time() - began
