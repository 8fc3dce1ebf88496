"""The application's look: dark, light or the system's theme, font size and memory units."""

from __future__ import annotations

from PySide6.QtCore import QChildEvent, QEvent, QObject, Qt
from PySide6.QtGui import QFont, QIcon
from PySide6.QtWidgets import QApplication, QDialogButtonBox, QDockWidget, QWidget

from sessions import sizes
from workbench.theming import stylesheet
from workbench.theming.theme import DARK, LIGHT
from workbench.ui.settings import Settings
from workbench.ui.state.theme import ThemeModel

_SYSTEM_POINTS = "system_points"  # property of the application: its first font size
CHOICES = ("system", "dark", "light")
_DIRECT = Qt.FindChildOption.FindDirectChildrenOnly


class Appearance(QObject):
    """Controller of theme, font and units; it keeps the theme model up to date."""

    def __init__(self, application: QApplication, theme: ThemeModel, settings: Settings) -> None:
        super().__init__(theme)
        self._application = application
        self._theme = theme
        self._settings = settings
        self._containers: list[QWidget] = []
        application.setStyle("Fusion")
        if not application.property(_SYSTEM_POINTS):  # stored before a window changes it
            application.setProperty(_SYSTEM_POINTS, application.font().pointSizeF())
        if settings.font_points:
            self._set_font(settings.font_points)
        sizes.use_decimal(settings.decimal_units)
        application.styleHints().colorSchemeChanged.connect(self._apply)
        self._apply()
        application.setPalette(stylesheet.palette(theme.current))

    def dress(self, window: QWidget, *inner: QWidget) -> None:
        """Apply the theme to the parts of a window, now and after every change.

        Each part has a style sheet of its own: Qt polishes everything below a widget whose style
        sheet changes, which takes 0.3 s for all panels. A dock gets it when it is seen next. The
        parts of ``inner``, containers in the window, are parts of it.
        """
        containers = (window, *inner)
        self._containers += containers
        window.setStyleSheet(stylesheet.CONTAINER)
        for container in containers:
            container.installEventFilter(self)
            for part in container.findChildren(QWidget, options=_DIRECT):
                if isinstance(part, QDockWidget):
                    part.visibilityChanged.connect(lambda _, dock=part: self._dress_part(dock))
                elif part.testAttribute(Qt.WidgetAttribute.WA_WState_Polished):  # a bar of tabs
                    self._dress_part(part)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Dress a part of a container, such as a dialog, before it is shown for the first time."""
        if event.type() == QEvent.Type.ChildPolished and isinstance(event, QChildEvent):
            part = event.child()
            if isinstance(part, QWidget):
                self._dress_part(part)
        return False

    def _dress_part(self, part: QWidget) -> None:
        hidden = isinstance(part, QDockWidget) and not _is_seen(part)
        style_sheet = stylesheet.sheet(self._theme.current)
        if part not in self._containers and not hidden and part.styleSheet() != style_sheet:
            part.setStyleSheet(style_sheet)
            for box in part.findChildren(QDialogButtonBox):
                _remove_icons(box)

    @property
    def choice(self) -> str:
        """The chosen theme, one of ``CHOICES``."""
        return self._settings.theme if self._settings.theme in CHOICES else CHOICES[0]

    @property
    def system_points(self) -> float:
        """The system's font size, in points."""
        return float(self._application.property(_SYSTEM_POINTS))

    @property
    def font_points(self) -> float:
        """The font size in use, in points."""
        return self._application.font().pointSizeF()

    def choose_font(self, points: float) -> None:
        """Show everything in this font size."""
        points = round(points, 1)
        if points != round(self.font_points, 1):
            self._settings.font_points = points
            self._set_font(points)
            self._dress()
            self._theme.changed.emit()  # cells of tables have fonts of their own

    def choose_units(self, decimal: bool) -> None:
        """Show memory in GB or in GiB."""
        if decimal != self._settings.decimal_units:
            self._settings.decimal_units = decimal
            sizes.use_decimal(decimal)
            self._theme.changed.emit()  # draws everything again

    def _set_font(self, points: float) -> None:
        """Scale the application's font, and fonts that widgets set themselves."""
        font = self._application.font()
        factor = points / font.pointSizeF()
        widget_fonts = [
            (widget, QFont(widget.font()))
            for widget in self._application.allWidgets()
            if widget.testAttribute(Qt.WidgetAttribute.WA_SetFont)
        ]
        font.setPointSizeF(points)
        self._application.setFont(font)
        for widget, own_font in widget_fonts:
            if own_font.pointSizeF() > 0:
                own_font.setPointSizeF(own_font.pointSizeF() * factor)
                widget.setFont(own_font)

    def choose(self, name: str) -> None:
        """Choose a theme of ``CHOICES``."""
        self._settings.theme = name
        self._apply()

    def _apply(self) -> None:
        dark = self.choice == "dark"
        if self.choice == "system":
            scheme = self._application.styleHints().colorScheme()
            dark = scheme != Qt.ColorScheme.Light
        theme = DARK if dark else LIGHT
        if theme is not self._theme.current:
            self._application.setPalette(stylesheet.palette(theme))
            self._theme.set(theme)
            for container in self._containers:
                container.style().unpolish(container)  # the colours of its separators are kept
                container.style().polish(container)
            self._dress()

    def _dress(self) -> None:
        """Apply the style sheet to the parts of all windows."""
        for container in self._containers:
            for part in container.findChildren(QWidget, options=_DIRECT):
                self._dress_part(part)


def _remove_icons(box: QDialogButtonBox) -> None:
    """Remove the desktop's coloured icons from a dialog's standard buttons."""
    for button in box.buttons():
        if box.standardButton(button) != QDialogButtonBox.StandardButton.NoButton:
            button.setIcon(QIcon())


def _is_seen(dock: QDockWidget) -> bool:
    """Return True unless the dock is closed or behind another: Qt moves it out of the area then.

    Its visible region would not do: it lacks what children with a background cover.
    """
    area = dock.parentWidget()
    return dock.isVisible() and (dock.isFloating() or area.rect().intersects(dock.geometry()))
