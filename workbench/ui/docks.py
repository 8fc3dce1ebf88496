"""The docks of the panels: they can be moved, floated, closed, saved and put back."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QByteArray, QEvent, QSize, Qt, QTimer
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import (
    QApplication,
    QDockWidget,
    QHBoxLayout,
    QLabel,
    QMainWindow,
    QStyle,
    QTabBar,
    QTabWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.ui.menus import tab_order
from workbench.ui.panels import _widgets
from workbench.ui.panels.lazy_panel import LazyPanel
from workbench.ui.state.theme import ThemeModel

LEFT_SHARE, LEFT_MOST = 1 / 3, 480  # share of the width; pixels
SMALL_SHARE = 0.4  # largest share of a window that became smaller, unless the user chose more
LEFT_GROWTH = 0.45  # share of the font's growth: the plots need room too
LEFT = {"build", "toggles"}
LEFT_LEAST = 300  # a narrower column would cut texts off
BUILD_HEIGHT, BUILD_GROWTH = 242, 0.8  # usual form, two lines below it; growth with the font
LEFT_AREA = Qt.DockWidgetArea.LeftDockWidgetArea
BUILD_SHARE = 0.5  # largest share of the left column's height
BOTTOM_HEIGHT, BOTTOM_SHARE = 208, 0.4  # pixels; largest share of the height
# Before the rest of a saved layout; older layouts lack the last number.
_SIZES = re.compile(rb"(\d{1,5}) ([1-9]\d{0,4}) (\d{1,5})(?: (\d{1,5}))?\n")
# In one place, as tabs.
TABS = (
    *("live", "verdict", "attribution", "optimize", "sweep", "claims", "breakdown", "checklist"),
    *("compare", "kernels"),
)


@dataclass(frozen=True)
class Panel:
    """A dock: its name, its title, the function that makes its widget, and words that find it."""

    name: str
    title: str
    make: Callable[[], QWidget]
    words: str


class DockArea(QMainWindow):
    """Area of the docks: a main window inside the main window, so that banners lie above it."""

    def __init__(self, theme: ThemeModel, panels: tuple[Panel, ...]) -> None:
        super().__init__()
        self._theme = theme
        self.setWindowFlags(Qt.WindowType.Widget)
        self.setDockNestingEnabled(True)
        self.setTabPosition(Qt.DockWidgetArea.AllDockWidgetAreas, QTabWidget.TabPosition.North)
        self.setDocumentMode(True)
        self.docks = {panel.name: self._make(panel) for panel in panels}
        self.words = {panel.name: panel.words for panel in panels}
        self.panels = [dock.widget() for dock in self.docks.values()]
        self._settle = QTimer(self)
        self._settle.setSingleShot(True)
        self._settle.timeout.connect(self._settle_titles)
        for dock in self.docks.values():
            dock.topLevelChanged.connect(
                lambda _, d=dock: QTimer.singleShot(0, d, lambda: self._settle_dock(d))
            )
            for moved in (dock.topLevelChanged, dock.dockLocationChanged, dock.visibilityChanged):
                moved.connect(lambda *_: self._settle.start(0))
        self._place()
        # Width of the forms, and of the area for which it was chosen; height of the form.
        self._left, self._left_of = LEFT_MOST, self.width()
        self._left_least = 0
        self._build = self._build_before = self._build_default()  # before: in the type before
        self._fresh = self.save_layout()
        self._fit_type()
        theme.changed.connect(self._fit_type)  # the font may be another, too

    def minimumSizeHint(self) -> QSize:
        """Return a small size: banners take room from the docks; the window never grows."""
        return QSize(640, 360)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Change the width of the plots and the height of the toggles.

        The forms become narrower only where they would take most of a small window. Qt would
        divide each change equally.
        """
        super().resizeEvent(event)
        self._keep_left()
        self._keep_build()
        self._settle.start(0)

    def event(self, event: QEvent) -> bool:
        """Remember the sizes that the user gives the forms: separators belong to the area."""
        if event.type() == QEvent.Type.MouseButtonRelease:
            self._remember_sizes()
        return super().event(event)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Give the docks on both sides of a separator their default sizes."""
        position = event.position().toPoint()
        if self.childAt(position) is not None:
            return
        form = self.docks["build"].geometry()
        if not self._is_left("build") or position.x() > form.right() + self._separator_px():
            self._reset_lower()
        elif position.x() > form.right():
            self._reset_left()
        else:
            self._reset_build()

    def save_layout(self) -> QByteArray:
        """Return the layout and the chosen sizes of the forms: Qt knows only the present sizes."""
        sizes = f"{self._left} {self._left_of} {self._build} {self._lower_px()}\n"
        return QByteArray(sizes.encode() + self.saveState().data())

    def restore_layout(self, layout: QByteArray) -> bool:
        """Restore a layout with the sizes of the forms; return False if it is damaged."""
        data = layout.data()
        match = _SIZES.match(data)  # layouts of older versions have none
        if not self.restoreState(data[match.end() if match else 0 :]):
            return False
        if match:
            self._left, self._left_of, self._build, lower = (int(n or 0) for n in match.groups())
            if lower:  # after the layout, in which Qt gives all new height to one panel
                QTimer.singleShot(0, self, partial(self._set_lower, lower))
        self._keep_left()
        self._keep_build()
        return True

    def _lower_px(self) -> int:
        """Return the height of the panels below the plots; 0 if they are not below them."""
        upper, lower = (
            next((dock for dock in group if not dock.visibleRegion().isEmpty()), None)
            for name in ("live", "segments")
            for group in [[self.docks[name], *self.tabifiedDockWidgets(self.docks[name])]]
        )
        if upper is None or lower is None or upper.isFloating() or lower.isFloating():
            return 0
        is_below = lower.x() == upper.x() and lower.y() > upper.geometry().bottom()
        return (
            self.height() - upper.geometry().bottom() - 1 - self._separator_px() if is_below else 0
        )

    def _remember_sizes(self) -> None:
        """Take the present sizes of the forms as the user's choice."""
        if self._is_left("build"):
            self._left, self._left_of = self.docks["build"].width(), self.width()
            if self._is_left("toggles"):
                self._build = self.docks["build"].height()

    def _is_left(self, name: str) -> bool:
        """Return True if a dock is open in the area of the forms."""
        dock = self.docks[name]
        is_docked = not (dock.isFloating() or dock.isHidden())
        return is_docked and self.dockWidgetArea(dock) == LEFT_AREA

    def _keep_left(self) -> None:
        if not self._is_left("build"):
            return
        share = max(SMALL_SHARE, self._left / self._left_of)
        most = max(self._left_least, round(share * self.width()))
        self._divide(min(self._left, most))

    def _keep_build(self) -> None:
        """Keep the height of the form: the toggles below it scroll anyway."""
        forms = [self.docks["build"], self.docks["toggles"]]
        if self._is_left("build") and self._is_left("toggles"):
            build = round(min(self._build, BUILD_SHARE * self.height()))
            toggles = self.height() - build - self._separator_px()
            self.resizeDocks(forms, [build, toggles], Qt.Orientation.Vertical)

    def _separator_px(self) -> int:
        separator = QStyle.PixelMetric.PM_DockWidgetSeparatorExtent
        return self.style().pixelMetric(separator, None, self)

    def _fit_type(self) -> None:
        """Change the size of the forms as the font requires; it stays a choice."""
        before, build = self._left_least, self._build_default()
        self._left_least = fonts.in_type(LEFT_LEAST, QApplication.font(), LEFT_GROWTH)
        if before == self._left_least:
            return
        for name in LEFT & self.docks.keys():
            self.docks[name].setMinimumWidth(self._left_least)
        if before:
            factor = self._left_least / before
            # With what they hold, the docks may have grown already.
            most = max(self._left_default(), round(self._left * min(1.0, factor)))
            self._left = min(round(self._left * factor), most)
            self._keep_left()
            self._build = round(self._build * build / self._build_before)
            self._keep_build()
        self._build_before = build

    def _build_default(self) -> int:
        """Return the default height of the form, if there is room."""
        return fonts.in_type(BUILD_HEIGHT, QApplication.font(), BUILD_GROWTH)

    def _left_default(self) -> int:
        """Return the default width of the forms."""
        font = QApplication.font()  # not ``self.font()``: the style sheet of this area has its own
        share_px = fonts.in_type(round(LEFT_SHARE * self.width()), font, LEFT_GROWTH)
        return min(fonts.in_type(LEFT_MOST, font), max(self._left_least, share_px))

    def _divide(self, left: int) -> None:
        """Give the forms this width and the plots the rest.

        Qt shrinks both if they and the separator are wider than the area.
        """
        right = self.width() - left - self._separator_px()
        docks = [self.docks["build"], self.docks["live"]]
        self.resizeDocks(docks, [left, right], Qt.Orientation.Horizontal)

    def _settle_dock(self, dock: QDockWidget) -> None:
        """Bring a dock that floats onto the screen; give a docked one the keyboard that it lost."""
        fit(dock)
        is_docked = dock.isVisible() and not dock.isFloating()
        if is_docked and QApplication.focusWidget() is None:
            self.enter(dock.objectName())

    def fit_floating(self) -> None:
        """Bring the floating docks of a restored layout onto the screen."""
        for dock in self.docks.values():
            fit(dock)

    def arrange(self) -> None:
        """Restore the default layout."""
        self.restore_layout(self._fresh)
        self.proportion()

    def proportion(self) -> None:
        """Give the docks their default sizes, once they are laid out."""
        QTimer.singleShot(0, self, self._resize)

    def _place(self) -> None:
        left, right = LEFT_AREA, Qt.DockWidgetArea.RightDockWidgetArea
        down = Qt.Orientation.Vertical
        docks = self.docks
        self.addDockWidget(left, docks["build"])
        self.splitDockWidget(docks["build"], docks["toggles"], down)
        self.addDockWidget(right, docks["live"])
        self.splitDockWidget(docks["live"], docks["segments"], down)
        for front, behind in itertools.pairwise(TABS):
            self.tabifyDockWidget(docks[front], docks[behind])
        self.tabifyDockWidget(docks["segments"], docks["events"])
        self.tabifyDockWidget(docks["events"], docks["text"])
        docks["live"].raise_()
        docks["segments"].raise_()

    def _resize(self) -> None:
        self._reset_left()
        self._reset_build()
        self._reset_lower()

    def _reset_left(self) -> None:
        self._left, self._left_of = self._left_default(), self.width()
        self._divide(self._left)

    def _reset_build(self) -> None:
        self._build = self._build_default()
        self._keep_build()

    def _reset_lower(self) -> None:
        self._set_lower(round(min(BOTTOM_HEIGHT, BOTTOM_SHARE * self.height())))

    def _set_lower(self, lower: int) -> None:
        docks = [self.docks["live"], self.docks["segments"]]
        self.resizeDocks(docks, [self.height() - lower, lower], Qt.Orientation.Vertical)

    def in_reading_order(self) -> list[QWidget]:
        """Return the docked panels, and the tabs of each group before its front panel."""
        bars = {_front(tab_bar): tab_bar for tab_bar in self._tab_bars()}
        parts: list[QWidget] = []
        for dock in self.docks.values():
            if not dock.isFloating():
                tab_bar = bars.get(dock.windowTitle())
                parts += [dock.widget()] if tab_bar is None else [tab_bar, dock.widget()]
        return parts

    def current(self) -> str:
        """Return the name of the panel that has the keyboard, or ""."""
        focus = QApplication.focusWidget()
        if isinstance(focus, QTabBar) and focus in self._tab_bars():
            titles = {dock.windowTitle(): name for name, dock in self.docks.items()}
            return titles.get(_front(focus), "")
        dock = self.dock_around(focus)
        return "" if dock is None else dock.objectName()

    def dock_around(self, widget: QWidget | None) -> QDockWidget | None:
        """Return the dock that contains a widget; None if no dock does."""
        docks = self.docks.values() if widget is not None else ()
        return next((dock for dock in docks if dock.isAncestorOf(widget)), None)

    def beside(self, by: int) -> str:
        """Return the name of the open panel ``by`` positions after the current panel."""
        names = [name for name, dock in self.docks.items() if dock.toggleViewAction().isChecked()]
        current = self.current()
        if current not in names:
            return names[0 if by > 0 else -1] if names else ""
        return names[(names.index(current) + by) % len(names)]

    def enter(self, name: str) -> None:
        """Bring a panel to the front and give it the keyboard, or its tab if it has no control."""
        dock = self.docks[name]
        self.bring(name)
        if isinstance(panel := dock.widget(), LazyPanel):
            panel.panel()  # otherwise it has no control yet
        dock.activateWindow()
        bars = [tab_bar for tab_bar in self._tab_bars() if dock.windowTitle() == _front(tab_bar)]
        stops: list[QWidget] = [*tab_order.chain([dock.widget()]), *bars]
        if stops:
            tab_order.give(stops[0], Qt.FocusReason.ShortcutFocusReason)

    def bring(self, name: str) -> None:
        """Show a dock in front of the docks that share its tabs."""
        self.docks[name].show()
        self.docks[name].raise_()

    def _make(self, panel: Panel) -> QDockWidget:
        dock = Dock(panel.title, self)
        dock.setObjectName(panel.name)
        dock.setWidget(panel.make())
        dock.setTitleBarWidget(DockTitle(self._theme, dock))
        return dock

    def _settle_titles(self) -> None:
        """Hide the title of a dock in a group of tabs: its tab shows the name already."""
        for dock in self.docks.values():
            title_bar = dock.titleBarWidget()
            if isinstance(title_bar, DockTitle):
                grouped = bool(self.tabifiedDockWidgets(dock)) and not dock.isFloating()
                title_bar.set_slim(grouped)
        for tabs in self._tab_bars():  # names are not elided; arrows scroll to the others
            tabs.setElideMode(Qt.TextElideMode.ElideNone)
            tabs.setUsesScrollButtons(True)
            self._follow_clicks(tabs)
        self._hide_forgotten()

    def _follow_clicks(self, tab_bar: QTabBar) -> None:
        """Let a click on a tab give its panel the keyboard, and a double click float it.

        Otherwise the menu would close and float another panel than the one that was clicked.
        """
        if tab_bar.property("follows_clicks"):
            return
        tab_bar.setProperty("follows_clicks", True)

        def act(index: int, action: Callable[[QDockWidget], object]) -> None:
            for dock in self.docks.values():
                if index >= 0 and dock.windowTitle() == tab_bar.tabText(index):
                    QTimer.singleShot(0, dock, partial(action, dock))  # the tab bar is busy

        tab_bar.tabBarClicked.connect(
            lambda index: act(index, lambda dock: dock.widget().setFocus())
        )
        tab_bar.tabBarDoubleClicked.connect(
            lambda index: act(index, lambda dock: dock.setFloating(True))
        )

    def _tab_bars(self) -> list[QTabBar]:
        """Return the tab bars of groups of docks, which Qt creates and removes by itself."""
        direct = Qt.FindChildOption.FindDirectChildrenOnly
        return [
            tab_bar for tab_bar in self.findChildren(QTabBar, options=direct) if tab_bar.isVisible()
        ]

    def _hide_forgotten(self) -> None:
        """Hide tab bars that Qt created on the way to a layout and left behind."""
        bars = {
            tab_bar: {tab_bar.tabText(index) for index in range(tab_bar.count())}
            for tab_bar in self._tab_bars()
        }
        used = [tabs for tab_bar, tabs in bars.items() if self._in_use(tab_bar, tabs)]
        for tab_bar, tabs in bars.items():
            if not self._in_use(tab_bar, tabs) and any(tabs <= titles for titles in used):
                tab_bar.hide()

    def _in_use(self, tab_bar: QTabBar, tabs: set[str]) -> bool:
        """Return True if the bar lies over a dock that it names."""
        return any(
            (dock.x(), dock.width()) == (tab_bar.x(), tab_bar.width())
            for dock in self.docks.values()
            if dock.isVisible() and not dock.isFloating() and dock.windowTitle() in tabs
        )


