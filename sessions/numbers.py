"""Numbers as people read them: with no more digits than they deserve."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass

DIGITS = 3  # significant digits of a number whose error is not known
MISSING = "–"


@dataclass(frozen=True)
class Measured:
    """A number with the half width of its 95 % interval, or None where that is not known."""

    value: float
    error: float | None = None


Cell = str | int | float | Measured | None


def text(cell: Cell) -> str:
    """The cell as a person reads it: rounded to what is known, a dash where nothing is."""
    match cell:
        case str():
            return cell
        case None:
            return MISSING
        case bool() | int():
            return str(cell)
        case Measured(value, error):
            return number(value, error)
        case _:
            return number(cell)


def number(value: float, error: float | None = None) -> str:
    """The value, rounded where its error begins: at the error's first digit, or second after a 1.

    Without a known error it gets ``DIGITS`` significant digits.
    """
    if not math.isfinite(value):
        return MISSING
    if error is not None and math.isfinite(error) and error > 0:
        leading, _, exponent_text = f"{error:.16e}".partition("e")  # of 5e-324 too, unlike a power
        decimals = -int(exponent_text) + (float(leading) < 2)
    else:
        exponent = int(f"{value:.{DIGITS - 1}e}".partition("e")[2])  # after rounding: 99.96 is 100
        decimals = DIGITS - 1 - exponent
    if not -15 <= decimals <= 15:
        return f"{value:.{DIGITS - 1}e}"
    rounded = round(value, decimals)
    return f"{rounded + 0.0:.{max(decimals, 0)}f}"


def moment(unix_s: float) -> str:
    """A Unix time as date, hour and minute here."""
    try:
        return datetime.datetime.fromtimestamp(unix_s).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):  # another program may have written anything
        return "at an unknown time"
