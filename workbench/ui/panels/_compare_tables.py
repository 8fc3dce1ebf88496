"""The two tables of a comparison: the sessions with their ratios, and what else differs."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import (
    QMenu,
    QTableWidgetItem,
    QToolButton,
    QWidget,
)

from sessions import numerics
from sessions.model import Configuration
from sessions.numbers import counted
from sessions.sizes import size_text
from sessions.tables import PEAK, RESIDENT, differences_table, memory_heading, number
from sessions.verdicts.comparison import Arm, Comparison
from sessions.verdicts.ratios import UNPAIRED
from sessions.verdicts.verdict_words import claim_words
from sessions.verdicts.work import INVALID, is_invalid
from workbench.plots import Run
from workbench.protocol import Failure
from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.menus.option_picker import NoWheelComboBox
from workbench.ui.panels._names_share import NamesShare
from workbench.ui.panels._segment_model import UNPAIRED_TIP, swatch
from workbench.ui.panels._table import RIGHT, PlainTable, headed
from workbench.ui.panels.segments import JUDGE
from workbench.ui.state.comparison import ComparisonModel
from workbench.ui.state.failures import FailureModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

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
TONES = {"FASTER": "good", "SLOWER": "bad", UNPAIRED: "muted", INVALID: "warning"}  # by verdict
_NUMBERS = range(3, 7)
_BOX_PX = 4  # more for a row, which holds a box to choose from
_SEGMENT, _VERDICT, _MEMORY, _REMOVE = 1, 2, 6, 7  # columns
_REMOVE_PX = 36
_OPTIONAL = (5, 4)  # columns that a narrow window hides; the median's tool tip has their numbers
_SEEN = 3  # rows, at least: one scrolls to the others


class SessionsTable(PlainTable):
    """Table of sessions: the compared segment, its steps, its ratio."""

    segmentChosen = Signal(object, int)  # session, place of the segment
    baselineChosen = Signal(object)  # session
    removed = Signal(object)  # session

    def __init__(
        self,
        session: SessionModel,
        compared: ComparisonModel,
        verdicts: Verdicts,
        failures: FailureModel,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._compared = session, compared
        self._verdicts, self._failures = verdicts, failures
        self._theme = theme
        self._runs: list[Run] = []
        self._comparison: Comparison | None = None
        self._offered: list[object] = []  # by row, the values that its boxes were made from
        self.setColumnCount(len(_COLUMNS))
        self.setHorizontalHeaderLabels(list(_COLUMNS))
        fonts.fix_rows(self, _BOX_PX)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)  # titles often differ at their ends
        header = self.horizontalHeader()
        header.setMinimumSectionSize(_REMOVE_PX)
        header.setStretchLastSection(False)
        self._names = NamesShare(self)
        for column in _NUMBERS:
            heading = QTableWidgetItem(_COLUMNS[column])
            heading.setTextAlignment(RIGHT)
            self.setHorizontalHeaderItem(column, heading)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.customContextMenuRequested.connect(self._show_menu)
        self.cellClicked.connect(
            lambda row, column: (
                self._judge(row) if column == _VERDICT and self._is_offer(row) else None
            )
        )
        self.cellDoubleClicked.connect(
            lambda row, _: self.baselineChosen.emit(self._runs[row].session)
        )

    def show_comparison(self, runs: list[Run], comparison: Comparison) -> None:
        """Fill the rows."""
        self._runs, self._comparison = runs, comparison
        self.setRowCount(len(runs))
        memory = self.horizontalHeaderItem(_MEMORY)
        assert memory is not None
        memory.setText(_MEMORY_TITLES[memory_heading(comparison.arms)])
        head = self.horizontalHeader().sizeHint().height()
        self.setMinimumHeight(head + min(_SEEN, len(runs)) * (fonts.row_px(self.font()) + _BOX_PX))
        for row, (run, arm) in enumerate(zip(runs, comparison.arms, strict=True)):
            title = self.put(row, 0, run.title)
            title.setIcon(swatch(run.color, self._theme.current))
            if row == comparison.baseline:
                bold = fonts.numbers()
                bold.setBold(True)
                title.setFont(bold)
            self._choices(row, run, arm)
            summary = arm.summary
            p95 = number(summary.p95, summary.error)
            median = self.put(row, 3, number(summary.median, summary.error), number=True)
            peak = size_text(arm.peak_bytes)
            median.setToolTip(f"p95 {p95} ms, {counted(summary.n, 'steady step')}, {peak}")
            self.put(row, 4, p95, number=True)
            self.put(row, 5, f"{summary.n:,}", number=True)
            cell = self.put(row, _VERDICT, verdict(arm))
            cell.setForeground(QColor(getattr(self._theme.current, tone(arm))))
            font = fonts.numbers()
            font.setUnderline(self._is_offer(row))
            cell.setFont(font)
            if arm.ratio is not None:
                cell.setToolTip(UNPAIRED_TIP if self._is_offer(row) else arm.ratio.note)
            self.put(row, _MEMORY, peak, number=True)
        del self._offered[len(runs) :]
        self._names.set_columns((0, _SEGMENT), _OPTIONAL, (_MEMORY,))

    def _choices(self, row: int, run: Run, arm: Arm) -> None:
        """Show a row's box and button; keep them if unchanged: they may have the keyboard."""
        titled, compared = self._session.titled, self._compared.sessions
        titles = [f"{segment.index}: {titled(segment.label)}" for segment in run.session.segments]
        removable = any(session.id == run.session.id for session in compared)
        # The session of a live segment is another copy each time.
        same = id(run.session) if removable else run.session.id
        offered = (same, titles, self._theme.current.name)
        if self._offered[row : row + 1] != [offered]:
            self._offered[row : row + 1] = [offered]
            self.setCellWidget(row, _SEGMENT, self._segments(run, titles))
            self.setCellWidget(row, _REMOVE, self._remove_button(run, removable))
        box = self.cellWidget(row, _SEGMENT)
        assert isinstance(box, NoWheelComboBox)
        box.setCurrentIndex(run.session.segments.index(arm.segment))
        box.setToolTip(box.currentText())

    def _segments(self, run: Run, titles: list[str]) -> QWidget:
        box = NoWheelComboBox()
        box.setFrame(False)
        box.addItems(titles)
        box.activated.connect(lambda index: self.segmentChosen.emit(run.session, index))
        return box

    def _remove_button(self, run: Run, removable: bool) -> QWidget:
        button = QToolButton()
        button.setAutoRaise(True)
        button.setIcon(icon("close", self._theme.current, "muted"))
        button.setEnabled(removable)
        button.setToolTip(
            "Remove this session from the comparison"
            if removable
            else "This is the shown session; open another one to replace it"
        )
        button.setAccessibleName(button.toolTip())
        button.clicked.connect(lambda: self.removed.emit(run.session))
        return button

    def _pair(self, row: int) -> tuple[Configuration, Configuration] | None:
        """Return the configurations of the baseline and of a row."""
        if self._comparison is None:
            return None
        arms = self._comparison.arms
        return (
            arms[self._comparison.baseline].segment.configuration,
            arms[row].segment.configuration,
        )

    def _is_offer(self, row: int) -> bool:
        """Return True if a click on the row's ratio asks for a verdict."""
        pair = self._pair(row)
        if pair is None or self._comparison is None or pair[0] == pair[1]:
            return False
        ratio = self._comparison.arms[row].ratio
        return ratio is not None and ratio.verdict == UNPAIRED

    def _why_not_judge(self, row: int) -> str:
        pair = self._pair(row)
        return "" if pair is None else self._verdicts.why_not_pair(*pair)

    def _judge(self, row: int) -> None:
        """Measure a verdict of a row against the baseline, or say why that cannot be."""
        pair = self._pair(row)
        if why_not := self._why_not_judge(row):
            self._failures.report(Failure(kind="mistake", sentence=why_not))
        elif pair is not None:
            self._verdicts.judge_pair(*pair)

    def _show_menu(self, position: QPoint) -> None:
        row = self.rowAt(position.y())
        if not 0 <= row < len(self._runs):
            return
        session = self._runs[row].session
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("Set as baseline", lambda: self.baselineChosen.emit(session))
        judge = menu.addAction(JUDGE, lambda: self._judge(row))
        why_not = self._why_not_judge(row)
        judge.setEnabled(not why_not)
        judge.setToolTip(why_not)
        menu.setToolTipsVisible(True)
        remove = menu.addAction("Remove", lambda: self.removed.emit(session))
        remove.setEnabled(any(other.id == session.id for other in self._compared.sessions))
        menu.popup(self.viewport().mapToGlobal(position))


