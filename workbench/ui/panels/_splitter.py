"""A splitter that divides its room by shares, at the start and again after a double click."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QSplitter, QSplitterHandle, QWidget


class Splitter(QSplitter):
    """Splitter of widgets with their shares of the room; none collapses."""

    def __init__(self, direction: Qt.Orientation, *parts: tuple[QWidget, int]) -> None:
        super().__init__(direction)
        self.setChildrenCollapsible(False)
        self._shares = [share for _, share in parts]
        for index, (part, share) in enumerate(parts):
            self.addWidget(part)
            self.setStretchFactor(index, share)
        self.divide()

    def createHandle(self) -> QSplitterHandle:
        """Return a handle that takes double clicks."""
        return _Handle(self.orientation(), self)

    def divide(self) -> None:
        """Divide the room by the shares."""
        self.setSizes([100 * share for share in self._shares])


class _Handle(QSplitterHandle):
    """Handle between two widgets; a double click divides the room by the shares again."""

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        splitter = self.splitter()
        assert isinstance(splitter, Splitter)
        splitter.divide()
