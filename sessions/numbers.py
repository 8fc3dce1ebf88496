"""Numbers as people read them: with no more digits than they deserve."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass

DIGITS = 3  # significant digits of a number whose error is not known
LEAST_EXPONENT = -4  # a smaller number without a known error has a power of ten, not zeros
MOST_DECIMALS = 6  # most decimals that an edge may require
MISSING = "–"
LARGEST = 1e30  # largest number, except p values: its square is finite
MOST_COUNTED = 2.0**53  # largest count: up to here a float is exact
STEP_TIME = "x step time"  # unit of every ratio in tables and on axes: below 1 is faster


@dataclass(frozen=True)
class Measured:
    """A number with the half width of its 95 % interval, or None where that is not known.

    ``edges``: values that the rounded number must stay on its own side of.
    """

    value: float
    error: float | None = None
    edges: Sequence[float] = ()


Cell = str | int | float | Measured | None


def text(cell: Cell) -> str:
    """Return the cell as text: rounded to its known digits; a dash if the value is unknown."""
    match cell:
        case str():
            return cell
        case None:
            return MISSING
        case bool() | int():
            return str(cell)
        case Measured(value, error, edges):
            return number(value, error, edges)
        case _:
            return number(cell)


def number(value: float, error: float | None = None, edges: Sequence[float] = ()) -> str:
    """Round the value where its error begins: at the error's first digit, or second after a 1.

    Without a known error it gets ``DIGITS`` significant digits, and 0.0000012 is 1.20e-06. It gets
    more where rounding would move it onto or across an edge: 1.04 +- 0.2 beside the edge 1.01 is
    1.04, and not 1.0.
    """
    if not math.isfinite(value):
        return MISSING
    value = float(value)  # rounding numpy's own numbers overflows
    if error is not None and math.isfinite(error) and error > 0:
        leading, _, exponent_text = f"{error:.16e}".partition("e")  # a power fails for 5e-324
        decimals = -int(exponent_text) + (float(leading) < 2)
    else:
        exponent = int(f"{value:.{DIGITS - 1}e}".partition("e")[2])  # after rounding: 99.96 is 100
        decimals = DIGITS - 1 - exponent
        if value and exponent < LEAST_EXPONENT:
            return f"{value:.{DIGITS - 1}e}"
    if not -15 <= decimals <= 15:
        return f"{value:.{DIGITS - 1}e}"
    while decimals < MOST_DECIMALS and any(
        _side(round(value, decimals), edge) != _side(value, edge) for edge in edges
    ):
        decimals += 1
    rounded = round(value, decimals)
    return f"{rounded + 0.0:.{max(decimals, 0)}f}"


def count_of(value: float) -> int | None:
    """Return a count that a column stores; None if it is none: infinite, NaN or negative."""
    return int(value) if 0 <= value <= MOST_COUNTED else None


def is_drawable(value: float) -> bool:
    """Return True if an axis can reach the number."""
    return abs(value) <= LARGEST


_SIBILANTS = ("s", "x", "ch", "sh")  # ends of nouns whose plural ends in "es"


def counted(count: int, noun: str) -> str:
    """Return the number with its noun in the singular or plural: "2 graphs", "1 pass"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith(_SIBILANTS) else 's'}"


def edges_of(region: float) -> tuple[float, ...]:
    """Return the limits for an interval of ratios: 0, 1, and both ends of the region of SAME."""
    return 0.0, 1 / (1 + region), 1.0, 1 + region


def interval_cells(value: float, low: float, high: float, region: float) -> list[Cell]:
    """Round a ratio and the ends of its interval, but keep them on their side of each limit.

    NaN ends are missing cells.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return [value, None, None]
    error, edges = (high - low) / 2, edges_of(region)
    return [Measured(value, error, (0.0,)), *(Measured(end, error, edges) for end in (low, high))]


def interval_text(ratio: float, low: float, high: float, region: float, unit: str = "") -> str:
    """Return "0.81 (95 % interval 0.78 to 0.83)", with a unit behind it, or "no ratio yet"."""
    if math.isnan(ratio):
        return "no ratio yet"
    value, *ends = map(text, interval_cells(ratio, low, high, region))
    interval = "no interval yet" if MISSING in ends else f"95 % interval {ends[0]} to {ends[1]}"
    return f"{value}{unit} ({interval})"


def ratio_words(ratio: float, low: float, high: float, region: float) -> str:
    """Say a ratio of step times in words: "1.24x faster (95 % interval 1.20 to 1.28)".

    Faster or slower only where the interval excludes 1; else the ratio itself, as tables have it.
    """
    if high < 1:
        faster, least, most = (1 / value if value else math.inf for value in (ratio, high, low))
        return interval_text(faster, least, most, region, "x faster")
    if low > 1:
        return interval_text(ratio, low, high, region, "x slower")
    return interval_text(ratio, low, high, region, f" {STEP_TIME}")


def percent_text(share: float) -> str:
    """Return a share of 1 in whole percent; above 0 is never 0 %, below 1 never 100 %."""
    if 0 < share <= 0.005:  # Python rounds it to 0
        return "below 1 %"
    return "over 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def margin_text(share: float) -> str:
    """Return a margin in percent, such as "1.25 %": rounded up, so that it is never understated."""
    exact = decimal.Decimal(f"{100 * share:.9g}")  # without the error of the product
    context = decimal.Context(prec=DIGITS, rounding=decimal.ROUND_CEILING)
    return f"{exact.normalize(context):f} %"


def change_text(growth: float, edge: float) -> str:
    """Return a relative change in percent, on its own side of the ``edge`` and of 0."""
    percent = number(100 * growth, 0.2, (0.0, 100 * edge))  # a decimal, and more near to an edge
    return f"{'+' * (growth > 0)}{percent} %"


def _side(value: float, edge: float) -> int:
    return (value > edge) - (value < edge)


def moment(unix_s: float, form: str = "%Y-%m-%d %H:%M") -> str:
    """Return a Unix time as local date, hour and minute, or in another form of ``strftime``."""
    try:
        return datetime.datetime.fromtimestamp(unix_s).strftime(form)
    except (ValueError, OverflowError, OSError):  # another program may have written anything
        return "at an unknown time"
