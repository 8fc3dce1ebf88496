"""The plot item that plots draw on: axes with units, layers, legend, lane of markers.

It decimates its layers to the pixels that show them, once per change, and lets the y axis follow
what is visible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import pyqtgraph as pg
from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QPainter, QPen
from PySide6.QtWidgets import QGraphicsScene

from sessions.numbers import is_drawable
from workbench.charts.axis import Axis
from workbench.charts.header import Header
from workbench.charts.layers.curves import TrackLayer
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.layers.marked_range import MarkedRange
from workbench.charts.layers.markers import Lane, Markers
from workbench.charts.layers.phases import Phases
from workbench.charts.style import Style, shade
from workbench.charts.units import Unit, nice_step
from workbench.charts.view_box import View

# Share by which samples may extend the y axis: single outliers must not flatten the curve.
_REACH = 0.6
_BELOW_STRIP_PX = 5.0  # begin of that note: under the colours of the segments
_NOTE_ROOM = 0.1  # share of the axis for that note
_NOTE_PX = 300.0  # largest distance of the note on clipped values from the right edge
_BINS_PER_OCTAVE = 4  # bin widths are rounded to these, so that a growing view shimmers rarely


class Canvas(pg.PlotItem):  # type: ignore[misc]
    """A plot item with layers instead of pyqtgraph's curves; draws nothing without them.

    ``broken`` announces the first error of an item that could not be painted; ``error`` keeps it.
    """

    broken = Signal()

    def __init__(self, style: Style) -> None:
        super().__init__(
            viewBox=View(enableMenu=False, defaultPadding=0.0),
            axisItems={name: Axis(name, style) for name in ("left", "bottom", "right")},
            enableMenu=False,
        )
        self.chart_style = style
        self.error: Exception | None = None
        self.layers: list[Layer] = []
        self.zero = True  # the y axis begins at zero
        self.captions = True  # phases and markers are named here, not only drawn
        self.fixed_y: tuple[float, float] | None = None
        self.least_x: tuple[float, float] | None = None  # span that the x axis has with any data
        self.auto_range_x = True  # the x axis spans all data
        self.auto_range_y = True
        self.pad_x = 0.01
        self._busy = False
        self._cursor = Cursor(style)
        self._off_scale = OffScale(style)
        self._marked = MarkedRange(style)
        self.header = Header(style)
        self.lane = Lane(style)
        for name in ("left", "bottom", "right"):
            self.axis(name).setZValue(-1000)  # the grid lies under the data
        self.hideButtons()
        self.showAxis("right", False)
        self.layout.removeItem(self.titleLabel)
        self.layout.removeItem(self.axes["top"]["item"])
        self.axes["top"]["item"].hide()
        self.layout.addItem(self.header, 0, 0, 1, 3)
        self.layout.addItem(self.lane, 1, 1)
        for row in (0, 1, 3):
            self.layout.setRowStretchFactor(row, 0)
        margin = 12 if style.paper else 6
        self.layout.setContentsMargins(margin, margin, 2 * margin, margin)
        self.layout.setRowSpacing(0, 6)
        self.setMinimumSize(0.0, 0.0)  # its view's: what stands around the plot changes after it
        self.vb.disableAutoRange()
        self.vb.setMouseEnabled(x=True, y=False)
        self.vb.sigXRangeChanged.connect(self._on_x_range)
        self.vb.sigYRangeChanged.connect(self._on_y_range)
        self.vb.sigResized.connect(self.relook)
        for overlay in (self._marked, self._cursor, self._off_scale):
            overlay.setParentItem(self.vb)

    def report_error(self, error: Exception) -> None:
        """Store the error of an item that could not be painted."""
        if self.error is None:
            self.error = error
            self.broken.emit()

    def axis(self, name: str) -> Axis:
        """Return the ``left``, ``bottom`` or ``right`` axis."""
        axis: Axis = self.axes[name]["item"]
        return axis

    def describe(self, x: tuple[Unit, str], y: tuple[Unit, str]) -> None:
        """Set units and titles of the two axes."""
        self.axis("bottom").describe(*x)
        self.axis("left").describe(*y)

    def show_right(self, unit: Unit, title: str, factor: float) -> None:
        """Show a second scale: one unit of the left axis is ``factor`` of this ``unit``."""
        right = self.axis("right")
        right.factor = factor
        self.showAxis("right", True)
        right.describe(unit, title)

    def add(self, layer: Layer) -> None:
        """Stack a layer; it paints from the next refresh on."""
        self.layers.append(layer)
        layer.setParentItem(self.vb)

    def clear_layers(self) -> None:
        """Empty the canvas; ranges stay."""
        for layer in self.layers:
            layer.setParentItem(None)
            if layer.scene() is not None:
                layer.scene().removeItem(layer)
        self.layers = []
        self.error = None
        self.fixed_y = self.least_x = None
        self.zero = True
        self.header.title = self.header.subtitle = ""
        self.axis("left").categories = None
        self.showAxis("right", False)

    def align(self, left_px: float, right_px: float) -> None:
        """Reserve at least this room left and right of the view, to line up with other plots."""
        self.axis("left").least_px = left_px
        self.layout.setColumnMinimumWidth(2, right_px)

    def refresh(self) -> None:
        """Read new data of the sessions and show it."""
        for layer in self.layers:
            layer.pull()
        if self.auto_range_x:
            span = self.x_span()
            if span is not None:
                first, last = span
                pad = self.pad_x * (last - first) or (0.5 if last == first else 0.0)
                self._busy = True
                self.vb.setXRange(first - pad, last + pad, padding=0)
                self._busy = False
        self.relook()

    def show_x(self, start: float, stop: float) -> None:
        """Show this range of x of the data read so far."""
        if stop > start and [start, stop] != self.vb.viewRange()[0]:
            self._busy = True
            self.vb.setXRange(start, stop, padding=0)
            self._busy = False
        self.relook()

    def x_span(self) -> tuple[float, float] | None:
        """Return first and last x of all data and of data to come."""
        spans = _finite_spans(layer.x_span() for layer in self.layers)
        if not spans:
            return None
        spans += [] if self.least_x is None else [self.least_x]
        return min(span[0] for span in spans), max(span[1] for span in spans)

    def relook(self) -> None:
        """Decimate for the range that is visible, and let the y axis follow."""
        if self._busy:
            return
        # Axes and legend may have taken all the room for what they held then.
        if not self._decimate_layers():
            self._arrange()
            if not self._decimate_layers():
                return
        if self._arrange():
            if not self._decimate_layers():
                return
            self._label_marks()
        self._settle()

    def set_cursor(self, x: float | None) -> None:
        """Show the cursor's line at ``x`` and the values there; None hides it."""
        self._cursor.show_at(x)
        self.header.set_cursor(x)

    def mark_range(self, span: tuple[float, float] | None) -> None:
        """Show two measuring cursors; None hides them."""
        self._marked.named = self.captions
        self._marked.show_span(span)

    @property
    def marked_range(self) -> tuple[float, float] | None:
        """Positions of the two measuring cursors, or None."""
        return self._marked.span

    @property
    def cursor(self) -> float | None:
        """Return the x of the cursor's line; None if there is none."""
        return self._cursor.line_x

    def entries(self) -> list[Entry]:
        """Return all entries of the legend, the series before the phases."""
        entries = [
            entry
            for layer in self.layers
            if self.captions or not isinstance(layer, Phases)
            for entry in layer.entries()
        ]
        return sorted(entries, key=lambda entry: entry.mark == "patch")

    def resizeEvent(self, event: object) -> None:
        super().resizeEvent(event)
        if hasattr(self, "header"):
            self.header.arrange()

    def _frame(self, rect: QRectF) -> Frame:
        (left, right), (bottom, top) = self.vb.viewRange()
        bin_width = (right - left) / (max(1.0, rect.width()) * self.chart_style.density)
        octaves = math.floor(_BINS_PER_OCTAVE * math.log2(bin_width)) / _BINS_PER_OCTAVE
        return Frame((left, right), (bottom, top), rect.width(), rect.height(), 2.0**octaves)

    def _decimate_layers(self) -> bool:
        """Decimate each layer for the visible range; return False if there is no room to draw."""
        rect = self.vb.rect()
        if rect.width() < 2 or rect.height() < 2:
            return False
        frame = self._frame(rect)
        for layer in self.layers:
            layer.update_view(frame)
        if self.auto_range_y:
            self._fit_y()
        return True

    def _arrange(self) -> bool:
        """Give axes, legend and lane the room they need; return True if that changed anything."""
        changed = [self.axis("left").fit(), self.axis("bottom").fit()]
        if self.axis("right").isVisible():
            changed.append(self.axis("right").fit())
        changed += [self.header.set_entries(self.entries()), self._label_marks()]
        if not any(changed):
            return False
        self._busy = True
        self.layout.activate()
        self._busy = False
        return True

    def _label_marks(self) -> bool:
        layers = self.layers if self.captions else []
        marks = [mark for layer in layers if isinstance(layer, Markers) for mark in layer.marks]
        return self.lane.show_marks(marks, self._frame(self.vb.rect()))

    def _settle(self) -> None:
        frame = self._frame(self.vb.rect())
        text = self._above(frame)
        if text != self._off_scale.text:
            self._off_scale.text = text
            self._off_scale.fresh = -math.inf
        for layer in self.layers:
            if isinstance(layer, Phases):
                layer.name_left_of(self._off_scale.left(frame))
        for layer in [*self.layers, self._marked, self._cursor, self._off_scale]:
            layer.settle(frame)

    def _fit_y(self) -> None:
        if self.fixed_y is not None:
            low, high = self.fixed_y
            self._set_y(low, high if high > low else low + 1.0)  # a plot without rows
            return
        spans = _finite_spans(layer.y_span() for layer in self.layers)
        loose = _finite_spans(
            layer.extremes() for layer in self.layers if isinstance(layer, TrackLayer)
        )
        if not loose and not spans:
            return
        spans = spans or loose
        low, high = min(s[0] for s in spans), max(s[1] for s in spans)
        base = min(0.0, low) if self.zero else low
        reach = _REACH * ((high - base) or abs(high) or 1.0)
        for layer in self.layers:
            if isinstance(layer, TrackLayer):
                lowest, highest = layer.extremes_within(low - reach, high + reach)
                low, high = (low if self.zero else min(low, lowest)), max(high, highest)
        if any(high < span[1] for span in loose):
            high += _NOTE_ROOM * (high - base)
        if self.zero:
            low = min(0.0, low)
        if high <= low:
            pad = abs(high) * 0.05 or 1.0
            low, high = (low, high + pad) if self.zero else (low - pad, high + pad)
        self._set_y(low, high)

    def _set_y(self, low: float, high: float) -> None:
        """Round limits up to a step, and keep them while the data still fills them well."""
        step = nice_step((high - low) / 10)
        top = high + 0.4 * step
        bottom = low if self.fixed_y or (self.zero and low >= 0) else low - 0.4 * step
        if self.fixed_y:
            top = high
        old_bottom, old_top = self.vb.viewRange()[1]
        fits = old_bottom <= bottom and old_top >= top
        if fits and not self.fixed_y and (top - bottom) > 0.75 * (old_top - old_bottom):
            return
        self._busy = True
        self.vb.setYRange(bottom, top, padding=0)
        self._busy = False

    def _above(self, frame: Frame) -> str:
        highest = -math.inf
        for layer in self.layers:
            if isinstance(layer, TrackLayer) and (span := layer.extremes()) is not None:
                highest = max(highest, span[1])
        if highest <= frame.y[1] or self.fixed_y is not None:
            return ""
        return f"above the axis: up to {self.axis('left').unit.text(highest)}"

    def _on_x_range(self) -> None:
        self.relook()

    def _on_y_range(self) -> None:
        if not self._busy and self.vb.rect().width() >= 2:
            self._settle()


