"""A quiet bar above a panel's content: marked lines, buttons, and a way to dismiss it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QToolButton, QVBoxLayout, QWidget

from workbench.theming.icons import icon
from workbench.theming.theme import Theme
from workbench.ui.panels import _widgets

_BESIDE = 80  # letters of a line that leaves room for a button
Line = tuple[str, str, str]  # text, icon ("" for none), role of the colour


class Bar(QFrame):
    """A bar that is hidden until it has content; the same content is not drawn twice.

    What it shows has its place at once, and a button stays while its text does: one that is pressed
    or has the focus is not taken away by the next number.
    """

    def __init__(self, dismissed: Callable[[], None], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("banner", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._shown: object = None
        self._buttons: dict[str, QPushButton] = {}
        self._acts: dict[str, Callable[[], None]] = {}
        self._first_line = _widgets.tight(QVBoxLayout(), 4)
        self._lines = _widgets.tight(QVBoxLayout(), 4)  # the other lines
        self._buttons_beside = _widgets.tight(QHBoxLayout(), 6)  # a button beside a short line
        self._buttons_below = _widgets.tight(QHBoxLayout(), 6)  # other buttons
        self.close_button = QToolButton()
        self.close_button.setToolTip("Dismiss")
        self.close_button.setAccessibleName("Dismiss")
        self.close_button.clicked.connect(dismissed)
        head = _widgets.tight(QHBoxLayout(), 6)
        head.addLayout(self._first_line, 1)
        head.addLayout(self._buttons_beside)
        head.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignTop)
        layout = _widgets.tight(QVBoxLayout(self), 6)
        layout.setContentsMargins(10, 6, 6, 6)
        layout.addLayout(head)
        layout.addLayout(self._lines)
        layout.addLayout(self._buttons_below)
        self.hide()

    def say(
        self,
        tone: str,
        lines: Sequence[Line],
        buttons: Sequence[tuple[str, Callable[[], None]]],
        theme: Theme,
        *,
        closes: bool = True,
    ) -> None:
        """Show these lines, the first in the bar's tone; ``info`` is the accent's."""
        self._acts = dict(buttons)
        shown = (tone, tuple(lines), tuple(self._acts), theme.name, closes)
        self.show()
        if shown == self._shown:
            return
        self._shown = shown
        self.setProperty("tone", tone)
        self.style().unpolish(self)
        self.style().polish(self)
        _widgets.clear(self._first_line)
        _widgets.clear(self._lines)
        for row, (text, mark, role) in enumerate(lines):
            label = _widgets.note(
                text, role if role in ("good", "warning", "bad", "accent") else ""
            )
            line = _widgets.marked(label, mark, theme, role) if mark else label
            layout = self._lines if row else self._first_line
            layout.addWidget(line, 0, Qt.AlignmentFlag.AlignVCenter)  # level with a button
            line.show()
        # A single button does not move when there are more lines: the mouse may be on its way.
        beside = len(self._acts) < 2 and len(lines[0][0]) <= _BESIDE
        self._show_buttons(
            tuple(self._acts), self._buttons_beside if beside else self._buttons_below
        )
        self.close_button.setIcon(icon("close", theme, "muted"))
        self.close_button.setVisible(closes)
        _widgets.settle(self)

    def _show_buttons(self, texts: Sequence[str], row: QHBoxLayout) -> None:
        """Show these buttons; make those that are missing, and keep the focus among them."""
        for layout in (self._buttons_beside, self._buttons_below):
            while layout.takeAt(0):
                pass
        before, self._buttons = self._buttons, {}
        for text in texts:
            button = before.pop(text, None) or self._make_button(text)
            self._buttons[text] = button
            row.addWidget(button)
            button.show()
        self._buttons_below.addStretch(1)
        if any(button.hasFocus() for button in before.values()):
            next(iter(self._buttons.values()), self.close_button).setFocus()
        for button in before.values():
            _widgets.discard(button)

    def _make_button(self, text: str) -> QPushButton:
        button = _widgets.compact(text)
        button.clicked.connect(lambda: self._acts[text]())
        return button

    def leave(self) -> None:
        """Show nothing."""
        self._shown = None
        self.hide()
        _widgets.settle(self)
