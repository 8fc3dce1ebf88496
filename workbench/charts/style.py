"""The style of a chart: the theme's colours as Qt pens and fonts, for the screen or for paper."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QGuiApplication, QPen

from workbench.theming.theme import PRINT, Theme, series_color

# In pen widths, by series; beside the colours so that no series is marked by colour alone.
DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (6, 3),
    (1.5, 2.5),
    (8, 3, 1.5, 3),
    (12, 4),
    (4, 2),
    (8, 3, 1.5, 3, 1.5, 3),
    (3, 5),
)


FONT_PX = 12  # 9 points: the sizes of charts were chosen for it


@dataclass(frozen=True)
class Style:
    """Colours, type and line widths of a chart; sizes are logical pixels.

    On ``paper`` lines are joined paths instead of the screen's separate segments, which Qt's raster
    engine draws a hundred times faster but which a printed page shows as notches.
    """

    theme: Theme
    paper: bool = False
    font_px: int = FONT_PX
    line_px: float = 1.5
    density: float = 1.0  # columns of decimated data per logical pixel
    least_px: float = 0.0  # between two columns of a line on paper; 0: all there are

    def color(self, index: int, alpha: float = 1.0) -> QColor:
        """Return the colour of a series; ``alpha`` from 0 to 1."""
        return shade(series_color(self.theme, index), alpha)

    def dash(self, index: int) -> tuple[float, ...]:
        """Return the dash pattern of a series; differs when the colours start over."""
        return DASHES[(index + index // len(self.theme.series)) % len(DASHES)]

    def pen(self, index: int, dash: int | None = None, width: float = 1.0) -> QPen:
        """Return the pen of a series; ``width`` in units of this style's line."""
        pen = QPen(self.color(index), self.line_px * width)
        pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
        pen.setCapStyle(Qt.PenCapStyle.FlatCap)
        pattern = self.dash(index if dash is None else dash)
        if pattern:
            pen.setDashPattern(list(pattern))
        return pen

    def font(self, *, bold: bool = False, small: bool = False) -> QFont:
        """Return the chart's font, with figures of equal width."""
        px = self.font_px - 1 if small else self.font_px
        return _font(QGuiApplication.font().key(), px, bold)


@lru_cache
def _font(_application_font: str, px: int, bold: bool) -> QFont:
    """Make each font once: axes ask for it hundreds of times a second."""
    font = QFont(QGuiApplication.font())
    font.setPixelSize(px)
    font.setBold(bold)
    font.setFeature(QFont.Tag("tnum"), 1)
    return font


def screen_style(theme: Theme, font_px: int = FONT_PX) -> Style:
    """Return the style of charts in the window."""
    return Style(theme, font_px=font_px, density=0.75)


def paper_style(theme: Theme = PRINT) -> Style:
    """Return the style of exported charts: larger type, heavier lines, finer data."""
    return Style(theme, paper=True, font_px=14, line_px=1.8, density=2.0)


def shade(color: str, alpha: float = 1.0) -> QColor:
    """Return a theme colour, translucent if ``alpha`` is below 1."""
    shaded = QColor(color)
    shaded.setAlphaF(alpha)
    return shaded
