"""Icons by purpose, drawn in the theme's colours from one icon font.

``icon_font`` holds the regular weight of Phosphor 1.3 (phosphoricons.com, MIT licence), three of
its filled glyphs, and the code point of each glyph by Phosphor's name.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontDatabase,
    QIcon,
    QIconEngine,
    QPainter,
    QPixmap,
    QPixmapCache,
)

from workbench.theming.theme import Theme

FONT_FOLDER = Path(__file__).parent / "icon_font"
NAMES = {
    "about": "info",
    "absent": "minus-circle",
    "bookmark": "bookmark",
    "attribution": "chart-bar-horizontal",
    "build": "cube",
    "cancel": "x-circle",
    "checklist": "checks",
    "claims": "quotes",
    "close": "x",
    "closed": "caret-right",
    "compare": "scales",
    "copy": "copy",
    "discard": "trash",
    "doctor": "first-aid-kit",
    "effective": "check-circle",
    "error": "warning-circle",
    "export": "export",
    "filter": "funnel",
    "find": "magnifying-glass",
    "fix": "wrench",
    "float": "arrow-square-out",
    "folder": "folder-open",
    "image": "image",
    "help": "book-open",
    "info": "info",
    "jump": "skip-forward",
    "layout": "layout",
    "live": "activity",
    "log": "article",
    "locked": "lock-simple",
    "new": "plus-circle",
    "note": "note-pencil",
    "opened": "caret-down",
    "optimize": "target",
    "palette": "command",
    "pause": "pause-fill",
    "pending": "clock",
    "preferences": "gear",
    "preset": "bookmark-simple",
    "quit": "sign-out",
    "recent": "clock-counter-clockwise",
    "recover": "bandaids",
    "redo": "arrow-u-up-right",
    "rename": "pencil-line",
    "report": "file-text",
    "restart": "arrows-clockwise",
    "resume": "play-fill",
    "run": "play-fill",
    "save": "floppy-disk",
    "segments": "rows",
    "stop": "stop-fill",
    "sweep": "chart-line-up",
    "theme": "circle-half",
    "toggle": "toggle-left",
    "tour": "map-trifold",
    "undo": "arrow-u-up-left",
    "unknown": "question",
    "breakdown": "tree-structure",
    "verdict": "check-square-offset",
    "view-pause": "eye-slash",
    "warning": "warning",
}


@lru_cache(maxsize=512)
def icon(name: str, theme: Theme, role: str = "text") -> QIcon:
    """Return the icon for a purpose in a colour of the theme: ``text``, ``muted``, ``bad``."""
    faint = mixed(theme.muted, theme.surface, 0.5)
    return QIcon(GlyphEngine(_glyphs()[NAMES[name]], getattr(theme, role), faint))


class GlyphEngine(QIconEngine):
    """Draws one character of the icon font, sharp at every size and scale."""

    def __init__(self, glyph: str, colour: str, disabled: str) -> None:
        super().__init__()
        self._glyph, self._colour, self._disabled = glyph, colour, disabled

    def paint(self, painter: QPainter, rect: QRect, mode: QIcon.Mode, state: QIcon.State) -> None:
        """Draw the character in the middle of ``rect``."""
        font = QFont(_family())
        font.setPixelSize(rect.height())
        painter.save()
        painter.setFont(font)
        faint = mode == QIcon.Mode.Disabled
        painter.setPen(QColor(self._disabled if faint else self._colour))
        painter.drawText(rect, Qt.AlignmentFlag.AlignCenter, self._glyph)
        painter.restore()

    def pixmap(self, size: QSize, mode: QIcon.Mode, state: QIcon.State) -> QPixmap:
        """Return the icon on a transparent ground; ``size`` is in the pixels of the screen."""
        colour = self._disabled if mode == QIcon.Mode.Disabled else self._colour
        key = f"{self._glyph} {colour} {size.width()}x{size.height()}"
        made = QPixmap()
        if QPixmapCache.find(key, made):
            return made
        made = QPixmap(size)
        made.fill(Qt.GlobalColor.transparent)
        if size.isEmpty():  # Qt asks for these while it lays out; there is nothing to paint on
            return made
        painter = QPainter(made)
        self.paint(painter, made.rect(), mode, state)
        painter.end()
        QPixmapCache.insert(key, made)
        return made

    def clone(self) -> QIconEngine:
        """Return another engine for the same icon."""
        return GlyphEngine(self._glyph, self._colour, self._disabled)


@cache
def _glyphs() -> dict[str, str]:
    codepoints = json.loads((FONT_FOLDER / "codepoints.json").read_bytes())
    return {name: chr(int(codepoint, 16)) for name, codepoint in codepoints.items()}


@cache
def _family() -> str:
    font = QFontDatabase.addApplicationFont(str(FONT_FOLDER / "phosphor.ttf"))
    return QFontDatabase.applicationFontFamilies(font)[0]


def mixed(over: str, under: str, share: float) -> str:
    """Return a ``#rrggbb`` colour that is ``share`` of the way from ``under`` to ``over``."""
    parts = [(int(over[i : i + 2], 16), int(under[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in parts)