def canvas_view() -> pg.GraphicsView:
    """Return an empty view for one canvas.

    Its scene has no index of its items: the grid's axes grow with the view box and do not tell, so
    that an index would go on naming, and painting, a canvas that is gone.
    """
    view = pg.GraphicsView(background=None)
    view.scene().setItemIndexMethod(QGraphicsScene.ItemIndexMethod.NoIndex)
    return view


class Cursor(Layer):
    """The upright line under the mouse, shared by stacked plots."""

    z = 60.0

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._style = style
        self.line_x: float | None = None

    def show_at(self, x: float | None) -> None:
        """Move the line; only two strips are repainted."""
        for line_x in (self.line_x, x):
            if line_x is not None and self.frame is not None:
                left = float(self.frame.px(line_x)) - 2
                self.update(QRectF(left, 0, 4, self.frame.height))
        self.line_x = x

    def draw(self, painter: QPainter, frame: Frame) -> None:
        if self.line_x is None or not frame.x[0] <= self.line_x <= frame.x[1]:
            return
        x = (self.line_x - frame.x[0]) * frame.width / (frame.x[1] - frame.x[0])
        painter.setPen(QPen(shade(self._style.theme.text, 0.7), 1))
        painter.drawLine(QPointF(x, 0), QPointF(x, frame.height))


