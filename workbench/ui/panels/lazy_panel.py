"""A panel that is made after the window is first painted, because its libraries load slowly."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from workbench.ui.panels import _widgets
from workbench.ui.panels._least_height import least_height

AFTER_PAINT_MS = 30
LEAST = QSize(240, 120)  # size of a panel in a dock; a larger one scrolls


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
            area = LowScrollArea(self._panel)
            self._layout.addWidget(area)
            area.show()  # now: the keyboard may move into it
            self.made.emit(self._panel)
        return self._panel

    def showEvent(self, event: QShowEvent) -> None:
        """Make the panel once this was painted."""
        super().showEvent(event)
        if self._panel is None:
            self._timer.start(AFTER_PAINT_MS)


class LowScrollArea(QScrollArea):
    """Area of a panel that scrolls only in a dock that is smaller than the panel can be.

    A panel that leaves out parts where it is low has a method ``least_height(width)``: the height
    below which parts that it always shows would be cut off.
    """

    def __init__(self, panel: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._panel = panel
        self.setProperty("panel", True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # Tab reaches what is inside
        self.setWidget(panel)
        panel.setAutoFillBackground(False)
        self._fit()

    def minimumSizeHint(self) -> QSize:
        """Return what the panel needs, up to ``LEAST``."""
        return self._panel.minimumSizeHint().boundedTo(LEAST)

    def sizeHint(self) -> QSize:
        """Return the size that the panel prefers."""
        return self._panel.sizeHint()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fill the area with the panel."""
        super().resizeEvent(event)
        self._fit()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Follow a panel that needs another size than before."""
        if event.type() == QEvent.Type.LayoutRequest and watched is self._panel:
            self.updateGeometry()
            self._fit()
        return super().eventFilter(watched, event)

    def _fit(self) -> None:
        room = self.maximumViewportSize()
        width = max(room.width(), self._panel.minimumSizeHint().width())
        height = self._least_height(width)
        if height > room.height():  # beside a scroll bar
            bar_px = self.verticalScrollBar().sizeHint().width()
            width = max(width - bar_px, self._panel.minimumSizeHint().width())
            height = self._least_height(width)
        self._panel.resize(width, max(height, room.height()))

    def _least_height(self, width: int) -> int:
        own: Callable[[int], int] | None = getattr(self._panel, "least_height", None)
        return least_height(self._panel, width) if own is None else own(width)
