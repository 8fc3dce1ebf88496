"""A table with a search field, whose columns sort it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QVBoxLayout, QWidget

from sessions.numbers import Cell
from sessions.tables import Measured, Table, text
from workbench.ui.panels import _widgets
from workbench.ui.panels._table_view import TableView


class SearchedTable(QWidget):
    """Rows of a table that match the search, sorted by the heading that was clicked.

    ``remarks`` are longer texts of the rows: they are searched too, and are the tips of the names.
    """

    def __init__(self, placeholder: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._all = Table("", [], [])
        self._remarks: Sequence[str] = ()
        self._order: tuple[int, bool] | None = None  # column, descending
        self.search = QLineEdit()
        self.search.setPlaceholderText(placeholder)
        self.search.setAccessibleName(placeholder)
        self.search.setClearButtonEnabled(True)
        self.search.textChanged.connect(self._show)
        self.view = TableView()
        header = self.view.horizontalHeader()
        header.setSectionsClickable(True)
        header.sectionClicked.connect(self._sort)
        column = _widgets.tight(QVBoxLayout(self), 4)
        search_row = _widgets.tight(QVBoxLayout(), 0)
        search_row.setContentsMargins(8, 4, 8, 0)
        search_row.addWidget(self.search)
        column.addLayout(search_row)
        column.addWidget(self.view, 1)

    def show_table(self, table: Table, remarks: Sequence[str] = ()) -> None:
        """Show these rows, in the order and by the search of those before."""
        if self._order is not None and self._order[0] >= len(table.columns):
            self._order = None
        self._all, self._remarks = table, remarks
        self._show()

    def _sort(self, column: int) -> None:
        if self._order is not None and self._order[0] == column:
            self._order = (column, not self._order[1])
        else:
            self._order = (column, self._all.numeric()[column])  # the largest number first
        self._show()

    def _show(self) -> None:
        search_text = self.search.text().casefold()
        numbers = [n for n in range(len(self._all.rows)) if search_text in self._words(n)]
        header = self.view.horizontalHeader()
        if self._order is not None:
            column, descending = self._order
            numbers.sort(key=lambda n: _key(self._all.rows[n][column], descending))
            order = Qt.SortOrder.DescendingOrder if descending else Qt.SortOrder.AscendingOrder
            header.setSortIndicator(column, order)
        header.setSortIndicatorShown(self._order is not None)
        rows = [self._all.rows[n] for n in numbers]
        self.view.show_table(Table(self._all.title, self._all.columns, rows, self._all.notes))
        for row, n in enumerate(numbers):
            if n < len(self._remarks) and (item := self.view.item(row, 0)) is not None:
                item.setToolTip(self._remarks[n])

    def _words(self, row: int) -> str:
        remark = self._remarks[row] if row < len(self._remarks) else ""
        return f"{remark} {' '.join(map(text, self._all.rows[row]))}".casefold()


def _key(cell: Cell, descending: bool) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by size, texts by letters, and what is missing last."""
    value = cell.value if isinstance(cell, Measured) else cell
    if isinstance(value, str):
        if descending:
            return False, 0.0, "".join(chr(0x10FFFF - ord(letter)) for letter in value.casefold())
        return False, 0.0, value.casefold()
    number = float("nan") if value is None else float(value)
    return number != number, (-number if descending else number) if number == number else 0.0, ""
