"""Sizes of memory by one rule: the largest unit that gives at least 1, binary by default.

Readings (``size_text``) have three significant digits, and no decimals from 100 on: the allocator's
counts are exact. A column (``sized``) has the unit of its largest size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sessions.numbers import MISSING, Cell, text

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_units = UNITS  # the units that this process uses


def use_decimal(decimal: bool) -> None:
    """Show sizes in powers of 1000 from here on, or of 1024."""
    global _units
    _units = DECIMAL_UNITS if decimal else UNITS


def is_decimal() -> bool:
    """Return True if sizes are shown in powers of 1000."""
    return _units is DECIMAL_UNITS


def base() -> int:
    """Return how many of a unit the next one holds."""
    return 1000 if is_decimal() else 1024


def unit(power: int) -> str:
    """Return the unit of a power of the base."""
    return _units[power]


def power_of(size_bytes: float) -> int:
    """Return the index in ``UNITS`` of a size's unit; that of bytes if the size is unknown."""
    size = abs(size_bytes)
    if not math.isfinite(size) or size < 1:
        return 0
    return min(len(UNITS) - 1, math.floor(math.log(size, base()) + 1e-9))


def size_text(size_bytes: float) -> str:
    """Return a size as ``13.6 GiB``; a dash if it is unknown."""
    if not math.isfinite(size_bytes):
        return MISSING
    symbol, (cell,) = sized([size_bytes])
    return f"{text(cell)} {symbol}"


def sized(sizes_bytes: Iterable[float]) -> tuple[str, list[Cell]]:
    """Return unit and cells of a column; the cell of an unknown size is None."""
    sizes = list(sizes_bytes)
    known = [abs(size) for size in sizes if math.isfinite(size)]
    power = power_of(max(known, default=0.0))
    return unit(power) if known else "", [_cell(size / base() ** power) for size in sizes]


def _cell(size: float) -> Cell:
    if not math.isfinite(size):
        return None
    return round(size) if abs(size) >= 100 or size == 0 else size
