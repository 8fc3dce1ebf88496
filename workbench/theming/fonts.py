"""Type: the system's own face in three sizes, figures of equal width, and widths in type."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject
from PySide6.QtGui import QFont, QFontDatabase, QFontMetrics, QFontMetricsF
from PySide6.QtWidgets import QApplication, QWidget

LETTER_PX = 6.1  # average letter of the type that widths in pixels were chosen for: 9 points
NO_FONT = (
    "no font was found, so that text is missing or drawn as boxes: install one (on Debian and "
    "Ubuntu, fonts-dejavu-core)"
)


def exist() -> bool:
    """Return True if there is a font to draw text with; needs the application."""
    return QFontMetrics(QFont()).inFont("a")


def small(font: QFont | None = None) -> QFont:
    """Return the font of notes and captions: nine tenths of the interface's size."""
    return _scaled(font, 0.92)


def heading(font: QFont | None = None) -> QFont:
    """Return the font of names of groups: small, bold."""
    font = _scaled(font, 0.92)
    font.setWeight(QFont.Weight.DemiBold)
    return font


def title(font: QFont | None = None) -> QFont:
    """Return the font of the one line that a panel or dialog begins with."""
    font = _scaled(font, 1.15)
    font.setWeight(QFont.Weight.DemiBold)
    return font


def numbers(font: QFont | None = None) -> QFont:
    """Return the interface's face with tabular figures, so that columns of numbers line up."""
    font = QFont(font or QFont())  # a new font sets only the figures and inherits the rest
    font.setFeature(QFont.Tag("tnum"), 1)
    return font


def fixed() -> QFont:
    """Return the system's face of fixed width, for tracebacks and logs."""
    font: QFont = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    return font


class _TypeWidth(QObject):
    """Fixed width of a widget that grows with its type: the font size is a preference."""

    def __init__(self, widget: QWidget, width: int, growth: float) -> None:
        super().__init__(widget)
        self._widget, self._width, self._growth = widget, width, growth
        widget.installEventFilter(self)
        self._fix()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Follow the font."""
        if event.type() == QEvent.Type.FontChange:
            self._fix()
        return super().eventFilter(watched, event)

    def _fix(self) -> None:
        self._widget.setFixedWidth(in_type(self._width, self._widget.font(), self._growth))


def in_type(width: int, font: QFont, growth: float = 1.0) -> int:
    """Return a width in pixels, chosen for small type, as large as a font needs it.

    ``growth``: 1 for a single word; less where the text is not the only content or may wrap.
    """
    letter = QFontMetricsF(font).averageCharWidth()
    return round(width * (1 + growth * max(0.0, letter / LETTER_PX - 1)))


def fix_width(widget: QWidget, width: int, growth: float = 1.0) -> None:
    """Give a widget a fixed width in pixels that grows with its type, as ``in_type`` does."""
    _TypeWidth(widget, width, growth)


def _scaled(font: QFont | None, factor: float) -> QFont:
    font = QFont(font or QApplication.font())
    if font.pointSizeF() > 0:
        font.setPointSizeF(font.pointSizeF() * factor)
    else:
        font.setPixelSize(max(1, round(font.pixelSize() * factor)))
    return font
