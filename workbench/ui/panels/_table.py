"""A calm table of text: no grid, rows of one height, numbers to the right; it can be copied."""

from __future__ import annotations

import re
from collections.abc import Sequence

from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QMenu,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from sessions.numbers import MISSING, Cell
from sessions.plain_text import wrapped
from sessions.tables import Table, text
from workbench import plot_export
from workbench.theming import fonts
from workbench.ui.panels.segments import ROW_HEIGHT

FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a figure, as a point
_NUMBER = re.compile(r"[+−-]?[\d,]+(?:\.(\d+))?")
_LINES_PX = 6  # above and below a cell of several lines
_MOST_PLACES = 4  # after the point; where there are more, room is worth more than order
LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_LONGEST_CELL = 500  # characters


class CalmTable(QTableWidget):
    """A calm table without a grid."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.table: Table | None = None  # that is shown
        self._last_px = 0
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)  # Tab goes on; arrows move within
        self.setAlternatingRowColors(True)
        self.setWordWrap(False)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(ROW_HEIGHT)
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setTextElideMode(Qt.TextElideMode.ElideRight)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.horizontalHeader().setStretchLastSection(True)
        self.horizontalHeader().setDefaultAlignment(LEFT)

    def wrap(self, last_px: int) -> None:
        """Let sentences take several lines; the last column is never narrower than this."""
        self.setWordWrap(True)
        self._last_px = last_px
        self.horizontalHeader().setStretchLastSection(False)
        self.verticalHeader().setMinimumSectionSize(ROW_HEIGHT)
        later = QTimer(self)  # when all columns have their widths
        later.setSingleShot(True)
        later.timeout.connect(self._fit_rows)
        for changed in (self.horizontalHeader().sectionResized, self.model().dataChanged):
            changed.connect(lambda *_: later.start(0))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Give what is gained or lost to the last column."""
        super().resizeEvent(event)
        self._fit_last()

    def _fit_last(self) -> None:
        header, last = self.horizontalHeader(), self.columnCount() - 1
        if self._last_px and last >= 0:
            header.setSectionResizeMode(last, QHeaderView.ResizeMode.Interactive)
            others = sum(header.sectionSize(place) for place in range(last))  # hidden ones have 0
            self.setColumnWidth(last, max(self._last_px, self.viewport().width() - others))

    def _fit_rows(self) -> None:
        self._fit_last()
        self.resizeRowsToContents()
        for row in range(self.rowCount()):
            if self.rowHeight(row) > ROW_HEIGHT:
                self.setRowHeight(row, self.rowHeight(row) + _LINES_PX)

    def narrow(self, most_px: int) -> None:
        """Let no column of texts but the last be wider, so that the numbers beside it are seen."""
        for place in range(self.columnCount() - 1):
            first = self.item(0, place)
            if first is not None and int(first.textAlignment()) == int(LEFT):
                header = self.horizontalHeader()
                wanted = max(self.sizeHintForColumn(place), header.sectionSizeHint(place))
                header.setSectionResizeMode(place, QHeaderView.ResizeMode.Interactive)
                self.setColumnWidth(place, min(wanted, most_px))

    def put(self, row: int, column: int, text: str, *, number: bool = False) -> QTableWidgetItem:
        """Set the text of one cell."""
        item = QTableWidgetItem(text[:_LONGEST_CELL])
        item.setFont(fonts.numbers())
        item.setToolTip(wrapped(text))
        item.setTextAlignment(RIGHT if number else LEFT)
        self.setItem(row, column, item)
        return item

    def show_table(self, table: Table) -> None:
        """Show a table of a session, which can be copied; what is no text is a number."""
        if self.table is None:
            self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
            self.customContextMenuRequested.connect(self._show_copy_menu)
        self.table = table
        shown = [[text(cell) for cell in row] for row in table.rows]
        columns = [aligned(column) for column in zip(*shown, strict=True)]
        if self.columnCount() != len(table.columns):
            self.setColumnCount(len(table.columns))
        self.setHorizontalHeaderLabels([headed(column.heading) for column in table.columns])
        self.setRowCount(len(table.rows))
        for row, cells in enumerate(table.rows):
            for column, cell in enumerate(cells):
                self.put(row, column, columns[column][row], number=not isinstance(cell, str))
                item = self.item(row, column)
                assert item is not None
                item.setToolTip(wrapped(shown[row][column]))

    def copy(self, suffix: str) -> None:
        """Put the table on the clipboard as ``.csv`` or ``.md``."""
        if self.table is not None:
            plot_export.copy_table(self.table, suffix)

    def _show_copy_menu(self, place: QPoint) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("Copy as Markdown", lambda: self.copy(".md"))
        menu.addAction("Copy as CSV", lambda: self.copy(".csv"))
        menu.popup(self.viewport().mapToGlobal(place))


def with_interval(table: Table, ratio: str, low: str, high: str) -> Table:
    """The table with one column in place of three: ``0.66 (0.65 to 0.68)``."""
    first, *ends = (table.column(name) for name in (ratio, low, high))
    kept = [place for place in range(len(table.columns)) if place not in ends]

    def told(row: Sequence[Cell]) -> str:
        value, *interval = (text(row[place]) for place in (first, *ends))
        return value if MISSING in interval else f"{value} ({' to '.join(interval)})"

    rows = [[told(row) if place == first else row[place] for place in kept] for row in table.rows]
    return Table(table.title, [table.columns[place] for place in kept], rows)


def aligned(texts: Sequence[str]) -> list[str]:
    """Numbers filled up at the right, so that their points stand above another at a right edge.

    What is no number stays as it is.
    """
    found = [_NUMBER.fullmatch(text) for text in texts]
    places = [len(match[1] or "") if match else 0 for match in found]
    most = max(places, default=0)
    if not 0 < most <= _MOST_PLACES:
        return list(texts)
    return [
        text + (POINT_SPACE * (not own) + FIGURE_SPACE * (most - own) if match else "")
        for text, match, own in zip(texts, found, places, strict=True)
    ]


def headed(heading: str) -> str:
    """A heading that begins as all do: a word with a capital, a symbol such as p95 as it is."""
    word = heading.split(" ")[0]
    return heading[:1].upper() + heading[1:] if word.isalpha() and len(word) > 1 else heading
