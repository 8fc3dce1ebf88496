"""Sizes of memory by one rule: the largest binary unit that is not larger than the size.

Readings (``size_text``) have three significant digits, and whole units from a hundred on: what the
allocator counts is exact. A column (``sized``) has the unit of its largest size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sessions.numbers import MISSING, Cell, text

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def power_of(size_bytes: float) -> int:
    """Return the index in ``UNITS`` of a size's unit; that of bytes if the size is unknown."""
    size = abs(size_bytes)
    if not math.isfinite(size) or size < 1:
        return 0
    return min(len(UNITS) - 1, math.floor(math.log(size, 1024) + 1e-9))


def size_text(size_bytes: float) -> str:
    """Return a size as ``13.6 GiB``; a dash if it is unknown."""
    if not math.isfinite(size_bytes):
        return MISSING
    unit, (cell,) = sized([size_bytes])
    return f"{text(cell)} {unit}"


def sized(sizes_bytes: Iterable[float]) -> tuple[str, list[Cell]]:
    """Return unit and cells of a column of sizes; None if unknown, no unit without sizes."""
    sizes = list(sizes_bytes)
    known = [abs(size) for size in sizes if math.isfinite(size)]
    power = power_of(max(known, default=0.0))
    return UNITS[power] if known else "", [_cell(size / 1024**power) for size in sizes]


def _cell(size: float) -> Cell:
    if not math.isfinite(size):
        return None
    return round(size) if abs(size) >= 100 or size == 0 else size