class OffScale(Layer):
    """Note on how far samples reach beyond the y axis."""

    z = 50.0

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._style = style
        self.text = ""

    def left(self, frame: Frame) -> float:
        """Return the left edge of the note, in pixels; the frame's right edge without a note."""
        metrics = QFontMetricsF(self._style.font(small=True))
        left = frame.width - metrics.horizontalAdvance(self.text) - 24
        return left if self.text and left > -4 else frame.width

    def draw(self, painter: QPainter, frame: Frame) -> None:
        begins = self.left(frame)
        if begins >= frame.width or self.exposed[1] < frame.width - _NOTE_PX:
            return
        style = self._style
        font = style.font(small=True)
        metrics = QFontMetricsF(font)
        left = begins + 16
        plate = QRectF(begins, _BELOW_STRIP_PX, frame.width - 2 - begins, metrics.height() + 2)
        painter.fillRect(plate, shade(style.theme.surface, 0.92))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(shade(style.theme.muted))
        middle = plate.center().y()
        painter.drawPolygon(
            [
                QPointF(left - 12, middle + 3),
                QPointF(left - 8, middle - 4),
                QPointF(left - 4, middle + 3),
            ]
        )
        painter.setFont(font)
        painter.setPen(shade(style.theme.muted))
        painter.drawText(QPointF(left, plate.top() + 1 + metrics.ascent()), self.text)


def _finite_spans(spans: Iterable[tuple[float, float] | None]) -> list[tuple[float, float]]:
    """Return the spans that can be shown; a file may hold numbers that no axis can reach."""
    return [span for span in spans if span is not None and all(map(is_drawable, span))]
