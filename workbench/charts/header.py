"""The header of a plot: its title and its legend, wrapped to the available width."""

from __future__ import annotations

import itertools
import math
import time

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPen
from PySide6.QtWidgets import QGraphicsWidget, QSizePolicy, QStyleOptionGraphicsItem, QWidget

from sessions.numbers import counted
from workbench.charts.guard import guarded
from workbench.charts.layers.layer import Entry, cross, dot
from workbench.charts.style import Style, shade

_MARK_PX = 22.0
_GAP_PX = 16.0
_NAME_PX = 80.0  # least width of a name
_READ_S = 0.2
_SHARE = 0.3  # share of the height that a legend may take
_LEAST_ROWS = 2
# On screen, of more entries than ten compared sessions give: a list of a study's arms is no legend.
_MANY, _ROWS_OF_MANY = 13, 3
_CAPS_PX = (math.inf, 200.0, 112.0)


class Header(QGraphicsWidget):
    """Title and legend. Entries carry the reading at the cursor when there is one."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._style = style
        self.title = ""
        self.subtitle = ""
        self.note = ""
        self._entries: list[Entry] = []
        self._corners: list[tuple[float, float]] = []
        self._ends: list[float] = []  # how far each entry may reach in its row
        self._cap_px = math.inf  # largest width of a name, so that the plot has room
        self._left_out = 0  # entries without room at the smallest cap
        self._rest_at = (0.0, 0.0)
        self._arranged: object = None
        self._cursor: float | None = None
        self._height = 0.0
        self.readings = False
        self.spare_px = 0.0  # kept free at the right end of the first row
        self._texts: list[str] = []
        self._grown: dict[str, float] = {}  # pixels of the widest reading so far, by entry
        self._read_at = -math.inf
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def set_entries(self, entries: list[Entry]) -> bool:
        """Show these entries with their readings; return True if that changed the height."""
        names = [entry.name for entry in entries]
        same = names == [entry.name for entry in self._entries]
        self._entries = entries
        before = self._height
        due = not same or (self.readings and time.monotonic() - self._read_at >= _READ_S)
        if due:
            self._read()
            self.update()
        self.arrange()
        return self._height != before

    def set_cursor(self, x: float | None) -> None:
        """Read the values at ``x``, or the newest where it is None."""
        self._cursor = x
        self._read()
        self.arrange()
        self.update()

    def arrange(self) -> None:
        """Place the entries in rows and take the height that they need."""
        width, most = self.size().width(), self._most_rows()
        names = tuple(entry.name for entry in self._entries)
        texts = (self.title, self.subtitle, self.readings, names)
        key = (width, most, *texts, tuple(self._grown.values()))
        if key == self._arranged or width <= 0:
            return
        self._arranged = key
        for self._cap_px in _CAPS_PX:
            rows = self._place()
            if rows <= most:
                break
        row_px = self._row_px()
        visible = [corner for corner in self._corners if corner[1] < most * row_px]
        self._left_out, self._corners = len(self._corners) - len(visible), visible
        if self._left_out:  # the last visible one makes room for a line about the rest
            self._left_out, self._corners = self._left_out + 1, visible[:-1]
            self._rest_at = visible[-1]
        self._ends = self._rooms(visible)
        height = min(rows, most) * row_px + 2 if self.title or self._entries else 0.0
        if height != self._height:
            self._height = height
            self.setMinimumHeight(height)
            self.setMaximumHeight(height)
            self.setPreferredHeight(height)

    def _rooms(self, corners: list[tuple[float, float]]) -> list[float]:
        """Return the right end of each entry: the next entry in its row, or the row's end."""
        ends = [self._row_end(y) for _, y in corners]
        for index, ((_, y), (x, below)) in enumerate(itertools.pairwise(corners)):
            if y == below:
                ends[index] = x - _GAP_PX
        return ends

    def _most_rows(self) -> int:
        """Return the most rows that leave the plot enough height."""
        host = self.parentWidget()
        if host is None or not host.size().height():
            return _LEAST_ROWS
        rows = int(_SHARE * host.size().height() / self._row_px())
        if len(self._entries) >= _MANY and not self._style.paper:
            rows = min(rows, _ROWS_OF_MANY)
        return max(_LEAST_ROWS, rows)

    def _row_px(self) -> float:
        return QFontMetricsF(self._style.font()).height() + 2

    def _shown_title(self) -> str:
        """Return the title as it fits beside the room that stays free."""
        metrics = QFontMetricsF(self._style.font(bold=True))
        return metrics.elidedText(self.title, Qt.TextElideMode.ElideRight, self._row_end(0.0))

    def _row_end(self, y: float) -> float:
        """Return the right end of the row at ``y``."""
        return max(0.0, self.size().width() - (self.spare_px if y == 0 else 0.0))

    def _place(self) -> int:
        """Place all entries with their names at the current cap; return the number of rows."""
        metrics = QFontMetricsF(self._style.font())
        bold = QFontMetricsF(self._style.font(bold=True))
        row_px = self._row_px()
        x = bold.horizontalAdvance(self._shown_title()) + _GAP_PX if self.title else 0.0
        if self.subtitle:
            x += metrics.horizontalAdvance(self.subtitle) + _GAP_PX
        row = 0
        if self._style.paper and self.title and self._entries:
            x, row = 0.0, 1
        self._corners = []
        for entry in self._entries:
            need = self._entry_width(entry, metrics)
            if x > 0 and x + need > self._row_end(row):
                x, row = 0.0, row + 1
            self._corners.append((x, row * row_px))
            x += need + _GAP_PX
        return row + 1

    @guarded
    def paint(
        self,
        painter: QPainter,
        _option: QStyleOptionGraphicsItem,
        _widget: QWidget | None = None,
    ) -> None:
        style = self._style
        metrics = QFontMetricsF(style.font())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        painter.setFont(style.font(bold=True))
        painter.setPen(shade(style.theme.text))
        title = self._shown_title()
        painter.drawText(QPointF(0, metrics.ascent()), title)
        if self.subtitle:
            left = QFontMetricsF(style.font(bold=True)).horizontalAdvance(title) + 10
            room = max(0.0, self._row_end(0.0) - left)
            text = metrics.elidedText(self.subtitle, Qt.TextElideMode.ElideRight, room)
            painter.setFont(style.font())
            painter.setPen(shade(style.theme.muted))
            painter.drawText(QPointF(left, metrics.ascent()), text)
        painter.setFont(style.font())
        drawn = zip(self._entries, self._texts, self._corners, self._ends, strict=False)
        for entry, text, (x, y), end in drawn:
            self._draw_entry(painter, metrics, entry, text, x, y, end)
        if self._left_out:
            x, y = self._rest_at
            painter.setPen(shade(style.theme.muted))
            left_out_text = (
                f"and {self._left_out} more" if self._corners else counted(self._left_out, "curve")
            )
            room = max(0.0, self._row_end(y) - x)
            left_out_text = metrics.elidedText(left_out_text, Qt.TextElideMode.ElideRight, room)
            painter.drawText(QPointF(x, y + metrics.ascent()), left_out_text)

    def _read(self) -> None:
        """Read the values again, and keep room for the widest value so far."""
        if not self.readings:
            self._texts = [""] * len(self._entries)
            return
        self._read_at = time.monotonic()
        x = math.nan if self._cursor is None else self._cursor
        self._texts = [entry.reading(x) if entry.reading else "" for entry in self._entries]
        metrics = QFontMetricsF(self._style.font())
        for entry, text in zip(self._entries, self._texts, strict=True):
            grown = max(self._grown.get(entry.name, 0.0), metrics.horizontalAdvance(text))
            self._grown[entry.name] = grown

    def _draw_entry(
        self,
        painter: QPainter,
        metrics: QFontMetricsF,
        entry: Entry,
        text: str,
        x: float,
        y: float,
        end: float,
    ) -> None:
        style = self._style
        middle = y + metrics.height() / 2
        painter.setPen(entry.pen)
        painter.setBrush(entry.brush)
        if entry.mark == "line":
            pen = QPen(entry.pen)
            pen.setWidthF(max(2.0, entry.pen.widthF()))
            painter.setPen(pen)
            painter.drawLine(QPointF(x, middle), QPointF(x + _MARK_PX, middle))
        elif entry.mark == "dots":
            for step in (0.2, 0.5, 0.8):
                center = QPointF(x + step * _MARK_PX, middle + (3 if step == 0.5 else -1))
                dot(painter, center, max(1.4, entry.pen.widthF() / 2), entry.pen.color())
        elif entry.mark == "cross":
            cross(painter, QPointF(x + _MARK_PX / 2, middle), 3.0, entry.pen.color())
        else:
            painter.drawRect(QRectF(x + 3, y + 3, _MARK_PX - 6, metrics.height() - 6))
        painter.setPen(shade(style.theme.muted if self.readings else style.theme.text))
        left = x + _MARK_PX + 5
        name = self._name(entry, metrics, end - left - self._reading_width(entry, metrics))
        painter.drawText(QPointF(left, y + metrics.ascent()), name)
        if text:
            painter.setPen(shade(style.theme.text))
            left += metrics.horizontalAdvance(name) + 6
            painter.drawText(QPointF(left, y + metrics.ascent()), text)

    def _name(self, entry: Entry, metrics: QFontMetricsF, free_px: float = 0.0) -> str:
        """Elide an entry's name if it is longer than the cap or than a row of its own.

        ``free_px``: pixels that the entry has in its row; the name may take them in any case.
        """
        reading = metrics.horizontalAdvance(entry.widest) if self.readings else 0.0
        tail = metrics.horizontalAdvance(entry.tail)
        room = self.size().width() - self.spare_px - _MARK_PX - 11 - reading - tail
        most = max(min(max(_NAME_PX, room), self._cap_px), free_px - tail)
        return metrics.elidedText(entry.name, Qt.TextElideMode.ElideMiddle, most) + entry.tail

    def _entry_width(self, entry: Entry, metrics: QFontMetricsF) -> float:
        name = self._name(entry, metrics)
        reading = self._reading_width(entry, metrics)
        return _MARK_PX + 5 + metrics.horizontalAdvance(name) + reading

    def _reading_width(self, entry: Entry, metrics: QFontMetricsF) -> float:
        if not self.readings or entry.reading is None:
            return 0.0
        return 6 + max(metrics.horizontalAdvance(entry.widest), self._grown.get(entry.name, 0.0))
