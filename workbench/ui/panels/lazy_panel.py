"""A panel that is made after the window is first painted, because its libraries load slowly."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from workbench.ui.panels import _widgets

AFTER_PAINT_MS = 30


class LazyPanel(QWidget):
    """An empty surface until the event loop is idle, then the panel."""

    made = Signal(QWidget)

    def __init__(
        self,
        make: Callable[[], QWidget],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._make = make
        self._panel: QWidget | None = None
        self._layout = _widgets.tight(QVBoxLayout(self), 0)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.panel)

    def panel(self) -> QWidget:
        """Return the panel; make it if necessary."""
        if self._panel is None:
            self._panel = self._make()
            self._layout.addWidget(self._panel)
            self.made.emit(self._panel)
        return self._panel

    def showEvent(self, event: QShowEvent) -> None:
        """Make the panel once this was painted."""
        super().showEvent(event)
        if self._panel is None:
            self._timer.start(AFTER_PAINT_MS)
