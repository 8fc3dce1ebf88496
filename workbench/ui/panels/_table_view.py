"""Shows a ``sessions.tables.Table`` whose first column takes the free room."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from sessions.tables import Table
from workbench.ui.panels._names_share import NamesShare
from workbench.ui.panels._table import LEFT, RIGHT, PlainTable


class TableView(PlainTable):
    """Table whose first column takes the width that the other columns leave."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)  # kernels differ at their ends
        self.horizontalHeader().setStretchLastSection(False)
        self._names = NamesShare(self)

    def show_table(self, table: Table) -> None:
        """Fill the rows."""
        super().show_table(table)
        for column in range(len(table.columns)):
            heading = self.horizontalHeaderItem(column)
            assert heading is not None
            heading.setTextAlignment(RIGHT if column else LEFT)
        self._names.set_columns([0])
