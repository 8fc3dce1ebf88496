"""Least height of a panel at a width, at which none of its wrapped lines is cut off.

Qt's minimum size of a widget assumes the narrowest wrapped text, or one line, and does not look
into splitters and stacked pages.
"""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QBoxLayout,
    QLayoutItem,
    QSplitter,
    QStackedWidget,
    QWidget,
)

_DOWN = (QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.BottomToTop)


def least_height(widget: QWidget, width: int) -> int:
    """Return the height below which parts of the widget would be cut off."""
    least = _content_height(widget, width)
    return min(max(least, widget.minimumHeight()), widget.maximumHeight())


def _content_height(widget: QWidget, width: int) -> int:
    if isinstance(widget, QStackedWidget):
        page = widget.currentWidget()
        shown = 0 if page is None else least_height(page, width)
        # A layout gives it the room of its largest page, at the cost of what is above and below.
        return max(shown, widget.minimumSizeHint().height())
    if isinstance(widget, QSplitter):
        return _splitter_height(widget, width)
    layout = widget.layout()
    if isinstance(layout, QBoxLayout) and layout.direction() in _DOWN:
        margins = layout.contentsMargins()
        room = width - margins.left() - margins.right()
        items = [layout.itemAt(index) for index in range(layout.count())]
        heights = [_item_height(item, room) for item in items if item and not item.isEmpty()]
        gaps = max(0, len(heights) - 1) * max(0, layout.spacing())
        return sum(heights) + gaps + margins.top() + margins.bottom()
    if layout is not None and layout.hasHeightForWidth():
        return int(layout.totalMinimumHeightForWidth(width))
    return int(widget.minimumSizeHint().height())


def _splitter_height(splitter: QSplitter, width: int) -> int:
    parts = [splitter.widget(index) for index in range(splitter.count())]
    shown = [part for part in parts if part is not None and not part.isHidden()]
    if splitter.orientation() == Qt.Orientation.Horizontal:
        return max((least_height(part, part.width()) for part in shown), default=0)
    handles = max(0, len(shown) - 1) * splitter.handleWidth()
    return sum(least_height(part, width) for part in shown) + handles


def _item_height(item: QLayoutItem, width: int) -> int:
    widget = item.widget()
    if widget is not None and (widget.layout() is not None or _is_container(widget)):
        return least_height(widget, width)
    if item.hasHeightForWidth():
        return int(item.minimumHeightForWidth(width))
    return int(item.minimumSize().height())


def _is_container(widget: QWidget) -> bool:
    return isinstance(widget, QSplitter | QStackedWidget)
