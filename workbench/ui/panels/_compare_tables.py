"""The two tables of a comparison: the sessions with their ratios, and what else differs."""

from __future__ import annotations

import math

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QColor, QResizeEvent
from PySide6.QtWidgets import (
    QHeaderView,
    QMenu,
    QTableWidgetItem,
    QToolButton,
    QWidget,
)

from sessions import checked
from sessions.comparison import Arm, Comparison
from sessions.sizes import size_text
from sessions.statistics import Ratio
from sessions.tables import PEAK, RESIDENT, differences_table, memory_heading, number
from workbench.ui import fonts
from workbench.ui.icons import icon
from workbench.ui.option_picker import CalmComboBox
from workbench.ui.panels import _parts
from workbench.ui.panels._calm_table import RIGHT, CalmTable, headed
from workbench.ui.panels._segment_model import swatch
from workbench.ui.panels.segments import ROW_HEIGHT
from workbench.ui.plots import Run
from workbench.ui.state import AppState

_COLUMNS = (
    "Session",
    "Segment",
    "Against the baseline",
    "Median (ms)",
    "p95 (ms)",
    "Steady steps",
    "Peak memory",
    "",
)
_MEMORY_TITLES = {PEAK: "Peak memory", RESIDENT: "Resident set"}
MARGIN = 0.01  # of the step time; less is not called a difference
_NUMBERS = range(3, 7)
_ROW_PX = ROW_HEIGHT + 4  # a row holds a box to choose from
_SEGMENT, _VERDICT, _MEMORY, _REMOVE = 1, 2, 6, 7  # columns
_REMOVE_PX = 36
_SHARING, _SHARING_PX = (0, 1), 112  # columns of texts, and each one's least width
_SEEN = 3  # rows, at least: one scrolls to the others


class SessionsTable(CalmTable):
    """One row a session: the segment it takes part with, its steps, its ratio."""

    segmentChosen = Signal(object, int)  # session, place of the segment
    baselineChosen = Signal(object)  # session
    removed = Signal(object)  # session

    def __init__(self, state: AppState, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self._runs: list[Run] = []
        self._offered: list[object] = []  # what the boxes of each row are made from
        self.setColumnCount(len(_COLUMNS))
        self.setHorizontalHeaderLabels(list(_COLUMNS))
        self.verticalHeader().setDefaultSectionSize(_ROW_PX)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)  # titles often differ at their ends
        header = self.horizontalHeader()
        header.setMinimumSectionSize(_REMOVE_PX)
        for column in _SHARING:
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.Interactive)
        header.sectionResized.connect(lambda column, *_: self._share(column))
        header.setStretchLastSection(False)
        header.setSectionResizeMode(_REMOVE, QHeaderView.ResizeMode.Fixed)
        self.setColumnWidth(_REMOVE, _REMOVE_PX)
        for column in _NUMBERS:
            heading = QTableWidgetItem(_COLUMNS[column])
            heading.setTextAlignment(RIGHT)
            self.setHorizontalHeaderItem(column, heading)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.customContextMenuRequested.connect(self._show_menu)
        self.cellDoubleClicked.connect(
            lambda row, _: self.baselineChosen.emit(self._runs[row].session)
        )

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Share the room anew."""
        super().resizeEvent(event)
        self._share()

    def _share(self, column: int = -1) -> None:
        """Titles and segments share what the numbers leave, and stay legible; titles, by which
        sessions are told apart, have what they need first.
        """
        if column not in _SHARING:
            header = self.horizontalHeader()
            others = (header.sectionSize(at) for at in range(len(_COLUMNS)) if at not in _SHARING)
            room = max(self.viewport().width() - sum(others), len(_SHARING) * _SHARING_PX)
            title_px = max(room // 2, min(self.sizeHintForColumn(0), room - _SHARING_PX))
            for at, width in zip(_SHARING, (title_px, room - title_px), strict=True):
                self.setColumnWidth(at, width)

    def show_comparison(self, runs: list[Run], comparison: Comparison) -> None:
        """Fill the rows."""
        self._runs = runs
        self.setRowCount(len(runs))
        memory = self.horizontalHeaderItem(_MEMORY)
        assert memory is not None
        memory.setText(_MEMORY_TITLES[memory_heading(comparison.arms)])
        head = self.horizontalHeader().sizeHint().height()
        self.setMinimumHeight(head + min(_SEEN, len(runs)) * _ROW_PX)
        for row, (run, arm) in enumerate(zip(runs, comparison.arms, strict=True)):
            title = self.put(row, 0, run.session.title)
            title.setIcon(swatch(run.color, self._state.theme))
            if row == comparison.baseline:
                bold = fonts.numbers()
                bold.setBold(True)
                title.setFont(bold)
            self._choices(row, run, arm)
            summary = arm.summary
            self.put(row, 5, f"{summary.n:,}", number=True)
            self.put(row, 3, number(summary.median, summary.error), number=True)
            self.put(row, 4, number(summary.p95, summary.error), number=True)
            cell = self.put(row, _VERDICT, verdict(arm))
            cell.setForeground(QColor(getattr(self._state.theme, tone(arm))))
            if arm.ratio is not None:
                how = arm.ratio.reason or f"95 % interval by {arm.ratio.method}"
                cell.setToolTip(how)
            self.put(row, _MEMORY, size_text(arm.peak_bytes), number=True)
        del self._offered[len(runs) :]
        self._share()

    def _choices(self, row: int, run: Run, arm: Arm) -> None:
        """The row's box and button; made anew only for others, who may have the keyboard."""
        titled, others = self._state.titled, self._state.compared.sessions
        titles = [f"{one.index}: {titled(one.label)}" for one in run.session.segments]
        removable = any(session.id == run.session.id for session in others)
        same = id(run.session) if removable else run.session.id  # a live one's is a copy each time
        offered = (same, titles, self._state.theme.name)
        if self._offered[row : row + 1] != [offered]:
            self._offered[row : row + 1] = [offered]
            self.setCellWidget(row, _SEGMENT, self._segments(run, titles))
            self.setCellWidget(row, _REMOVE, self._remove_button(run, removable))
        box = self.cellWidget(row, _SEGMENT)
        assert isinstance(box, CalmComboBox)
        box.setCurrentIndex(run.session.segments.index(arm.segment))
        box.setToolTip(box.currentText())

    def _segments(self, run: Run, titles: list[str]) -> QWidget:
        box = CalmComboBox()
        box.setFrame(False)
        box.addItems(titles)
        box.activated.connect(lambda place: self.segmentChosen.emit(run.session, place))
        return box

    def _remove_button(self, run: Run, removable: bool) -> QWidget:
        button = QToolButton()
        button.setAutoRaise(True)
        button.setIconSize(_parts.SMALL_ICON)
        button.setIcon(icon("close", self._state.theme, "muted"))
        button.setEnabled(removable)
        button.setToolTip(
            "Take this session out of the comparison"
            if removable
            else "This is the session that is shown; open another one in its place"
        )
        button.setAccessibleName(button.toolTip())
        button.clicked.connect(lambda: self.removed.emit(run.session))
        return button

    def _show_menu(self, place: QPoint) -> None:
        row = self.rowAt(place.y())
        if not 0 <= row < len(self._runs):
            return
        session = self._runs[row].session
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("Set as baseline", lambda: self.baselineChosen.emit(session))
        remove = menu.addAction("Take out", lambda: self.removed.emit(session))
        remove.setEnabled(any(other.id == session.id for other in self._state.compared.sessions))
        menu.popup(self.viewport().mapToGlobal(place))


