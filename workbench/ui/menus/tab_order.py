"""The order of the Tab key: through the panels as they lie, and within each as laid out.

Qt's own order is that in which widgets were made; forms that are filled later would come last.
"""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QLayout,
    QLineEdit,
    QPlainTextEdit,
    QScrollArea,
    QSplitter,
    QStackedLayout,
    QTabBar,
    QTabWidget,
    QTextEdit,
    QWidget,
)

_DIRECT = Qt.FindChildOption.FindDirectChildrenOnly
# These take the focus themselves; their parts do not.
_STOPS = (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSpinBox,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
    QTabBar,
    QTextEdit,
)


def chain(roots: list[QWidget]) -> list[QWidget]:
    """Return the visible, usable widgets that Tab stops at, in order."""
    return [widget for root in roots if _is_in_sight(root) for widget in _stops(root)]


def _is_in_sight(root: QWidget) -> bool:
    """Return True unless a root is closed, without room, or in a dock behind another.

    Qt moves such a dock out of its area. The visible region would not do: it lacks what children
    with a background cover.
    """
    area, widget = root.rect(), root
    while not widget.isWindow() and (parent := widget.parentWidget()) is not None:
        area, widget = area.translated(widget.pos()) & parent.rect(), parent
    return root.isVisible() and not area.isEmpty()


def step(roots: list[QWidget], forward: bool) -> bool:
    """Give the focus to the next stop or the previous one; return False if there is none."""
    stops = chain(roots)
    if not stops:
        return False
    current = focused = QApplication.focusWidget()
    while current is not None and current not in stops:
        current = current.parentWidget()  # its part has the focus
    if current is None:
        index = _nearest_stop(focused, stops, forward)
    else:
        index = (stops.index(current) + (1 if forward else -1)) % len(stops)
    reason = Qt.FocusReason.TabFocusReason if forward else Qt.FocusReason.BacktabFocusReason
    give(stops[index], reason)
    return True


def give(widget: QWidget, reason: Qt.FocusReason = Qt.FocusReason.OtherFocusReason) -> None:
    """Give the focus to a widget, and scroll to it wherever it lies."""
    widget.setFocus(reason)
    above = widget.parentWidget()
    while above is not None:
        if isinstance(above, QScrollArea):
            above.ensureWidgetVisible(widget)
        elif isinstance(above, QAbstractItemView):
            cell = widget.mapTo(above.viewport(), widget.rect().center())
            above.scrollTo(above.indexAt(cell))
        above = above.parentWidget()


def _nearest_stop(widget: QWidget | None, stops: list[QWidget], forward: bool) -> int:
    """Return the index of the stop nearest to a widget that is no stop: hidden, or a plot."""
    while widget is not None:
        inside = [index for index, stop in enumerate(stops) if widget.isAncestorOf(stop)]
        if inside:
            return inside[0 if forward else -1]
        widget = widget.parentWidget()
    return 0 if forward else -1


def _stops(widget: QWidget) -> Iterator[QWidget]:
    if not widget.isVisible() or not widget.isEnabled():
        return
    if isinstance(widget, _STOPS):
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            yield widget
        if isinstance(widget, QAbstractItemView):
            for part in _in_cells(widget):
                yield from _stops(part)
        return
    for part in _parts_of(widget):
        yield from _stops(part)


def _parts_of(widget: QWidget) -> Iterator[QWidget]:
    """Yield the parts of a container in reading order."""
    if isinstance(widget, QScrollArea):
        yield from _known(widget.widget())
    elif isinstance(widget, QSplitter):
        yield from _known(*(widget.widget(index) for index in range(widget.count())))
    elif isinstance(widget, QTabWidget):
        yield from _known(widget.tabBar(), widget.currentWidget())
    elif (layout := widget.layout()) is not None:
        laid_out = list(_laid_out(layout))
        yield from laid_out
        over = widget.findChildren(QAbstractButton, options=_DIRECT)  # buttons over a corner of it
        yield from (button for button in over if button not in laid_out)


def _in_cells(view: QAbstractItemView) -> list[QWidget]:
    """Return the widgets in the cells of a table, row by row."""
    parts = view.viewport().findChildren(QWidget, options=_DIRECT)
    return sorted(parts, key=lambda part: (part.y(), part.x()))


def _known(*widgets: QWidget | None) -> Iterator[QWidget]:
    yield from (widget for widget in widgets if widget is not None)


def _laid_out(layout: QLayout) -> Iterator[QWidget]:
    if isinstance(layout, QStackedLayout):
        yield from _known(layout.currentWidget())
        return
    host = layout.parentWidget()
    if host is None:
        return
    widgets = host.findChildren(QWidget, options=_DIRECT)
    # Not by itemAt: PySide may keep one for a place in memory where something else is by now.
    parts = [part for part in (*widgets, *layout.children()) if layout.indexOf(part) >= 0]
    for part in sorted(parts, key=layout.indexOf):
        if isinstance(part, QLayout):
            yield from _laid_out(part)
        else:
            yield part
