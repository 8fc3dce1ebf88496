"""Dark, light, or as the system has it: follows the choice and the system, and dresses Qt."""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QApplication

from workbench.theming import stylesheet
from workbench.theming.theme import DARK, LIGHT
from workbench.ui.settings import Settings
from workbench.ui.state.theme import ThemeModel

CHOICES = ("system", "dark", "light")


class Appearance(QObject):
    """Keeps the application's look and the theme model in step with the choice."""

    def __init__(self, application: QApplication, theme: ThemeModel, settings: Settings) -> None:
        super().__init__(theme)
        self._application = application
        self._theme = theme
        self._settings = settings
        application.setStyle("Fusion")
        application.styleHints().colorSchemeChanged.connect(self._follow)
        self._follow()
        stylesheet.apply(application, theme.current)

    @property
    def choice(self) -> str:
        """One of ``CHOICES``."""
        return self._settings.theme if self._settings.theme in CHOICES else CHOICES[0]

    def choose(self, name: str) -> None:
        """Take one of ``CHOICES``."""
        self._settings.theme = name
        self._follow()

    def _follow(self) -> None:
        dark = self.choice == "dark"
        if self.choice == "system":
            scheme = self._application.styleHints().colorScheme()
            dark = scheme != Qt.ColorScheme.Light
        theme = DARK if dark else LIGHT
        if theme is not self._theme.current:
            stylesheet.apply(self._application, theme)
            self._theme.set(theme)
