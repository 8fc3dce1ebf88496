"""An axis with units: a few round ticks, a faint grid, a label that names the unit in use."""

from __future__ import annotations

import math

import pyqtgraph as pg
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter
from PySide6.QtWidgets import QStyleOptionGraphicsItem, QWidget

from workbench.charts.guard import guarded
from workbench.charts.style import Style, shade
from workbench.charts.units import STEPS, Unit
from workbench.theming.icons import mixed

_OFFSET, _APART = 6.0, 4.0  # between axis and tick text; between two texts
_CATEGORY_PX, _CATEGORY_SHARE = 240.0, 0.35  # largest name: pixels, and share of the chart
_GRID_SCREEN, _GRID_PAPER = 0.55, 0.8


class Axis(pg.AxisItem):  # type: ignore[misc]
    """Draws ticks itself: pyqtgraph's own take about 2 ms an axis and know no binary units.

    ``factor`` is what one unit of the view is worth on this axis, for a second scale on the right.
    """

    def __init__(self, orientation: str, style: Style) -> None:
        super().__init__(orientation)
        self.enableAutoSIPrefix(False)
        self.setFlag(self.GraphicsItemFlag.ItemUsesExtendedStyleOption)
        self.chart_style = style
        self.unit: Unit = STEPS
        self.title = ""
        self.factor = 1.0
        self.texts = True  # False: grid only, for all but the last of a stack
        self.least_px = 0.0  # so that stacked plots line up
        self._ticks_key: object = None
        self._ticks_cached: tuple[list[float], list[str], str] = ([], [], "")
        self._fitted_for: object = None
        self.categories: list[tuple[float, str]] | None = None
        self.setGrid(1.0 if orientation != "right" else False)

    def setRange(self, mn: float, mx: float) -> None:
        """Show this range; pyqtgraph's own sets the label's HTML at every change."""
        self.range = [mn, mx]
        self.update()

    def boundingRect(self) -> QRectF:
        """Return the area with the texts at both ends: Qt would not erase them outside of it."""
        area = super().boundingRect()
        over = 0.0 if self.orientation == "bottom" else self.chart_style.font_px
        return area.adjusted(0, -over, 0, over)

    def describe(self, unit: Unit, title: str) -> None:
        """Set what the axis measures."""
        self.unit, self.title = unit, title
        self.fit()

    def fit(self) -> bool:
        """Take the room that ticks and label need; return True if the size changed.

        A vertical axis of numbers only grows; names take less in a narrower chart.
        """
        room = self._category_px()
        key = (self._ticks(), self.title, self.texts, self.least_px, self.categories, room)
        if key == self._fitted_for:
            return False
        self._fitted_for = key
        metrics = QFontMetricsF(self.chart_style.font())
        line = metrics.height()
        if self.orientation == "bottom":
            height = (line + _OFFSET + (line if self.title else 0) + 2) if self.texts else 6.0
            if height == self.fixedHeight:
                return False
            self.setHeight(height)
            return True
        if self.categories is not None:
            texts = [metrics.elidedText(text, _MIDDLE, room) for _, text in self.categories]
        else:
            texts = [*self._ticks()[1], "8888"]
        widest = max((metrics.horizontalAdvance(text) for text in texts), default=0.0)
        need = widest + _OFFSET + (line + 4 if self.title else 4)
        width = round(max(need, self.least_px))
        if width == self.fixedWidth or (
            self.fixedWidth is not None and width < self.fixedWidth and self.categories is None
        ):
            return False
        self.setWidth(width)
        return True

    def _category_px(self) -> float:
        plot = self.parentItem()
        width = 0.0 if plot is None else plot.boundingRect().width()
        return min(_CATEGORY_PX, _CATEGORY_SHARE * width) if width > 0 else _CATEGORY_PX

    def caption(self) -> str:
        """Return the axis's title with the unit that its ticks are in."""
        symbol = self._ticks()[2] if self.categories is None else ""
        return f"{self.title} ({symbol})" if symbol and self.title else self.title

    def _fitted(self, metrics: QFontMetricsF, length: float) -> str:
        """Return the caption, or the unit alone if a small plot has no room for it."""
        caption = self.caption()
        if metrics.horizontalAdvance(caption) <= length or self.orientation == "bottom":
            return metrics.elidedText(caption, Qt.TextElideMode.ElideRight, max(length, 40.0))
        return self._ticks()[2]

    def _ticks(self) -> tuple[list[float], list[str], str]:
        low, high = (value * self.factor for value in self.range)
        font_px = self.chart_style.font_px
        if self.orientation == "bottom":
            most = int(self.size().width() / (7 * font_px))
        else:
            most = int(self.size().height() / (2.5 * font_px))
        key = (low, high, most, self.unit, self.factor)
        if key != self._ticks_key:
            tick_count = max(2, min(most, 10))
            places, texts, symbol = self.unit.ticks(low, high, tick_count)
            if len(places) < 2:  # a small plot still shows the range of its axis
                places, texts, symbol = self.unit.ticks(low, high, 2 * tick_count)
            self._ticks_key = key
            self._ticks_cached = [position / self.factor for position in places], texts, symbol
        return self._ticks_cached

    @guarded
    def paint(
        self,
        painter: QPainter,
        option: QStyleOptionGraphicsItem,
        _widget: QWidget | None = None,
    ) -> None:
        view = self.linkedView()
        low, high = self.range
        if view is None or not high > low:
            return
        area = self.mapRectFromItem(view, view.rect())
        if self.categories is not None:
            places = [position for position, _ in self.categories]
            texts = [text for _, text in self.categories]
        else:
            places, texts, _ = self._ticks()
        vertical = self.orientation != "bottom"
        if vertical:
            pixels = [area.bottom() - (p - low) * area.height() / (high - low) for p in places]
        else:
            pixels = [area.left() + (p - low) * area.width() / (high - low) for p in places]
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, self.chart_style.paper)
        self._draw_grid(painter, area, pixels)
        # Qt asks for a pixel or two more than has changed.
        if self.texts and not area.adjusted(-3, -3, 3, 3).contains(option.exposedRect):
            self._draw_texts(painter, area, pixels, texts)

    def _draw_grid(self, painter: QPainter, area: QRectF, pixels: list[float]) -> None:
        # Opaque rectangles: translucent lines took Qt's raster engine 2 ms an axis.
        theme = self.chart_style.theme
        share = _GRID_PAPER if self.chart_style.paper else _GRID_SCREEN
        color = QColor(mixed(theme.line, theme.surface, share))
        if self.orientation == "bottom":
            for pixel in pixels:
                painter.fillRect(QRectF(round(pixel), area.top(), 1, area.height()), color)
            axis = QColor(mixed(theme.muted, theme.surface, 0.7))
            painter.fillRect(QRectF(area.left(), round(area.bottom()), area.width(), 1), axis)
        elif self.orientation == "left" and self.categories is None:
            for pixel in pixels:
                painter.fillRect(QRectF(area.left(), round(pixel), area.width(), 1), color)

    def _draw_texts(
        self, painter: QPainter, area: QRectF, pixels: list[float], texts: list[str]
    ) -> None:
        style = self.chart_style
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        font = style.font()
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        painter.setPen(shade(style.theme.muted))
        free_from = -math.inf  # where the text before ends
        drawn = self.boundingRect() | area  # Qt clips what is outside
        for pixel, text in zip(pixels, texts, strict=True):
            if self.orientation == "bottom":
                width = metrics.horizontalAdvance(text)
                left = max(drawn.left(), min(pixel - width / 2, drawn.right() - width))
                if left < free_from:
                    continue
                free_from = left + width + _APART
                painter.drawText(QPointF(left, area.bottom() + _OFFSET + metrics.ascent()), text)
                continue
            baseline = pixel + (metrics.ascent() - metrics.descent()) / 2
            if self.orientation == "right":
                painter.drawText(QPointF(area.right() + _OFFSET, baseline), text)
                continue
            shown = metrics.elidedText(text, _MIDDLE, self._category_px())
            left = area.left() - _OFFSET - metrics.horizontalAdvance(shown)
            painter.drawText(QPointF(left, baseline), shown)
        self._draw_label(painter, area, metrics)

    def _draw_label(self, painter: QPainter, area: QRectF, metrics: QFontMetricsF) -> None:
        if not self.title:
            return
        length = area.width() if self.orientation == "bottom" else area.height()
        label = self._fitted(metrics, length)
        width = metrics.horizontalAdvance(label)
        painter.setPen(shade(self.chart_style.theme.text))
        if self.orientation == "bottom":
            bottom = self.boundingRect().bottom() - metrics.descent() - 1
            painter.drawText(QPointF(area.center().x() - width / 2, bottom), label)
            return
        painter.save()
        if self.orientation == "left":
            painter.translate(metrics.ascent(), area.center().y() + width / 2)
            painter.rotate(-90)
        else:
            painter.translate(self.size().width() - metrics.ascent(), area.center().y() - width / 2)
            painter.rotate(90)
        painter.drawText(QPointF(0, 0), label)
        painter.restore()


_MIDDLE = Qt.TextElideMode.ElideMiddle
