"""Shows a ``sessions.tables.Table`` that can be copied as text."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QHeaderView, QMenu, QWidget

from sessions.tables import Table
from workbench.ui import export
from workbench.ui.panels._calm_table import LEFT, RIGHT, CalmTable


class TableView(CalmTable):
    """One table; the first column takes what room the others leave."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.table: Table | None = None
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)  # kernels differ at their ends
        self.horizontalHeader().setStretchLastSection(False)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.customContextMenuRequested.connect(self._show_menu)

    def show_table(self, table: Table) -> None:
        """Fill the rows."""
        self.table = table
        super().show_table(table)
        self.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        for place in range(len(table.columns)):
            heading = self.horizontalHeaderItem(place)
            assert heading is not None
            heading.setTextAlignment(RIGHT if place else LEFT)

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
