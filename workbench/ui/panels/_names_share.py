"""Widths of a table's columns of names: they share the width that the numbers leave."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QHeaderView, QTableView

LETTERS = 18  # least letters of a name; with less room, the table scrolls sideways


class NamesShare(QObject):
    """Width of a view's columns of names: the width that the other columns leave.

    A stretched section would shrink to the least section size, and every name would be elided.
    """

    def __init__(self, view: QTableView) -> None:
        super().__init__(view)
        self._view = view
        self._names: Sequence[int] = ()
        view.horizontalHeader().sectionResized.connect(self._resized)
        view.viewport().installEventFilter(self)

    def set_columns(self, names: Sequence[int]) -> None:
        """Set the columns of names."""
        self._names = names
        for name in names:
            mode = QHeaderView.ResizeMode.Interactive
            self._view.horizontalHeader().setSectionResizeMode(name, mode)
        self._share()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Adjust the columns when the view is resized."""
        if event.type() == QEvent.Type.Resize:
            self._share()
        return super().eventFilter(watched, event)

    def _resized(self, section: int) -> None:
        if section not in self._names:
            self._share()

    def _share(self) -> None:
        header = self._view.horizontalHeader()
        if not self._names or max(self._names) >= header.count():
            return
        fixed = (column for column in range(header.count()) if column not in self._names)
        room = self._view.viewport().width() - sum(map(header.sectionSize, fixed))
        metrics = self._view.fontMetrics()
        least = max(0, self._view.iconSize().width()) + LETTERS * metrics.averageCharWidth()
        for name in self._names:
            self._view.setColumnWidth(name, max(least, room // len(self._names)))
