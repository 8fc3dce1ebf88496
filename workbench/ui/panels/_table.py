"""A calm table of text: no grid, rows of one height, numbers to the right; it can be copied."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from PySide6.QtCore import QEvent, QLocale, QPoint, QSignalBlocker, Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QMenu,
    QStyledItemDelegate,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from sessions.numbers import MISSING, Cell
from sessions.plain_text import capitalized, unbroken, wrapped
from sessions.tables import Table, text
from workbench import plot_export
from workbench.theming import fonts

FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit and as a point
_NUMBER = re.compile(r"[+−-]?[\d,]+(?:\.(\d+))?")
_LINES_PX = 6  # above and below a cell of several lines
_MOST_PLACES = 4  # digits after the point to align; longer ones would take too much room
LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_LONGEST_CELL = 500  # characters


class PlainTable(QTableWidget):
    """Read-only table without a grid."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.table: Table | None = None  # the table that is shown
        self._last_px = self._most_px = 0
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)  # Tab goes on; arrows move within
        self.setAlternatingRowColors(True)
        self.setWordWrap(False)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.verticalHeader().hide()
        fonts.fix_rows(self)
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setTextElideMode(Qt.TextElideMode.ElideRight)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.horizontalHeader().setStretchLastSection(True)
        self.horizontalHeader().setDefaultAlignment(LEFT)

    def wrap(self, last_px: int) -> None:
        """Let sentences take several lines; the last column is never narrower than this."""
        self.setWordWrap(True)
        self.setItemDelegate(_Sentences(self))
        self._last_px = last_px
        self.horizontalHeader().setStretchLastSection(False)
        later = QTimer(self)  # when all columns have their widths
        later.setSingleShot(True)
        later.timeout.connect(self._fit_rows)
        for changed in (self.horizontalHeader().sectionResized, self.model().dataChanged):
            changed.connect(lambda *_: later.start(0))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Adapt the width of the last column."""
        super().resizeEvent(event)
        self._fit_last()

    def _fit_last(self) -> None:
        header, last = self.horizontalHeader(), self.columnCount() - 1
        if self._last_px and last >= 0:
            header.setSectionResizeMode(last, QHeaderView.ResizeMode.Interactive)
            taken = sum(header.sectionSize(column) for column in range(last))  # hidden ones have 0
            self.setColumnWidth(last, max(self._last_px, self.viewport().width() - taken))

    def _fit_rows(self) -> None:
        self._fit_last()
        self.resizeRowsToContents()
        for row in range(self.rowCount()):
            least_px, need_px = fonts.row_px(self.font()), self.rowHeight(row)
            self.setRowHeight(row, least_px if need_px <= least_px else need_px + _LINES_PX)

    def narrow(self, most_px: int) -> None:
        """Limit the width of text columns except the last, so that numbers stay visible."""
        self._most_px = most_px
        self._narrow()

    def changeEvent(self, event: QEvent) -> None:
        """Measure the text again in another font or style; it comes when the table is shown."""
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._narrow()

    def _narrow(self) -> None:
        if not self._most_px:
            return
        most_px = fonts.in_type(self._most_px, self.font())
        for column in range(self.columnCount() - 1):
            first = self.item(0, column)
            if first is not None and int(first.textAlignment()) == int(LEFT):
                header = self.horizontalHeader()
                needed_px = max(self.sizeHintForColumn(column), header.sectionSizeHint(column))
                header.setSectionResizeMode(column, QHeaderView.ResizeMode.Interactive)
                self.setColumnWidth(column, min(needed_px, most_px))

    def put(self, row: int, column: int, text: str, *, number: bool = False) -> QTableWidgetItem:
        """Set the text of one cell."""
        item = QTableWidgetItem(text[:_LONGEST_CELL])
        item.setFont(fonts.numbers())
        item.setToolTip(wrapped(text))
        item.setTextAlignment(RIGHT if number else LEFT)
        self.setItem(row, column, item)
        return item

    def show_table(self, table: Table) -> None:
        """Show a table of a session, which can be copied; cells without text are numbers."""
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
        with self.filling():
            for row, cells in enumerate(table.rows):
                for column, cell in enumerate(cells):
                    number = not isinstance(cell, str)
                    item = self.put(row, column, columns[column][row], number=number)
                    item.setToolTip(wrapped(shown[row][column]))

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Announce the cells that change inside the block at its end, all at once.

        Otherwise the header measures its columns after each change of a cell.
        """
        model = self.model()
        with QSignalBlocker(model):
            yield
        if model.rowCount() and model.columnCount():
            last = model.index(model.rowCount() - 1, model.columnCount() - 1)
            model.dataChanged.emit(model.index(0, 0), last)

    def copy(self, suffix: str) -> None:
        """Put the table on the clipboard as ``.csv`` or ``.md``."""
        if self.table is not None:
            plot_export.copy_table(self.table, suffix)

    def _show_copy_menu(self, position: QPoint) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("Copy as Markdown", lambda: self.copy(".md"))
        menu.addAction("Copy as CSV", lambda: self.copy(".csv"))
        menu.popup(self.viewport().mapToGlobal(position))


class _Sentences(QStyledItemDelegate):
    """Painter of cells of several lines; no line ends between a number and its unit."""

    def displayText(self, value: object, locale: QLocale | QLocale.Language) -> str:
        """Return the text that is painted."""
        return unbroken(super().displayText(value, locale))


def with_interval(table: Table, ratio: str, low: str, high: str) -> Table:
    """Return the table with one column instead of three: ``0.66 (0.65 to 0.68)``."""
    first, *ends = (table.column(name) for name in (ratio, low, high))
    columns = [column for column in range(len(table.columns)) if column not in ends]

    def with_ends(row: Sequence[Cell]) -> str:
        value, *interval = (text(row[column]) for column in (first, *ends))
        return value if MISSING in interval else f"{value} ({' to '.join(interval)})"

    rows = [
        [with_ends(row) if column == first else row[column] for column in columns]
        for row in table.rows
    ]
    return Table(table.title, [table.columns[column] for column in columns], rows)


def aligned(texts: Sequence[str]) -> list[str]:
    """Return numbers padded at the right, so that right-aligned decimal points line up.

    Texts that are not numbers do not change.
    """
    matches = [_NUMBER.fullmatch(text) for text in texts]
    decimals = [len(match[1] or "") if match else 0 for match in matches]
    most = max(decimals, default=0)
    if not 0 < most <= _MOST_PLACES:
        return list(texts)
    return [
        text + (POINT_SPACE * (not count) + FIGURE_SPACE * (most - count) if match else "")
        for text, match, count in zip(texts, matches, decimals, strict=True)
    ]


def headed(heading: str) -> str:
    """Return a heading with a capital, unless it is a symbol such as p95."""
    word = heading.split(" ")[0]
    return capitalized(heading) if word.isalpha() and len(word) > 1 else heading