class DifferencesTable(CalmTable):
    """One row for each thing that differs, one column a session."""

    def show_comparison(self, comparison: Comparison) -> None:
        """Fill the rows."""
        table = differences_table(comparison)
        self.show_table(table)
        first, *titles = (column.heading for column in table.columns)
        self.setHorizontalHeaderLabels([headed(first), *titles])  # titles as they were given


def verdict(arm: Arm) -> str:
    """The ratio with its interval, and in words what it says; no more than the interval allows."""
    numbers = ""
    if checked.are_wrong(arm.segment.ledger):
        numbers = "; WRONG numbers" if arm.ratio is None else "WRONG numbers; by time "
    return f"baseline{numbers}" if arm.ratio is None else f"{numbers}{_by_time(arm, arm.ratio)}"


def _by_time(arm: Arm, found: Ratio) -> str:
    if math.isnan(found.ratio):
        return "no ratio"  # the tool tip has the reason, and a warning above says it
    if found.low is None or found.high is None:
        why = f", no interval: {found.reason.partition(':')[0]}"
        return f"{number(found.ratio)} ×{' for other work' if arm.other_work else why}"
    error = (found.high - found.low) / 2
    span = f"{number(found.low, error)} to {number(found.high, error)}"
    said = "for other work" if arm.other_work else reading(found)
    return f"{number(found.ratio, error)} × ({span}), {said}"


def reading(found: Ratio) -> str:
    """What an interval says in words; a difference of under one per cent is none."""
    if found.low is None or found.high is None:
        return "undecided"
    if found.high < 1 - MARGIN:
        return "faster"
    if found.low > 1 + MARGIN:
        return "slower"
    if found.low > 1 - MARGIN and found.high < 1 + MARGIN:
        return f"the same within {100 * MARGIN:.0f} %"
    return "undecided"


def tone(arm: Arm) -> str:
    """``good``, ``bad`` or ``text``: a colour of the theme; wrong numbers are bad, however fast."""
    if checked.are_wrong(arm.segment.ledger):
        return "bad"
    if arm.ratio is None or arm.other_work:
        return "text"
    return {"faster": "good", "slower": "bad"}.get(reading(arm.ratio), "text")
