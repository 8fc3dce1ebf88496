"""The kernel timeline of a profile with its search, and the statistics of a range."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, Qt
from PySide6.QtGui import QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from sessions.numbers import counted
from sessions.studies import timeline
from workbench.charts.units import PERCENT
from workbench.plots import PLOTS, Run
from workbench.plots._profiles import MICROSECONDS
from workbench.plots.kernel_timeline import Slices
from workbench.theming import fonts
from workbench.ui.panels import _plot_keys, _widgets
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._splitter import Splitter
from workbench.ui.panels._table_view import TableView
from workbench.ui.panels._throttle import ThrottledCall
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state.theme import ThemeModel

HINT = "Wheel or W S: zoom. Drag or A D: move. Shift and drag: statistics of a range."
_LEAST_DRAG_PX = 3


class KernelTimeline(QWidget):
    """The timeline above the statistics of the selected or visible range."""

    def __init__(self, theme: ThemeModel, tasks: Tasks, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.chart = Chart(PLOTS["kernel_timeline"], theme.current, tasks)
        self.chart.setMinimumSize(240, 140)
        self.chart.pointed.connect(self._point)
        self.chart.clicked.connect(self._pick)
        self.chart.resetWanted.connect(lambda: self.select(None))
        self.chart._view.viewport().installEventFilter(self)
        self.chart._view.installEventFilter(self)
        self.chart.installEventFilter(self)
        self.chart.more.installEventFilter(self)
        self.search = QLineEdit()
        self.search.setPlaceholderText("Search kernels and modules")
        self.search.setAccessibleName(self.search.placeholderText())
        self.search.setClearButtonEnabled(True)
        fonts.fix_width(self.search, 200)
        self.search.textChanged.connect(self._search)
        self.readout = _widgets.OneLine(Qt.TextElideMode.ElideRight)
        self.readout.setProperty("muted", True)
        self.range = _widgets.note()
        self.statistics = TableView()
        self._range_start: float | None = None  # x at which a range begins
        self._pressed = QPoint()
        self._matches = 0
        self._throttled_summary = ThrottledCall(self._summarize, self)
        self.chart.rangePicked.connect(self._throttled_summary.schedule)
        search_row = _widgets.tight(QHBoxLayout(), 8)
        search_row.setContentsMargins(8, 4, 8, 4)
        search_row.addWidget(self.search)
        search_row.addWidget(self.readout, 1)
        self.statistics.hide()
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addLayout(search_row)
        parts = ((self.chart, 3), (self.statistics, 2))
        layout.addWidget(Splitter(Qt.Orientation.Vertical, *parts), 1)
        layout.addLayout(_widgets.inset(self.range, 2, 4))

    @property
    def layer(self) -> Slices | None:
        """The slices that are drawn."""
        layers = self.chart.canvas.layers
        return next((layer for layer in layers if isinstance(layer, Slices)), None)

    def show_run(self, run: Run, profile: str) -> None:
        """Show the timeline of a profile of this number."""
        self.chart.options["profile"] = profile
        self.chart.canvas.auto_range_x = True
        self.chart.show_runs([run])
        self.readout.say(HINT)
        self._search(self.search.text())

    def select(self, selection: tuple[float, float] | None) -> None:
        """Mark a range and show its statistics; None shows those of the visible part."""
        if (layer := self.layer) is not None:
            layer.select(selection)
            self._summarize()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Move with W, A, S and D, and select a range by dragging with Shift."""
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            return self._move(event)
        if isinstance(event, QMouseEvent) and watched is self.chart._view.viewport():
            return self._drag(event)
        return super().eventFilter(watched, event)

    def _move(self, event: QKeyEvent) -> bool:
        if event.modifiers() not in (Qt.KeyboardModifier.NoModifier,):
            return False
        match event.key():
            case Qt.Key.Key_W:
                self.chart.zoom(1 / _plot_keys.ZOOM)
            case Qt.Key.Key_S:
                self.chart.zoom(_plot_keys.ZOOM)
            case Qt.Key.Key_A:
                self.chart.pan(-_plot_keys.STEP)
            case Qt.Key.Key_D:
                self.chart.pan(_plot_keys.STEP)
            case _:
                return False
        return True

    def _drag(self, event: QMouseEvent) -> bool:
        point = self._x_at(event.position().toPoint())
        with_shift = event.modifiers() & Qt.KeyboardModifier.ShiftModifier
        match event.type():
            case QEvent.Type.MouseButtonPress if with_shift and point is not None:
                self._range_start, self._pressed = point, event.position().toPoint()
                return True
            case QEvent.Type.MouseMove if self._range_start is not None and point is not None:
                self.select((min(self._range_start, point), max(self._range_start, point)))
                return True
            case QEvent.Type.MouseButtonRelease if self._range_start is not None:
                moved = (event.position().toPoint() - self._pressed).manhattanLength()
                self._range_start = None
                if moved < _LEAST_DRAG_PX:
                    self.select(None)
                return True
        return False

    def _x_at(self, pixel: QPoint) -> float | None:
        box = self.chart.canvas.vb
        scene = self.chart._view.mapToScene(pixel)
        inside = box.sceneBoundingRect()
        x = min(max(scene.x(), inside.left()), inside.right())
        return float(box.mapSceneToView(QPointF(x, scene.y())).x())

    def _point(self, point: QPointF | None) -> None:
        if (layer := self.layer) is None:
            return
        hit = layer.at(point.x(), point.y()) if point is not None else None
        layer.hover(hit)
        self.chart.set_cursor(None if point is None else point.x())
        self.readout.say(hit.text if hit else HINT)

    def _pick(self, point: QPointF) -> None:
        layer = self.layer
        hit = layer.at(point.x(), point.y()) if layer is not None else None
        self.select(None if hit is None else (hit.start_us, hit.stop_us))

    def _search(self, text: str) -> None:
        if (layer := self.layer) is not None:
            self._matches = layer.search(text)
            self._summarize()

    def _summarize(self) -> None:
        layer = self.layer
        if layer is None:
            return
        data, text = layer.timeline, self.search.text()
        if layer.selection is not None:
            start, stop = layer.selection
        else:
            low, high = self.chart.canvas.vb.viewRange()[0]
            start, stop = max(0.0, low), min(data.end_us, high)
        rows = data.statistics(start, stop, data.matching(text) if text else None)
        item_title = "Kernel" if data.on_device else "Operator"
        self.statistics.setVisible(layer.selection is not None or bool(text))
        self.statistics.show_table(timeline.statistics_table(rows, item_title))
        self.range.setText(self._range_text(layer, start, stop, rows))

    def _range_text(
        self, layer: Slices, start: float, stop: float, rows: list[timeline.Statistic]
    ) -> str:
        width = max(stop - start, 1e-9)
        count, total_us = sum(row.count for row in rows), sum(row.total_us for row in rows)
        name = "Selected" if layer.selection is not None else "Visible"
        item = "kernel" if layer.timeline.on_device else "operator"
        parts = [f"{name}: {MICROSECONDS.text(width)}", counted(count, item)]
        parts.append(f"{MICROSECONDS.text(total_us)} of work")
        idle_us = layer.timeline.idle_us(start, stop)
        if idle_us == idle_us:
            parts.append(f"GPU idle {PERCENT.text(100 * idle_us / width)}")
        if self.search.text():
            parts.append(
                f"{self._matches:,} {'match' if self._matches == 1 else 'matches'} overall"
            )
        return ", ".join(parts)
