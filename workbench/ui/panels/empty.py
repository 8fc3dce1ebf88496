"""An empty panel: a text on how to fill it, and a button for it if there is one."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QPushButton, QVBoxLayout, QWidget

from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.ui.panels import _widgets
from workbench.ui.state.theme import ThemeModel

TEXT_WIDTH = 340

_ICON_PX = 28
_FRAME_PX = 48  # margins and spaces


class Empty(QWidget):
    """A calm page with an icon, a line and a sentence, in the middle of the panel."""

    def __init__(
        self,
        theme: ThemeModel,
        icon_name: str,
        line: str,
        sentence: str,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._theme = theme
        self._icon_name = icon_name
        self.setProperty("panel", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._mark = QLabel()
        self._line = _widgets.title()
        self._sentence = _widgets.WrappedText()
        self._sentence.setProperty("muted", True)
        self._layout = _widgets.tight(QVBoxLayout(self), 8, 16)
        self._layout.addStretch(1)
        for label in (self._mark, self._line, self._sentence):
            label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
            self._layout.addWidget(label, 0, Qt.AlignmentFlag.AlignHCenter)
        self._layout.addStretch(2)
        self.say(line, sentence)
        for label in (self._line, self._sentence):
            fonts.follow(label, self._fit_labels)
        theme.changed.connect(self._draw)
        self._draw()

    def say(self, line: str, sentence: str) -> None:
        """Change the texts."""
        self._line.setText(line)
        self._sentence.setText(sentence)
        self._fit_labels()

    def offer(self, text: str, act: Callable[[], None]) -> QPushButton:
        """Add a button beneath the sentence."""
        button = _widgets.button(text)
        button.clicked.connect(act)
        self.append(button)
        return button

    def append(self, widget: QWidget) -> None:
        """Add a widget below all others."""
        last = self._layout.count() - 1
        self._layout.insertWidget(last, widget, 0, Qt.AlignmentFlag.AlignHCenter)

    def minimumSizeHint(self) -> QSize:
        """Return a small size: an empty panel does not widen its dock."""
        return QSize(120, 80)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keep the sentence as wide as reads well, and no wider than the panel."""
        super().resizeEvent(event)
        self._fit_labels()

    def _fit_labels(self) -> None:
        width = max(80, min(TEXT_WIDTH, self.width() - 32))
        for label in (self._line, self._sentence):
            label.setFixedWidth(width)
            label.setFixedHeight(label.heightForWidth(width))
        texts = self._line.height() + self._sentence.height()
        # A low panel keeps its words and gives up the icon.
        self._mark.setVisible(self.height() >= texts + _ICON_PX + _FRAME_PX)

    def _draw(self) -> None:
        pixmap = icon(self._icon_name, self._theme.current, "muted").pixmap(
            QSize(_ICON_PX, _ICON_PX)
        )
        self._mark.setPixmap(pixmap)
