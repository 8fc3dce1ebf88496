"""The base of a plot's layers, and the entries of its legend.

A layer paints in the pixels of the view box and clips by arithmetic, not by the painter: Qt's SVG
generator ignores clipping, and cosmetic pens under a transform are not understood by every reader
of SVG.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QPainter, QPen
from PySide6.QtWidgets import QGraphicsItem, QStyleOptionGraphicsItem, QWidget

from workbench.charts.guard import guarded
from workbench.charts.layers.frame import Frame


@dataclass(frozen=True)
class Entry:
    """One entry of the legend: a name, its mark, and the reading at a value of x."""

    name: str
    mark: str  # "line", "band", "dots", "cross" or "patch"
    pen: QPen
    brush: QBrush
    reading: Callable[[float], str] | None = None
    widest: str = ""  # the widest reading, for which the legend reserves room
    tail: str = ""  # after the name; it is never elided


class Layer(QGraphicsItem):
    """Base class of items that are painted over the complete view box."""

    z = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.frame: Frame | None = None
        self.fresh = -np.inf  # data to the right of this x changed since the last painting
        self._decimated: tuple[float, ...] = ()
        self.exposed = (-np.inf, np.inf)  # pixels that are being painted
        self.setZValue(self.z)
        self.setFlag(QGraphicsItem.GraphicsItemFlag.ItemUsesExtendedStyleOption)
        self.setAcceptedMouseButtons(Qt.MouseButton.NoButton)

    def entries(self) -> list[Entry]:
        """Return this layer's entries of the legend; none while it has no data."""
        return []

    def pull(self) -> None:
        """Read the rows that the session has gained."""

    def x_span(self) -> tuple[float, float] | None:
        """Return the first and last x with data; None without data."""
        return None

    def update_view(self, frame: Frame) -> None:
        """Decimate what ``frame`` shows if the frame's x range or the data changed."""
        requested_view = (*frame.x, frame.bin)
        if self.fresh < np.inf or requested_view != self._decimated:
            self._decimated = requested_view
            self.decimate(frame)

    def decimate(self, frame: Frame) -> None:
        """Decimate what ``frame`` shows; its y range is not settled yet."""

    def y_span(self) -> tuple[float, float] | None:
        """Return lowest and highest value in view; None if the axis does not follow them."""
        return None

    def settle(self, frame: Frame) -> None:
        """Paint in this frame from now on; if it is the same, repaint only what is fresh."""
        if frame == self.frame:
            if self.fresh < np.inf:
                left = max(0.0, float(frame.px(self.fresh - 2 * frame.bin)) - 4)
                self.update(QRectF(left, 0, frame.width - left, frame.height))
        else:
            self.prepareGeometryChange()
            self.frame = frame
            self.update()
        self.fresh = np.inf

    def boundingRect(self) -> QRectF:
        if self.frame is None:
            return QRectF()
        return QRectF(0, 0, self.frame.width, self.frame.height)

    @guarded
    def paint(
        self,
        painter: QPainter,
        option: QStyleOptionGraphicsItem,
        _widget: QWidget | None = None,
    ) -> None:
        if self.frame is not None:
            exposed = option.exposedRect
            self.exposed = (exposed.left(), exposed.right())
            self.draw(painter, self.frame)

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Paint in the pixels of ``frame``."""


def dot(painter: QPainter, center: QPointF, radius: float, color: QColor) -> None:
    """Draw a filled circle."""
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(color)
    painter.drawEllipse(center, radius, radius)


def cross(painter: QPainter, center: QPointF, radius: float, color: QColor) -> None:
    """Draw two diagonal lines that meet in the center."""
    painter.setPen(QPen(color, 1.5))
    for sign in (-1, 1):
        corner = QPointF(radius, sign * radius)
        painter.drawLine(center - corner, center + corner)
