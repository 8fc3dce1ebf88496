"""The base of what a plot stacks on its canvas, and the entries of its legend.

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
    """One entry of the legend: a name, its mark, and the reading at a place of x."""

    name: str
    mark: str  # "line", "band", "dots" or "patch"
    pen: QPen
    brush: QBrush
    reading: Callable[[float], str] | None = None
    widest: str = ""  # what a reading may grow to, so that the legend keeps still
    tail: str = ""  # after the name, and kept whole where the name is elided


class Layer(QGraphicsItem):
    """Base: something painted over the whole view box."""

    z = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.frame: Frame | None = None
        self.fresh = -np.inf  # what lies right of this place of x has changed since last painted
        self._looked: tuple[float, ...] = ()
        self.exposed = (-np.inf, np.inf)  # pixels that are being painted
        self.setZValue(self.z)
        self.setFlag(QGraphicsItem.GraphicsItemFlag.ItemUsesExtendedStyleOption)
        self.setAcceptedMouseButtons(Qt.MouseButton.NoButton)

    def entries(self) -> list[Entry]:
        """Return what the legend says about this layer; nothing while it has no data."""
        return []

    def pull(self) -> None:
        """Take in what the session has gained."""

    def x_span(self) -> tuple[float, float] | None:
        """Return the first and last place that the layer has something at."""
        return None

    def look_at(self, frame: Frame) -> None:
        """Decimate what ``frame`` shows, if it shows anything else than it did."""
        wanted = (*frame.x, frame.bin)
        if self.fresh < np.inf or wanted != self._looked:
            self._looked = wanted
            self.look(frame)

    def look(self, frame: Frame) -> None:
        """Decimate what ``frame`` shows; its y range is not settled yet."""

    def y_span(self) -> tuple[float, float] | None:
        """Return lowest and highest value in view; None if the axis does not follow them."""
        return None

    def settle(self, frame: Frame) -> None:
        """Paint in this frame from now on; only what is fresh, where the frame is the same."""
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
