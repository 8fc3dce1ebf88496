"""Protection against plot items that cannot be painted: their errors reach the canvas."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QGraphicsItem


def guarded(paint: Callable[..., None]) -> Callable[..., None]:
    """Give an exception of an item's ``paint`` to the canvas that the item belongs to.

    Qt would print it, and leave the plot half painted. The painter's state is restored.
    """

    @functools.wraps(paint)
    def paint_guarded(self: QGraphicsItem, painter: QPainter, *args: Any) -> None:
        painter.save()
        try:
            paint(self, painter, *args)
        except Exception as error:
            ancestor: Any = self
            while ancestor is not None and not hasattr(ancestor, "report_error"):
                ancestor = ancestor.parentItem()
            if ancestor is None:
                raise
            ancestor.report_error(error)
        finally:
            painter.restore()

    return paint_guarded
