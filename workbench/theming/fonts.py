"""Type: the system's own face in three sizes, and figures of equal width for numbers."""

from __future__ import annotations

from PySide6.QtGui import QFont, QFontDatabase, QFontMetrics
from PySide6.QtWidgets import QApplication

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
    font = QFont(font or QFont())  # of a new font only the figures are set: the rest is inherited
    font.setFeature(QFont.Tag("tnum"), 1)
    return font


def fixed() -> QFont:
    """Return the system's face of fixed width, for tracebacks and logs."""
    font: QFont = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    return font


def _scaled(font: QFont | None, factor: float) -> QFont:
    font = QFont(font or QApplication.font())
    if font.pointSizeF() > 0:
        font.setPointSizeF(font.pointSizeF() * factor)
    else:
        font.setPixelSize(max(1, round(font.pixelSize() * factor)))
    return font
