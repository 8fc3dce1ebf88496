"""Shows a ``sessions.tables.Table``: calm rows, numbers to the right, copied as text."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QMenu,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from sessions.numbers import text
from sessions.tables import Table
from workbench.ui import export, fonts
from workbench.ui.panels.segments import ROW_HEIGHT

_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


class TableView(QTableWidget):
    """One table; the first column takes what room the others leave."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.table: Table | None = None
        self.setShowGrid(False)
        self.setAlternatingRowColors(True)
        self.setWordWrap(False)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(ROW_HEIGHT)
        self.horizontalHeader().setHighlightSections(False)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.customContextMenuRequested.connect(self._show_menu)

    def show_table(self, table: Table) -> None:
        """Fill the rows."""
        self.table = table
        self.setColumnCount(len(table.columns))
        self.setRowCount(len(table.rows))
        for place, column in enumerate(table.columns):
            heading = QTableWidgetItem(column.heading)
            heading.setTextAlignment(_RIGHT if place else _LEFT)
            self.setHorizontalHeaderItem(place, heading)
        for row, cells in enumerate(table.rows):
            for place, cell in enumerate(cells):
                item = QTableWidgetItem(text(cell))
                item.setFont(fonts.numbers())
                item.setToolTip(text(cell))
                item.setTextAlignment(_RIGHT if place else _LEFT)
                self.setItem(row, place, item)
        header = self.horizontalHeader()
        for place in range(len(table.columns)):
            mode = QHeaderView.ResizeMode.ResizeToContents
            header.setSectionResizeMode(place, mode if place else QHeaderView.ResizeMode.Stretch)

    def copy(self, suffix: str) -> None:
        """Put the table on the clipboard as ``.csv`` or ``.md``."""
        if self.table is not None:
            export.copy_table(self.table, suffix)

    def _show_menu(self, place: QPoint) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("Copy as Markdown", lambda: self.copy(".md"))
        menu.addAction("Copy as CSV", lambda: self.copy(".csv"))
        menu.popup(self.viewport().mapToGlobal(place))
