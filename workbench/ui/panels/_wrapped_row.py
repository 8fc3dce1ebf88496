"""A row of controls that wraps into several lines if one line has no room for all."""

from __future__ import annotations

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtWidgets import QLayout, QLayoutItem, QWidget


class WrappedRow(QLayout):
    """Layout of a row that wraps; controls that expand take the free room of their line."""

    def __init__(self, *widgets: QWidget, spacing: int = 8) -> None:
        super().__init__()
        self._items: list[QLayoutItem] = []
        self.setSpacing(spacing)
        self.setContentsMargins(0, 0, 0, 0)
        for widget in widgets:
            self.addWidget(widget)

    def addItem(self, item: QLayoutItem) -> None:
        """Add a control at the end."""
        self._items.append(item)

    def count(self) -> int:
        """Return the number of controls."""
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:  # type: ignore[override]
        """Return a control; None behind the last."""
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:  # type: ignore[override]
        """Remove and return a control; None behind the last."""
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def hasHeightForWidth(self) -> bool:
        """Return True: fewer controls fit on a line of less width."""
        return True

    def heightForWidth(self, width: int) -> int:
        """Return the height of all lines at this width."""
        return self._arrange(QRect(0, 0, width, 0), moves=False)

    def sizeHint(self) -> QSize:
        """Return the size of all controls on one line."""
        hints = [item.sizeHint() for item in self._shown()]
        width = sum(hint.width() + self.spacing() for hint in hints) - self.spacing()
        return QSize(max(0, width), max((hint.height() for hint in hints), default=0))

    def minimumSize(self) -> QSize:
        """Return the size of the largest control."""
        size = QSize(0, 0)
        for item in self._shown():
            size = size.expandedTo(item.minimumSize())
        return size

    def setGeometry(self, rectangle: QRect) -> None:
        """Lay out the controls in this rectangle."""
        super().setGeometry(rectangle)
        self._arrange(rectangle, moves=True)

    def _shown(self) -> list[QLayoutItem]:
        return [item for item in self._items if not item.isEmpty()]

    def _arrange(self, room: QRect, *, moves: bool) -> int:
        """Return the height of the lines; move the controls if requested."""
        lines: list[list[QLayoutItem]] = []
        free = 0
        for item in self._shown():
            need = min(item.sizeHint().width(), room.width())
            if not lines or need > free:
                lines.append([])
                free = room.width()
            free -= need + self.spacing()
            lines[-1].append(item)
        y = room.y()
        for line in lines:
            height = max(item.sizeHint().height() for item in line)
            if moves:
                self._move(line, QRect(room.x(), y, room.width(), height))
            y += height + self.spacing()
        return max(0, y - self.spacing() - room.y())

    def _move(self, line: list[QLayoutItem], room: QRect) -> None:
        widths = [min(item.sizeHint().width(), room.width()) for item in line]
        free = room.width() - sum(widths) - self.spacing() * (len(line) - 1)
        horizontal = Qt.Orientation.Horizontal
        wide = [bool(item.expandingDirections() & horizontal) for item in line]
        x = room.x()
        for item, width, expands in zip(line, widths, wide, strict=True):
            width += free // sum(wide) if expands else 0
            height = item.sizeHint().height()
            item.setGeometry(QRect(x, room.y() + (room.height() - height) // 2, width, height))
            x += width + self.spacing()
