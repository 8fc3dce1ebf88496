"""A short tour of the window: five callouts, once at the first start and from the Help menu."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, Qt, QTimer
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from workbench.theming import fonts
from workbench.ui.panels import _widgets

WIDTH = 300
GAP = 10  # between a callout and what it explains


@dataclass(frozen=True)
class Stop:
    """Callout: the name of the panel or button that it points at, a title, a sentence."""

    target: str
    title: str
    text: str


STOPS = (
    Stop(
        "build",
        "Choose a model",
        "Family, size and workload. The defaults fit this machine. Your own model: File, Open "
        "model.",
    ),
    Stop("run-button", "Run it", "Run (F5) builds the model. Every step is timed and plotted."),
    Stop(
        "toggles",
        "Switch optimizations",
        "Change any toggle while the model runs. A lock shows why an option is not available, and "
        "what would enable it.",
    ),
    Stop(
        "verdict-button",
        "Ask for the verdict",
        "Verdict (F8) runs both configurations in random pairs of short blocks, and shows whether "
        "the change is faster and whether the results are still right.",
    ),
    Stop(
        "segments",
        "Keep and compare",
        "Each configuration that ran is one row, with its ratio to the baseline. File, Report "
        "writes everything to one page.",
    ),
)


class Tour(QFrame):
    """Sequence of callouts over the window; Escape and Close end it."""

    def __init__(self, window: QWidget, targets: Mapping[str, QWidget]) -> None:
        super().__init__(window)
        self._window, self._targets = window, targets
        self._index = -1  # index in STOPS
        self.setProperty("popup", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        fonts.fix_width(self, WIDTH)
        self._frame = QFrame(window)  # around what is explained
        self._frame.setProperty("spotlight", True)
        self._frame.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.title = QLabel()
        self.title.setFont(fonts.title())
        self.text = _widgets.WrappedText()
        self.count = _widgets.muted("")
        self.close_button = _widgets.button("Close")
        self.close_button.clicked.connect(self.end)
        self.next_button = _widgets.button("Next")
        self.next_button.setProperty("primary", True)
        self.next_button.clicked.connect(self.advance)
        layout = _widgets.tight(QVBoxLayout(self), 8, 12)
        layout.addWidget(self.title)
        layout.addWidget(self.text)
        row = _widgets.tight(QHBoxLayout())
        row.addWidget(self.count, 1)
        row.addWidget(self.close_button)
        row.addWidget(self.next_button)
        layout.addLayout(row)
        window.installEventFilter(self)
        self.advance()

    def advance(self) -> None:
        """Show the next callout, or end after the last."""
        self._index += 1
        if self._index == len(STOPS):
            self.end()
            return
        stop = STOPS[self._index]
        self.target.installEventFilter(self)
        self.title.setText(stop.title)
        self.text.setText(stop.text)
        self.count.setText(f"{self._index + 1} of {len(STOPS)}")
        self.next_button.setText("Done" if self._index == len(STOPS) - 1 else "Next")
        self.show()
        self._point()
        self.next_button.setFocus()

    @property
    def target(self) -> QWidget:
        """The panel or button that the callout explains."""
        return self._targets[STOPS[self._index].target]

    def end(self) -> None:
        """Close the tour."""
        self._window.removeEventFilter(self)
        for widget in (self._frame, self):
            widget.hide()
            widget.deleteLater()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """End at Escape."""
        if event.key() == Qt.Key.Key_Escape:
            self.end()
        else:
            super().keyPressEvent(event)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Follow the window and the target, which docks move when they are laid out."""
        if event.type() in (QEvent.Type.Resize, QEvent.Type.Move):
            QTimer.singleShot(0, self, self._point)  # its parents move first
        return False

    def _point(self) -> None:
        """Frame the target, and move next to it inside the window."""
        window = self._window
        target = self.target
        visible = target.isVisible()
        self._frame.setVisible(visible)
        self.adjustSize()
        area = window.rect()
        if not visible:  # its panel is closed
            self.move(area.center() - self.rect().center())
            self.raise_()
            return
        rect = QRect(target.mapTo(window, QPoint(0, 0)), target.size())
        self._frame.setGeometry(rect.adjusted(-2, -2, 2, 2))
        self._frame.raise_()
        x, y = rect.left(), rect.bottom() + GAP
        if y + self.height() > area.bottom():  # no room below: beside it, or above
            fits_beside = rect.right() + GAP + self.width() <= area.right()
            x, y = (
                (rect.right() + GAP, rect.top()) if fits_beside else (x, rect.top() - self.height())
            )
        self.move(
            max(area.left(), min(x, area.right() - self.width())),
            max(area.top(), min(y, area.bottom() - self.height())),
        )
        self.raise_()
