"""The colours of maps: dark is low, bright is high."""

from __future__ import annotations

from PySide6.QtGui import QColor

# Seen alike with every kind of colour vision, and evenly in grey: after cividis (Nunez et al. 2018,
# doi 10.1371/journal.pone.0199239).
_SCALE = ((0, 34, 78), (53, 69, 108), (102, 105, 112), (148, 142, 119), (200, 184, 102),
          (254, 232, 56))  # fmt: skip


def scale_color(share: float) -> QColor:
    """Return the colour at a share of the scale, 0 to 1."""
    position = min(max(share, 0.0), 1.0) * (len(_SCALE) - 1)
    first = min(int(position), len(_SCALE) - 2)
    pairs = zip(_SCALE[first], _SCALE[first + 1], strict=True)
    return QColor(*(round(a + (b - a) * (position - first)) for a, b in pairs))
