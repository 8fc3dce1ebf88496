"""Widths of a table's columns of names: they share the width that the numbers leave."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtWidgets import QHeaderView, QTableView

_HEADING_PX = 20  # left and right of a heading
LETTERS = 12  # least letters of a name; with less room, the table scrolls sideways
ROOMY = 26  # letters of a name that come before optional columns


class NamesShare(QObject):
    """Width of a view's columns of names: the width that the other columns leave.

    A stretched section would shrink to the least section size, and every name would be elided.
    """

    def __init__(self, view: QTableView) -> None:
        super().__init__(view)
        self._view = view
        self._names: Sequence[int] = ()
        self._optional: Sequence[int] = ()
        self._reserve: Sequence[int] = ()
        self._needs: dict[int, int] = {}  # widths of these columns, in the font of the key
        self._font = ""
        self._later = QTimer(self)  # when the sections that were shown again have their sizes
        self._later.setSingleShot(True)
        self._later.timeout.connect(self._share)
        view.horizontalHeader().sectionResized.connect(self._resized)
        view.viewport().installEventFilter(self)

    def set_columns(
        self, names: Sequence[int], optional: Sequence[int] = (), reserve: Sequence[int] = ()
    ) -> None:
        """Set the columns of names, and those that are hidden where there is no room for them.

        Optional columns are hidden, the first one first, until names are roomy. Reserve columns
        follow only where the table would scroll sideways otherwise.
        """
        for column in {*self._optional, *self._reserve} - {*optional, *reserve}:
            self._view.setColumnHidden(column, False)
        self._names, self._optional, self._reserve = names, optional, reserve
        self._font = ""
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
        if section in (*self._optional, *self._reserve):
            self._later.start(0)
        elif section not in self._names:
            self._share()

    def _share(self) -> None:
        header = self._view.horizontalHeader()
        if not self._names or max(self._names) >= header.count():
            return
        metrics = self._view.fontMetrics()
        least = max(0, self._view.iconSize().width()) + LETTERS * metrics.averageCharWidth()
        self._hide(least)
        fixed = (column for column in range(header.count()) if column not in self._names)
        room = self._view.viewport().width() - sum(map(header.sectionSize, fixed))
        widths = {}
        # A short name leaves what it does not need to longer ones.
        for count, name in enumerate(sorted(self._names, key=self._needs.__getitem__)):
            share = room // (len(self._names) - count)
            widths[name] = max(least, min(self._needs[name], share))
            room -= widths[name]
        more = max(0, room) // len(self._names)
        for name, width in widths.items():
            self._view.setColumnWidth(name, width + more)

    def _hide(self, least: int) -> None:
        """Hide columns until the names are complete, or have their least width in pixels."""
        view, header = self._view, self._view.horizontalHeader()
        varying = {*self._names, *self._optional, *self._reserve}
        if self._font != view.font().key():
            self._font = view.font().key()
            self._needs = {column: self._need(column) for column in varying}
        fixed = (column for column in range(header.count()) if column not in varying)
        room = view.viewport().width() - sum(map(header.sectionSize, fixed))
        needed = sum(self._needs[column] for column in (*self._optional, *self._reserve))
        for columns, most in (
            (self._optional, least * ROOMY // LETTERS),
            (self._reserve, least),
        ):
            names_px = sum(max(least, min(most, self._needs[name])) for name in self._names)
            for column in columns:
                hidden = needed > room - names_px
                view.setColumnHidden(column, hidden)
                needed -= self._needs[column] if hidden else 0

    def _need(self, column: int) -> int:
        """Return the width that a column needs, which a hidden one's header does not report."""
        view = self._view
        heading = view.model().headerData(column, Qt.Orientation.Horizontal)
        heading_px = view.fontMetrics().horizontalAdvance(str(heading)) + _HEADING_PX
        return max(view.sizeHintForColumn(column), heading_px)
