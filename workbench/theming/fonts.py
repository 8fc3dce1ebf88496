"""Type: the system's own face in three sizes, figures of equal width, and widths in type."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject
from PySide6.QtGui import QFont, QFontDatabase, QFontMetrics, QFontMetricsF
from PySide6.QtWidgets import QApplication, QTableView, QWidget

LETTER_PX = 6.1  # average letter of the type that widths in pixels were chosen for: 9 points
_ICON_PX = 14  # side of the smallest icon
ROW_PX, _ROW_GAP_PX = 26, 10  # height of a table's row: at least, and more than its text
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
    """Return the system's face of fixed width in the interface's size, for tracebacks and logs."""
    font: QFont = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    if (points := QApplication.font().pointSizeF()) > 0:
        font.setPointSizeF(points)
    return font


class _FontFilter(QObject):
    """Calls a function whenever a widget's font changes: the font size is a preference."""

    def __init__(self, widget: QWidget, act: Callable[[], object]) -> None:
        super().__init__(widget)
        self._act = act
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Follow the font."""
        if event.type() == QEvent.Type.FontChange:
            self._act()
        return super().eventFilter(watched, event)


def follow(widget: QWidget, act: Callable[[], object]) -> None:
    """Call ``act`` now and whenever the widget's font changes."""
    _FontFilter(widget, act)
    act()


def icon_px(font: QFont) -> int:
    """Return the side of an icon beside text, in pixels."""
    return max(_ICON_PX, QFontMetrics(font).height())


def row_px(font: QFont) -> int:
    """Return the height of a table's row in pixels."""
    return max(ROW_PX, QFontMetrics(font).height() + _ROW_GAP_PX)


def fix_rows(table: QTableView, more_px: int = 0) -> None:
    """Give the rows of a table the height that its type needs, and some pixels more."""
    header = table.verticalHeader()

    def fix() -> None:
        height = row_px(table.font()) + more_px
        header.setMinimumSectionSize(height)  # its own still is that of the font before
        header.setDefaultSectionSize(height)

    follow(table, fix)


def in_type(width: int, font: QFont, growth: float = 1.0) -> int:
    """Return a width in pixels, chosen for small type, as large as a font needs it.

    ``growth``: 1 for a single word; less where the text is not the only content or may wrap.
    """
    letter = QFontMetricsF(font).averageCharWidth()
    return round(width * (1 + growth * max(0.0, letter / LETTER_PX - 1)))


def fix_width(widget: QWidget, width: int, growth: float = 1.0) -> None:
    """Give a widget a fixed width in pixels that grows with its type, as ``in_type`` does."""
    follow(widget, lambda: widget.setFixedWidth(in_type(width, widget.font(), growth)))


def _scaled(font: QFont | None, factor: float) -> QFont:
    font = QFont(font or QApplication.font())
    if font.pointSizeF() > 0:
        font.setPointSizeF(font.pointSizeF() * factor)
    else:
        font.setPixelSize(max(1, round(font.pixelSize() * factor)))
    return font
