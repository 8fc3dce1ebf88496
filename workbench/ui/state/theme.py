"""The model of the window's colours."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from workbench.theming.theme import DARK, Theme


class ThemeModel(QObject):
    """The current theme; widgets that paint with it draw again when it changes."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.current = DARK

    def set(self, theme: Theme) -> None:
        """Show the window in these colours."""
        if theme is not self.current:
            self.current = theme
            self.changed.emit()
