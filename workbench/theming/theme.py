"""Colours: one table of tokens for dark, light and print, and the colour-blind-safe series."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Theme:
    """Colour tokens as ``#rrggbb``; ``window`` is the desk, ``surface`` what lies on it."""

    name: str
    window: str
    surface: str
    raised: str  # controls, headers
    line: str  # borders, grid
    text: str
    muted: str  # secondary text, axes
    accent: str
    on_accent: str
    good: str
    warning: str
    bad: str
    series: tuple[str, ...]  # in order of use; each with the line style of the same index
    phases: tuple[str, ...]  # by sessions.model.Phase, drawn translucent


# Okabe and Ito's set (jfly.uni-koeln.de/color), lightened for dark and darkened for white grounds
# so that every series keeps a contrast of 3:1 against the surface.
DARK = Theme(
    name="dark",
    window="#1b1d21",
    surface="#212429",
    raised="#2b2f36",
    line="#3a3f48",
    text="#e4e7eb",
    muted="#9aa3af",
    accent="#4c9be8",
    on_accent="#0d1218",
    good="#4dbb7f",
    warning="#e5a93c",
    bad="#ee6a5f",
    series=("#56b4e9", "#e69f00", "#2fbf96", "#e37fb5", "#f0e442", "#ff7f50", "#8c9eff", "#c0c6cf"),
    phases=("#8c9eff", "#e37fb5", "#e69f00", "#2fbf96", "#9aa3af", "#212429", "#f0e442", "#56b4e9"),
)
LIGHT = Theme(
    name="light",
    window="#f0f2f4",
    surface="#ffffff",
    raised="#e6e9ed",
    line="#ccd2d9",
    text="#1c2127",
    muted="#5b6571",
    accent="#1769c2",
    on_accent="#ffffff",
    good="#1c7c46",
    warning="#9a6200",
    bad="#c0362c",
    series=("#0072b2", "#b35c00", "#00805f", "#b0457f", "#8a7a00", "#c8401a", "#4a55b8", "#5b6571"),
    phases=("#4a55b8", "#b0457f", "#b35c00", "#00805f", "#5b6571", "#ffffff", "#8a7a00", "#0072b2"),
)
PRINT = Theme(
    name="print",
    window="#ffffff",
    surface="#ffffff",
    raised="#ffffff",
    line="#d0d0d0",
    text="#000000",
    muted="#333333",
    accent="#0072b2",
    on_accent="#ffffff",
    good="#1c7c46",
    warning="#9a6200",
    bad="#c0362c",
    series=LIGHT.series,
    phases=LIGHT.phases,
)

_GOLDEN_ANGLE = 0.381966  # share of the hue circle: successive hues lie far apart
_COLORS = 128  # as many segments as a plot shows
_LEAST_CONTRAST = 3.0  # against the surface, as of the first series
_SATURATIONS = (0.75, 0.45, 0.95)


@cache
def series_color(theme: Theme, index: int) -> str:
    """Return the colour of a series; the first 128 have colours of their own."""
    if index < len(theme.series):
        return theme.series[index]
    if index >= _COLORS:  # each costs a search: a table of thousands of rows would wait for it
        return series_color(theme, index % _COLORS)
    extra = index - len(theme.series)
    hue = (0.07 + extra * _GOLDEN_ANGLE) % 1.0
    saturation = _SATURATIONS[extra % len(_SATURATIONS)]
    ground = _luminance(theme.surface)
    steps = [step / 50 for step in range(51)]
    for lightness in steps[30:] if ground < 0.5 else steps[25::-1]:
        red, green, blue = colorsys.hls_to_rgb(hue, lightness, saturation)
        color = "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))
        light, dark = sorted((_luminance(color), ground), reverse=True)
        if (light + 0.05) / (dark + 0.05) >= _LEAST_CONTRAST:
            return color
    return theme.text


def _luminance(color: str) -> float:
    """Return the relative luminance of ``#rrggbb``, as WCAG 2.2 defines it."""
    parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
