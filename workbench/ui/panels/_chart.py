"""Host of one plot: canvas, crosshair, menu of actions, and the text when there is no plot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import TypeVar

from PySide6.QtCore import QEvent, QPoint, QPointF, Qt, Signal
from PySide6.QtGui import (
    QAction,
    QActionGroup,
    QFontInfo,
    QGuiApplication,
    QPainter,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import (
    QApplication,
    QLabel,
    QMenu,
    QMessageBox,
    QStackedLayout,
    QToolButton,
    QWidget,
)

from workbench import crash_log, plot_export
from workbench.charts.canvas import Canvas, canvas_view
from workbench.charts.style import Style, screen_style, shade
from workbench.plots import Plot, Run
from workbench.theming.theme import Theme
from workbench.ui.dialogs import message_boxes
from workbench.ui.panels import _plot_keys
from workbench.ui.process import uncaught
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state import session_files

_Result = TypeVar("_Result")

_MENU_PX = 28
_LEAST_RANGE = 1e-9  # relative to the position: below it, the grid of FP64 numbers is visible
_MOST_SPANS = 4.0  # times the data: in a larger range the data would be a dot
EMPTY_CHECK_S = 0.5  # between two looks whether a plot without data has some by now
_FILTERS = {
    ".png": "Image (*.png)",
    ".svg": "Vector drawing (*.svg)",
    ".pdf": "Document (*.pdf)",
    ".csv": "Data (*.csv)",
}


class Chart(QWidget):
    """Widget of a plot.

    ``cursorMoved`` carries x under the mouse, None when it leaves. ``rangePicked``: the user zoomed
    or moved the plot. ``resetWanted``: the user wants to see all data again.
    """

    cursorMoved = Signal(object)
    rangePicked = Signal()
    resetWanted = Signal()
    pointed = Signal(object)  # QPointF in units of the axes under the mouse, None when it leaves
    clicked = Signal(object)  # the same, of a single click
    rangeMarked = Signal(float, float)  # a drag with Shift: both ends in units of x

    def __init__(
        self, plot: Plot, theme: Theme, tasks: Tasks, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.plot = plot
        self._tasks = tasks
        self._at_work = 0  # number of background tasks
        self.runs: list[Run] = []
        self.options: dict[str, str] = {}  # the user's choices; otherwise the first one
        self._key: object = None
        self.readings = False
        # Adds to the menu what concerns the place of x under the mouse, None where there is none.
        self.menu_extension: Callable[[QMenu, float | None], None] | None = None
        self.brief = False  # one line if there is nothing to draw and little room
        self.zero = True
        self._theme = theme
        self._undressed = False  # the canvas has another theme
        self._reason: str | None = None
        self._broken = False  # the plot could not be drawn
        self._looked_at = 0.0
        self._view = canvas_view()
        self._view.setRenderHint(QPainter.RenderHint.TextAntialiasing)
        self._view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self._view.customContextMenuRequested.connect(self._show_menu)
        self._view.scene().sigMouseMoved.connect(self._on_mouse)
        self._view.scene().sigMouseClicked.connect(self._on_click)
        self._view.installEventFilter(self)
        self._empty = QLabel()
        self._empty.setProperty("markup", True)
        self._empty.setTextFormat(Qt.TextFormat.RichText)  # text has no style sheet
        self._empty.setWordWrap(True)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._empty.setMargin(16)
        self._stack = QStackedLayout(self)
        self._stack.addWidget(self._view)
        self._stack.addWidget(self._empty)
        self.more = QToolButton(self)
        self.more.setText("⋯")
        self.more.setAutoRaise(True)
        self.more.setToolTip(f"{plot.title}: export, copy, options")
        self.more.setAccessibleName(self.more.toolTip())
        self.more.clicked.connect(
            lambda: self._show_menu(self._view.mapFromGlobal(self._button_corner()))
        )
        self._view.setFocusProxy(self.more)  # a click gives the plot the keyboard, and it is seen
        self.keys = _plot_keys.actions(self, self)
        self.canvas = self._new_canvas()
        self._dress()

    @property
    def reason(self) -> str | None:
        """The reason why nothing is drawn, or None."""
        return self._reason

    def is_seen(self) -> bool:
        """Return True if a part of the plot is in front and not scrolled away."""
        return not self._view.viewport().visibleRegion().isEmpty()

    def set_theme(self, theme: Theme) -> None:
        """Draw in these colours and the present type; a hidden plot is drawn when it is shown."""
        self._theme = theme
        if self._style() != self.canvas.chart_style:
            self._undressed = not self.isVisible()
            if not self._undressed:
                self._redraw_canvas()

    def showEvent(self, event: QShowEvent) -> None:
        """Take the theme that came while the plot was hidden."""
        super().showEvent(event)
        if self._undressed:
            self._undressed = False
            self._redraw_canvas()

    def _redraw_canvas(self) -> None:
        """Make a canvas in the present theme with the content of the previous canvas."""
        x_range = self.canvas.vb.viewRange()[0]
        auto_range_x = self.canvas.auto_range_x
        texts, captions = self.canvas.axis("bottom").texts, self.canvas.captions
        marked = self.canvas.marked_range
        self.canvas = self._new_canvas()
        self.canvas.mark_range(marked)
        self.canvas.auto_range_x, self.canvas.captions = auto_range_x, captions
        self.canvas.axis("bottom").texts = texts
        self.canvas.vb.setXRange(*x_range, padding=0)
        self._dress()
        self.show_runs(self.runs)

    def show_runs(self, runs: Sequence[Run]) -> None:
        """Draw these runs instead; the range of x stays unless the canvas follows the data."""
        self.runs = list(runs)
        self._broken = False
        try:
            self._draw_runs()
        except Exception as error:  # noqa: BLE001 - the plots beside it go on
            self._break(error)

    def _draw_runs(self) -> None:
        offered = self.plot.choices(self.runs)
        self.options = {n: c for n, c in self.options.items() if c in offered.get(n, ())}
        self._key = self.plot.key(self.runs)
        self.canvas.clear_layers()
        self._reason = self.plot.can_show(self.runs)
        for action in self.keys.values():
            action.setEnabled(self._reason is None)
        self._looked_at = time.monotonic()
        if self._reason is not None:
            self._show_reason(self._reason)
            return
        self.plot.paint(self.canvas, self.runs, self.canvas.chart_style, **self.options)
        self.canvas.zero = self.canvas.zero and self.zero
        self.canvas.header.readings = self.readings
        self._stack.setCurrentWidget(self._view)
        self.more.show()
        self.more.raise_()
        self.canvas.refresh()

    def _show_reason(self, reason: str) -> None:
        separator = "&nbsp;&nbsp; " if self.brief else "<br><br>"
        self._empty.setText(f"<b>{escape(self.plot.title)}</b>{separator}{escape(reason)}")
        self._empty.setMargin(4 if self.brief else 16)
        self._stack.setCurrentWidget(self._empty)
        self.more.hide()

    def _break(self, error: Exception) -> None:
        """Say in the plot's own area that it cannot be drawn; it waits until it is drawn again."""
        self._broken = True
        self._reason = f"This plot could not be drawn: {crash_log.describe(error)}."
        self._show_reason(self._reason)
        uncaught.report(error)

    def _on_broken(self) -> None:
        if self.canvas.error is not None and not self._broken:
            self._break(self.canvas.error)

    def renew(self) -> None:
        """Draw again unless numbers were only appended."""
        if self._reason is None and self.plot.key(self.runs) != self._key:
            self.show_runs(self.runs)

    def refresh(self) -> bool:
        """Show new data of the runs; return False if an empty plot needs another call later."""
        if self._broken:
            return True
        if self._reason is None:
            try:
                self.canvas.refresh()
            except Exception as error:  # noqa: BLE001 - the plots beside it go on
                self._break(error)
        elif time.monotonic() - self._looked_at > EMPTY_CHECK_S:
            self.show_runs(self.runs)
        else:
            return False
        return True

    def set_x_range(self, start: float, stop: float) -> None:
        """Show this range of x, and keep it."""
        self.canvas.auto_range_x = False
        if stop > start:
            self.canvas.vb.setXRange(start, stop, padding=0)

    def set_cursor(self, x: float | None) -> None:
        """Show the crosshair and the readings at ``x``."""
        self.canvas.set_cursor(x)

    def set_option(self, name: str, choice: str) -> None:
        """Draw with another choice of one of the plot's options."""
        self.options[name] = choice
        self.show_runs(self.runs)

    def set_zero(self, zero: bool) -> None:
        """Begin the y axis at zero, or where the data begins."""
        self.zero = zero
        self.show_runs(self.runs)

    def menu(self, at: float | None = None) -> QMenu:
        """Return a menu of what can be done with the plot, and at one place of x."""
        menu = QMenu(self)
        if self.menu_extension is not None:
            self.menu_extension(menu, at)
        for name, choices in self.plot.choices(self.runs).items():
            group = QActionGroup(menu)
            for choice in choices:
                title = f"{name.capitalize()}: {choice.replace('_', ' ')}"
                action = QAction(title, menu)
                menu.addAction(action)
                action.setCheckable(True)
                action.setChecked(self.options.get(name, choices[0]) == choice)
                action.triggered.connect(lambda _, n=name, c=choice: self.set_option(n, c))
                group.addAction(action)
            menu.addSeparator()
        if self.plot.axis == "time" and self.canvas.fixed_y is None:
            action = QAction("Y axis from zero", menu)
            menu.addAction(action)
            action.setCheckable(True)
            action.setChecked(self.zero)
            action.toggled.connect(self.set_zero)
            menu.addSeparator()
        for action in self.keys.values():
            menu.addAction(action)
        menu.addSeparator()
        menu.addAction("Copy as image", self.copy_image)
        menu.addAction("Copy as data", self.copy_data)
        menu.addSeparator()
        for suffix in plot_export.SUFFIXES:
            name = suffix[1:].upper()
            menu.addAction(f"Export {name} …", lambda s=suffix: self.export_plot(s))
        if self._reason is not None:
            for action in menu.actions():
                action.setEnabled(False)
        return menu

    def zoom(self, factor: float) -> None:
        """Widen the range of x by a factor, around the visible crosshair or else the middle."""
        start, stop = self.canvas.vb.viewRange()[0]
        center = self.canvas.cursor
        if center is None or not start <= center <= stop:
            center = (start + stop) / 2
        least = _LEAST_RANGE * max(abs(start), abs(stop))
        span = self.canvas.x_span()
        most = _MOST_SPANS * (span[1] - span[0]) if span is not None else 0.0
        factor = max(factor, least / (stop - start))
        if most > 0:
            factor = min(factor, max(1.0, most / (stop - start)))
        self._pick(center + (start - center) * factor, center + (stop - center) * factor)

    def pan(self, share: float) -> None:
        """Move the range of x by a share of its width; some data stays in the middle."""
        start, stop = self.canvas.vb.viewRange()[0]
        by, middle = share * (stop - start), (start + stop) / 2
        if (span := self.canvas.x_span()) is not None:
            if by > 0:
                by = min(by, max(0.0, span[1] - middle))
            else:
                by = max(by, min(0.0, span[0] - middle))
        self._pick(start + by, stop + by)

    def _pick(self, start: float, stop: float) -> None:
        """Show this range as if it were picked by the mouse."""
        self.canvas.vb.setXRange(start, stop, padding=0)
        self._on_picked()

    def reset(self) -> None:
        """Show all data again, the y axis following it."""
        self.canvas.auto_range_x = self.canvas.auto_range_y = True
        self.resetWanted.emit()
        self.refresh()

    def copy_image(self) -> None:
        """Put the plot on the clipboard as an image, in the print theme."""
        plot_export.copy_image(self.plot, self.runs, options=self.options)

    def copy_data(self) -> None:
        """Put the data drawn on the clipboard, as spreadsheets take it: separated by tabs."""
        runs, options, clipboard = self._frozen(), dict(self.options), QGuiApplication.clipboard()

        def work() -> str:
            table = self.plot.table(runs, **options)
            return plot_export.csv_bytes(table, separator="\t").decode()

        self._start(work, clipboard.setText)

    def export_plot(self, suffix: str = ".png") -> None:
        """Ask for a file and write the plot to it."""
        kinds = {suffix: _FILTERS[suffix], **_FILTERS}
        title, suggestion = f"Export {self.plot.title}", f"{self.plot.name}{suffix}"
        path = message_boxes.file_to_write(self, title, suggestion, kinds)
        if path is None:
            return
        runs, options = self._frozen(), dict(self.options)
        work = partial(plot_export.export_plot, self.plot.name, runs, path, options=options)
        if path.suffix.lower() == ".csv":
            self._start(work, lambda _: self._tasks.wrote.emit(path))
            return
        try:
            work()  # Qt paints in the window's thread only
        except plot_export.ExportError as error:
            self._refuse(error)
        else:
            self._tasks.wrote.emit(path)

    def _frozen(self) -> list[Run]:
        """Return the runs with the data that they have at this moment."""
        return [
            replace(run, session=session_files.snapshot(run.session), _kept={}) for run in self.runs
        ]

    def _start(self, work: Callable[[], _Result], on_done: Callable[[_Result], None]) -> None:
        """Do the work in the background: a million rows of data take seconds to write."""

        def finish(result: _Result) -> None:
            self._count(-1)
            on_done(result)

        def refuse(error: Exception, _: str) -> None:
            self._count(-1)
            self._refuse(error)

        self._count(1)
        self._tasks.start(work, finish, refuse)

    def _count(self, tasks: int) -> None:
        """Count work in progress; a busy cursor over the plot shows it."""
        self._at_work += tasks
        if self._at_work:
            self.setCursor(Qt.CursorShape.BusyCursor)
        else:
            self.unsetCursor()

    def _refuse(self, error: Exception) -> None:
        QMessageBox.warning(self, "Export", str(error) or type(error).__name__)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keep the menu button in the corner."""
        super().resizeEvent(event)
        self.more.setGeometry(self.width() - _MENU_PX, 1, _MENU_PX - 4, 20)

    def eventFilter(self, watched: object, event: QEvent) -> bool:
        """Take the crosshair away when the mouse leaves."""
        if event.type() == QEvent.Type.Leave:
            self.cursorMoved.emit(None)
            self.pointed.emit(None)
        return False

    def _style(self) -> Style:
        return screen_style(self._theme, QFontInfo(QApplication.font()).pixelSize())

    def _new_canvas(self) -> Canvas:
        canvas = Canvas(self._style())
        canvas.header.spare_px = _MENU_PX
        self._view.setCentralItem(canvas)
        canvas.vb.sigRangeChangedManually.connect(self._on_picked)
        canvas.vb.marked.connect(self.rangeMarked)
        # LazyPanel: nothing may be hidden while it is being painted.
        canvas.broken.connect(self._on_broken, Qt.ConnectionType.QueuedConnection)
        return canvas

    def _dress(self) -> None:
        theme = self._theme
        self._view.setBackground(shade(theme.surface))
        self._empty.setStyleSheet(f"background: {theme.surface}; color: {theme.muted};")
        self.more.setStyleSheet(
            f"QToolButton {{ color: {theme.muted}; background: {theme.surface}; padding: 0; }}"
            f"QToolButton:focus {{ border: 1px solid {theme.accent}; }}"
        )

    def _on_picked(self) -> None:
        self.canvas.auto_range_x = False
        self.rangePicked.emit()

    def _on_mouse(self, position: QPointF) -> None:
        box = self.canvas.vb
        x = None
        if box.sceneBoundingRect().contains(position):
            x = float(box.mapSceneToView(position).x())
        self.cursorMoved.emit(x)
        self.pointed.emit(self._in_axes(position))

    def _on_click(self, event: object) -> None:
        if event.double() and event.button() == Qt.MouseButton.LeftButton:  # type: ignore[attr-defined]
            self.reset()
        elif event.button() == Qt.MouseButton.LeftButton:  # type: ignore[attr-defined]
            point = self._in_axes(event.scenePos())  # type: ignore[attr-defined]
            if point is not None:
                self.clicked.emit(point)

    def _in_axes(self, position: QPointF) -> QPointF | None:
        box = self.canvas.vb
        return box.mapSceneToView(position) if box.sceneBoundingRect().contains(position) else None

    def _button_corner(self) -> QPoint:
        return QPoint(self.more.mapToGlobal(QPoint(0, self.more.height())))

    def _show_menu(self, position: QPoint) -> None:
        point = self._in_axes(self._view.mapToScene(position))
        menu = self.menu(None if point is None else point.x())
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(self._view.mapToGlobal(position))
