"""The view of a plot, in which a drag with Shift marks a range instead of moving the plot."""

from __future__ import annotations

from typing import Any

import pyqtgraph as pg
from PySide6.QtCore import Qt, Signal


class View(pg.ViewBox):  # type: ignore[misc]
    """A view box; ``marked`` gives both ends of a range of x while a person drags over it."""

    marked = Signal(float, float)

    def mouseDragEvent(self, event: Any, axis: int | None = None) -> None:
        """Mark a range with Shift; move the view without."""
        shifted = event.modifiers() & Qt.KeyboardModifier.ShiftModifier
        if not shifted or event.button() != Qt.MouseButton.LeftButton:
            super().mouseDragEvent(event, axis)
            return
        event.accept()
        ends = (event.buttonDownPos(), event.pos())
        first, last = (float(self.mapToView(end).x()) for end in ends)
        self.marked.emit(min(first, last), max(first, last))