def fit(window: QWidget) -> None:
    """Bring a window or a floating dock onto the screen with its frame, no larger than it."""
    if not window.isWindow():
        return
    room = window.screen().availableGeometry()
    borders = window.frameSize() - window.size()
    window.resize(window.size().boundedTo(room.size() - borders))
    size, frame = window.size() + borders, window.frameGeometry()
    left = min(max(frame.left(), room.left()), max(room.left(), room.right() + 1 - size.width()))
    top = min(max(frame.top(), room.top()), max(room.top(), room.bottom() + 1 - size.height()))
    window.move(left, top)


def _front(tab_bar: QTabBar) -> str:
    return tab_bar.tabText(tab_bar.currentIndex())


class Dock(QDockWidget):
    """Dock that has an edge while it floats: it often lies over panels of the same colour."""

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw the edge, which Qt leaves to the title bar's owner."""
        super().paintEvent(event)
        if self.isFloating():
            painter = QPainter(self)
            painter.setPen(self.palette().mid().color())
            painter.drawRect(self.rect().adjusted(0, 0, -1, -1))


class DockTitle(QWidget):
    """Title of a dock: its name, and buttons to float and to close it."""

    def __init__(self, theme: ThemeModel, dock: QDockWidget) -> None:
        super().__init__(dock)
        self._theme = theme
        self.setProperty("dock_title", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        name = QLabel(dock.windowTitle())
        name.setFont(fonts.heading())
        self._float = QToolButton()
        self._float.setToolTip("Float, or dock again")
        self._float.clicked.connect(lambda: dock.setFloating(not dock.isFloating()))
        self._close = QToolButton()
        self._close.setToolTip("Close; the View menu brings it back")
        self._close.clicked.connect(dock.close)
        self._body = QWidget()
        row = _widgets.tight(QHBoxLayout(self._body), 2)
        row.setContentsMargins(12, 4, 6, 4)
        row.addWidget(name, 1)
        for button in (self._float, self._close):
            button.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            button.setAccessibleName(button.toolTip())
            row.addWidget(button)
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._body)
        theme.changed.connect(self._draw)
        self._draw()

    def set_slim(self, slim: bool) -> None:
        """Hide the name and the buttons, or show them."""
        self._body.setVisible(not slim)

    def _draw(self) -> None:
        self._float.setIcon(icon("float", self._theme.current, "muted"))
        self._close.setIcon(icon("close", self._theme.current, "muted"))
