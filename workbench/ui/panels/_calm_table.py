"""A calm table of text: no grid, rows of one height, numbers to the right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from workbench.ui import fonts
from workbench.ui.panels.segments import ROW_HEIGHT

if TYPE_CHECKING:
    from sessions.tables import Table

LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


class CalmTable(QTableWidget):
    """A calm table without a grid."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setShowGrid(False)
        self.setAlternatingRowColors(True)
        self.setWordWrap(False)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(ROW_HEIGHT)
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.horizontalHeader().setStretchLastSection(True)
        self.horizontalHeader().setDefaultAlignment(LEFT)

    def put(self, row: int, column: int, text: str, *, number: bool = False) -> QTableWidgetItem:
        """Set the text of one cell."""
        item = QTableWidgetItem(text)
        item.setFont(fonts.numbers())
        item.setToolTip(text)
        item.setTextAlignment(RIGHT if number else LEFT)
        self.setItem(row, column, item)
        return item

    def show_table(self, table: Table) -> None:
        """Show a table of a session; what is no text is a number."""
        from sessions.tables import text

        if self.columnCount() != len(table.columns):
            self.setColumnCount(len(table.columns))
        self.setHorizontalHeaderLabels([column.heading for column in table.columns])
        self.setRowCount(len(table.rows))
        for row, cells in enumerate(table.rows):
            for column, cell in enumerate(cells):
                self.put(row, column, text(cell), number=not isinstance(cell, str))
