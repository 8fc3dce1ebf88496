"""The command palette: commands, toggle options and presets, searched by parts of their names.

Words of an entry's description find it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, QSize, Qt
from PySide6.QtGui import QIcon, QKeyEvent, QPainter, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import (
    QApplication,
    QFrame,
    QLineEdit,
    QListView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from workbench.theming import fonts
from workbench.ui.panels import _widgets

WIDTH = 560
ROWS = 10
_MORE_PX = 6  # than a table's row
TOP = 48
SIDE_ROLE = Qt.ItemDataRole.UserRole + 1
_WORDS = re.compile(r"\w+")
_KEYS = {
    Qt.Key.Key_Up: -1,
    Qt.Key.Key_Down: 1,
    Qt.Key.Key_PageUp: -ROWS,
    Qt.Key.Key_PageDown: ROWS,
}


@dataclass(frozen=True)
class Entry:
    """Entry of the palette; ``why_not``, if set, is shown instead of the shortcut.

    The words of ``tip``, which is a tool tip, and ``words`` find the entry too.
    """

    text: str
    run: Callable[[], None]
    icon: QIcon
    shortcut: str = ""
    why_not: str = ""
    tip: str = ""
    words: str = ""


def rank(query: str, entry: Entry) -> float | None:
    """Return how well an entry matches; None if neither its name nor its words do.

    A word counts less than letters in a row of the name, and more than letters here and there.
    """
    score = match(query, entry.text)
    scores = [] if score is None else [score]
    text = f"{entry.text} {entry.shortcut} {entry.words}"
    if _has_words(query, text):
        scores.append(2.0 * len(query))
    elif _has_words(query, f"{text} {entry.tip}"):
        scores.append(1.5 * len(query))
    return max(scores, default=None)


def _has_words(query: str, text: str) -> bool:
    """Return True if every word of ``query`` begins a word of ``text``, in any order."""
    words = _WORDS.findall(text.casefold())
    starts = _WORDS.findall(query.casefold())
    return bool(starts) and all(any(word.startswith(start) for word in words) for start in starts)


def match(query: str, text: str) -> float | None:
    """Return how well ``text`` matches ``query``; None if its letters do not occur in order.

    Letters at the start of a word and letters in a row count more, long texts a little less.
    """
    text, query = text.casefold(), query.casefold().replace(" ", "")
    best: float | None = None
    for start in (index for index, letter in enumerate(text) if letter == query[:1]):
        score = _match_from(query, text, start)
        if score is not None and (best is None or score > best):
            best = score
    return 0.0 if not query else best


def _match_from(query: str, text: str, start: int) -> float | None:
    score = 0.0
    last = start - 1
    for letter in query:
        index = text.find(letter, last + 1)
        if index < 0:
            return None
        at_word = index == 0 or not text[index - 1].isalnum()
        in_row = index == last + 1 and index != start
        score += 1.0 + 2.0 * at_word + 1.5 * in_row
        last = index
    return score - 0.01 * len(text)


class CommandPalette(QFrame):
    """A list over the window with a line to type in; Escape or a click elsewhere closes it."""

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self.setProperty("popup", True)
        self._entries: Callable[[], Sequence[Entry]] = list
        self._shown: list[Entry] = []
        self._before: QWidget | None = None
        self.line = QLineEdit()
        self.line.setPlaceholderText("Type a command, a toggle, a preset or a preference")
        self.line.setMinimumHeight(30)
        self._model = QStandardItemModel(self)
        self.list = QListView()
        self.list.setAccessibleName("Commands")
        self.list.setModel(self._model)
        self.list.setItemDelegate(_Delegate(self.list))
        self.list.setUniformItemSizes(True)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.clicked.connect(lambda index: self._run(index.row()))
        layout = _widgets.tight(QVBoxLayout(self), 6, 8)
        layout.addWidget(self.line)
        layout.addWidget(self.list)
        self.line.textChanged.connect(self._filter)
        self.line.returnPressed.connect(lambda: self._run(self.list.currentIndex().row()))
        self.line.installEventFilter(self)
        self.hide()

    def ask(self, entries: Callable[[], Sequence[Entry]]) -> None:
        """Show the palette; ``entries`` is called again at each letter."""
        self._entries = entries
        self._before = QApplication.focusWidget()
        self.line.clear()
        self._filter("")
        host = self.parentWidget()
        width = min(WIDTH, host.width() - 32)
        height = 58 + self._row().height() * ROWS
        self.setGeometry((host.width() - width) // 2, TOP, width, min(height, host.height() - 80))
        self.show()
        self.raise_()
        self.line.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Move in the list with the arrow keys while the line has the focus; close at Escape."""
        if event.type() == QEvent.Type.FocusOut:
            self.hide()
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            key = Qt.Key(event.key())
            if key == Qt.Key.Key_Escape:
                self._leave()
                return True
            if key in _KEYS:
                row = self.list.currentIndex().row() + _KEYS[key]
                self._select(max(0, min(row, len(self._shown) - 1)))
                return True
        return bool(super().eventFilter(watched, event))

    def _filter(self, query: str) -> None:
        ranked, entries = [], self._entries()
        for index, entry in enumerate(entries):
            score = rank(query, entry)
            if score is not None:
                ranked.append((bool(entry.why_not), -score, index))
        self._shown = [entries[index] for *_, index in sorted(ranked)]
        self._model.clear()
        for entry in self._shown:
            item = QStandardItem(entry.icon, entry.text)
            item.setData(entry.why_not or entry.shortcut, SIDE_ROLE)
            item.setEnabled(not entry.why_not)
            item.setToolTip(entry.why_not or entry.tip)
            item.setSizeHint(self._row())
            self._model.appendRow(item)
        if not self._shown:
            nothing = QStandardItem("Nothing has this name")
            nothing.setEnabled(False)
            nothing.setSizeHint(self._row())
            self._model.appendRow(nothing)
        self._select(0)

    def _row(self) -> QSize:
        """Return the least size of an entry's row."""
        return QSize(0, fonts.row_px(self.font()) + _MORE_PX)

    def _select(self, row: int) -> None:
        index = self._model.index(row, 0)
        self.list.setCurrentIndex(index)
        self.list.scrollTo(index)

    def _run(self, row: int) -> None:
        if 0 <= row < len(self._shown) and not self._shown[row].why_not:
            self._leave()
            self._shown[row].run()

    def _leave(self) -> None:
        """Return the keyboard focus to the widget that had it."""
        if self._before is not None:
            with suppress(RuntimeError):  # it may have been deleted meanwhile
                self._before.setFocus()
        self.hide()


class _Delegate(QStyledItemDelegate):
    """Painter of an entry's shortcut, or why it cannot be used, at its right end."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index) -> None:  # type: ignore[no-untyped-def]
        super().paint(painter, option, index)
        side = index.data(SIDE_ROLE)
        if not side:
            return
        painter.save()
        font = fonts.small(option.font)
        painter.setFont(font)
        painter.setPen(option.palette.placeholderText().color())
        room = option.rect.adjusted(option.rect.width() * 2 // 5, 0, -12, 0)
        metrics = painter.fontMetrics()
        text = metrics.elidedText(side, Qt.TextElideMode.ElideRight, room.width())
        align = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(room, align, text)
        painter.restore()