class DifferencesTable(PlainTable):
    """Table of differences between the sessions, with a column for each session."""

    def show_comparison(self, comparison: Comparison) -> None:
        """Fill the rows."""
        table = differences_table(comparison)
        self.show_table(table)
        first, *titles = (column.heading for column in table.columns)
        self.setHorizontalHeaderLabels([headed(first), *titles])  # titles as they were given


def verdict(arm: Arm) -> str:
    """Return the ratio to the baseline, in words that its basis allows."""
    wrong = numerics.are_wrong(arm.segment.ledger)
    if arm.ratio is None:
        marks = ["baseline", *["WRONG numbers"] * wrong, *[INVALID] * is_invalid(arm.segment)]
        return "; ".join(marks)
    ratio = arm.ratio
    claim = claim_words(ratio.verdict, ratio.ratio, *ratio.ends, ratio.region)
    return f"WRONG numbers; by time {claim}" if wrong else claim


def tone(arm: Arm) -> str:
    """Return a role of the theme's colours; wrong numbers are bad, and invalid steps a warning."""
    if numerics.are_wrong(arm.segment.ledger):
        return "bad"
    if arm.ratio is None:
        return TONES[INVALID] if is_invalid(arm.segment) else "text"
    return TONES.get(arm.ratio.verdict, "text")
