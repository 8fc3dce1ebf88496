"""The cover of a panel that could not be drawn; the rest of the window continues."""

from __future__ import annotations

from types import TracebackType

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QFrame, QLabel, QVBoxLayout, QWidget

from workbench.ui.panels import _widgets

NAME = "broken"  # object name of the covering widget


class Cover(QFrame):
    """Cover over a panel that could not be drawn; a button shows the panel anyway."""

    def __init__(self, panel: QWidget) -> None:
        super().__init__(panel)
        self.setObjectName(NAME)
        self.setAutoFillBackground(True)
        self.sentence = QLabel()
        self.sentence.setTextFormat(Qt.TextFormat.PlainText)
        self.sentence.setWordWrap(True)
        self.sentence.setAlignment(Qt.AlignmentFlag.AlignCenter)
        button = _widgets.button("Show the panel anyway")
        button.clicked.connect(self.hide)
        layout = _widgets.tight(QVBoxLayout(self), 8, 16)
        layout.addStretch(1)
        layout.addWidget(self.sentence)
        layout.addWidget(button, 0, Qt.AlignmentFlag.AlignHCenter)
        layout.addStretch(1)
        panel.installEventFilter(self)

    def say(self, text: str) -> None:
        """Cover the panel with this text."""
        self.sentence.setText(text)
        self._cover_panel()
        self.show()
        self.raise_()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Stay as large as the panel."""
        if event.type() == QEvent.Type.Resize:
            self._cover_panel()
        return False

    def _cover_panel(self) -> None:
        panel = self.parentWidget()
        assert panel is not None
        self.setGeometry(panel.rect())


def cover(panel: QWidget, text: str) -> None:
    """Cover a panel with a text; a newer text replaces an older one."""
    existing = panel.findChild(Cover, NAME, Qt.FindChildOption.FindDirectChildrenOnly)
    (existing or Cover(panel)).say(text)


def panel_of(trace: TracebackType | None, panels: list[QWidget]) -> QWidget | None:
    """Return the panel in whose code an exception was raised, from the innermost call outward."""
    owners = []
    while trace is not None:
        owners.append(trace.tb_frame.f_locals.get("self"))
        trace = trace.tb_next
    for owner in reversed(owners):
        while isinstance(owner, QObject):
            if owner in panels:
                return owner  # type: ignore[return-value]
            owner = owner.parent()
    return None
