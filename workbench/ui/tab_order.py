"""Where the Tab key goes next: through the panels as they lie, and within one as it is laid out.

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
    QTabWidget,
    QWidget,
)

# These take the focus themselves; what they are made of does not.
_WHOLE = (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSpinBox,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
)


def chain(roots: list[QWidget]) -> list[QWidget]:
    """All that Tab stops at, in order: what can be seen and used now."""
    seen = [root for root in roots if not root.visibleRegion().isEmpty()]  # behind no other tab
    return [widget for root in seen for widget in _stops(root)]


def step(roots: list[QWidget], forward: bool) -> bool:
    """Give the focus to the next stop, or the one before; False where there is none."""
    stops = chain(roots)
    if not stops:
        return False
    now = QApplication.focusWidget()
    while now is not None and now not in stops:
        now = now.parentWidget()  # a part of a whole has it
    if now is None:
        place = 0 if forward else -1
    else:
        place = (stops.index(now) + (1 if forward else -1)) % len(stops)
    reason = Qt.FocusReason.TabFocusReason if forward else Qt.FocusReason.BacktabFocusReason
    stops[place].setFocus(reason)
    above = stops[place].parentWidget()
    while above is not None:
        if isinstance(above, QScrollArea):
            above.ensureWidgetVisible(stops[place])
        above = above.parentWidget()
    return True


def _stops(widget: QWidget) -> Iterator[QWidget]:
    if not widget.isVisible() or not widget.isEnabled():
        return
    if isinstance(widget, _WHOLE):
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            yield widget
        return
    for part in _parts_of(widget):
        yield from _stops(part)


def _parts_of(widget: QWidget) -> Iterator[QWidget]:
    """The parts of a container, in the order in which one reads them."""
    if isinstance(widget, QScrollArea):
        yield from _known(widget.widget())
    elif isinstance(widget, QSplitter):
        yield from _known(*(widget.widget(place) for place in range(widget.count())))
    elif isinstance(widget, QTabWidget):
        yield from _known(widget.currentWidget())
    elif (layout := widget.layout()) is not None:
        yield from _laid_out(layout)


def _known(*widgets: QWidget | None) -> Iterator[QWidget]:
    yield from (widget for widget in widgets if widget is not None)


def _laid_out(layout: QLayout) -> Iterator[QWidget]:
    if isinstance(layout, QStackedLayout):
        yield from _known(layout.currentWidget())
        return
    for place in range(layout.count()):
        item = layout.itemAt(place)
        widget, inner = (item.widget(), item.layout()) if item is not None else (None, None)
        if widget is not None:
            yield widget
        elif inner is not None:
            yield from _laid_out(inner)
