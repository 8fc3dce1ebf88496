"""Units of the axes: how numbers become ticks and readings (SI, binary, percent, clock time)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sessions import sizes
from sessions.sizes import power_of
from workbench.charts.arrays import Array

_SI = {-4: "p", -3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}
_TINY = 1e-3  # smaller numbers have an exponent
_MOST_DECADES = 300  # decades of FP64
_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


@dataclass(frozen=True)
class Unit:
    """A unit: its symbol, what one stored number is worth in it, and how it is scaled.

    ``kind`` is ``si`` (a prefix is chosen), ``binary`` (KiB, MiB ...), ``clock`` (minutes and
    seconds from two minutes on) or ``plain`` (never a prefix).
    """

    symbol: str
    scale: float = 1.0
    kind: str = "si"

    def scaling(self, low: float, high: float) -> tuple[float, str]:
        """Return the factor from stored numbers to ticks over this range, and the unit of ticks."""
        largest = max(abs(low), abs(high)) * self.scale
        if self.kind == "binary":
            power = power_of(largest)
            return self.scale / sizes.base() ** power, sizes.unit(power)
        if self.kind == "si":
            power = _power(largest, 1000, min(_SI), max(_SI))
            return self.scale / 1000.0**power, _prefixed(power, self.symbol)
        if self.kind == "clock" and largest >= 7200:
            return self.scale, "h:min:s"
        if self.kind == "clock" and largest >= 120:
            return self.scale, "min:s"
        return self.scale, self.symbol

    def ticks(self, low: float, high: float, most: int) -> tuple[list[float], list[str], str]:
        """Return about ``most`` ticks at most between ``low`` and ``high``: places, texts, unit."""
        factor, symbol = self.scaling(low, high)
        if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
            return [], [], symbol
        rough = (high - low) * factor / max(1, most)
        step = self._step(rough)
        places = np.arange(math.ceil(low * factor / step), math.floor(high * factor / step) + 1)
        values: Array = places * step
        if self.kind == "clock" and ":" in symbol:
            texts = [clock(value) for value in values]
        else:
            texts = _decimal_texts(values + 0.0, step)
        return (values / factor).tolist(), texts, symbol

    def _step(self, rough: float) -> float:
        if self.kind == "binary" and not sizes.is_decimal():
            return float(2.0 ** math.ceil(math.log2(rough)))
        if self.kind == "clock" and rough > 1:
            days = 86400 * nice_step(max(1.0, rough / 86400))
            return float(next((step for step in _CLOCK_STEPS if step >= rough), days))
        return nice_step(rough)

    def text(self, value: float, digits: int = 3) -> str:
        """Return a reading such as ``12.3 ms`` or ``1.25 GiB``; ``–`` if nothing was measured."""
        if not math.isfinite(value):
            return "–"
        factor, symbol = self.scaling(value, value)
        if ":" in symbol:
            return clock(value * factor)
        scaled = value * factor
        decimals = max(0, digits - len(str(int(abs(scaled))))) if scaled else 0
        form = f".{digits - 1}e" if 0 < abs(scaled) < _TINY else f".{decimals}f"
        gap = "\u202f" if symbol in ("%", "°C") else " "
        return f"{scaled:{form}}{gap}{symbol}".replace("-", "−").strip()


@dataclass(frozen=True)
class Logarithmic(Unit):
    """A unit of numbers whose decimal logarithms are drawn: ticks and readings are in the unit."""

    def ticks(self, low: float, high: float, most: int) -> tuple[list[float], list[str], str]:
        """Return ticks at 1, 2 and 5 of every decade, or fewer if those are too many.

        A range that is too short for them has even steps.
        """
        if not (-_MOST_DECADES < low < high < _MOST_DECADES):  # NaN too
            return [], [], self.symbol
        middle = 10.0 ** ((low + high) / 2)  # by the highest, most ticks would be below 1
        factor, symbol = self.scaling(middle, middle)
        shift = math.log10(factor)
        first, last = 10.0 ** (low + shift), 10.0 ** (high + shift)
        decades = range(math.floor(low + shift), math.ceil(high + shift) + 1)
        shown: list[float] = []
        for mantissas in ((1, 2, 5), (1, 3), (1,)):
            values = [m * 10.0**decade for decade in decades for m in mantissas]
            shown = [value for value in values if first <= value <= last]
            if len(shown) <= most:
                break
        if len(shown) < 2:
            step = nice_step((last - first) / max(2, most))
            places = range(math.ceil(first / step), math.floor(last / step) + 1)
            shown = [float(f"{multiple * step:.12g}") for multiple in places]
        shown = shown[:: max(1, -(-len(shown) // max(1, most)))]
        return [math.log10(value) - shift for value in shown], [f"{v:g}" for v in shown], symbol

    def text(self, value: float, digits: int = 3) -> str:
        """Return the text of the number whose logarithm is given."""
        return super().text(10.0**value if math.isfinite(value) else value, digits)


@dataclass(frozen=True)
class Ratio(Unit):
    """A ratio about 1 whose parts of a percent matter: a reading has one more digit."""

    def text(self, value: float, digits: int = 3) -> str:
        """Return a reading such as ``0.812 x``."""
        return super().text(value, digits + 1)


MILLISECONDS = Unit("s", 1e-3)
RATIO = Ratio("x", kind="plain")
SECONDS = Unit("s", kind="clock")
BYTES = Unit("B", kind="binary")
PERCENT = Unit("%", kind="plain")
WATTS = Unit("W", kind="plain")
MEGAHERTZ = Unit("MHz", kind="plain")
CELSIUS = Unit("°C", kind="plain")
STEPS = Unit("", kind="plain")
THROUGHPUTS = {"tokens": Unit("tokens/s"), "samples": Unit("samples/s")}
STEPS_PER_SECOND = Unit("steps/s")


def nice_step(rough: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(
        (mantissa * power for mantissa in (1, 2, 5) if mantissa * power >= rough * (1 - 1e-9)),
        10 * power,
    )


def clock(seconds: float) -> str:
    """Format ``75`` as ``1:15``, ``3675`` as ``1:01:15``, parts of a second to milliseconds."""
    sign = "−" if seconds < 0 else ""
    whole_s, thousandths = divmod(round(abs(seconds) * 1000), 1000)
    minutes, remaining_s = divmod(whole_s, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}:{minutes:02d}:{remaining_s:02d}" if hours else f"{minutes}:{remaining_s:02d}"
    return sign + text + (f".{thousandths:03d}".rstrip("0") if thousandths else "")


def _power(largest: float, base: int, least: int, most: int) -> int:
    if not math.isfinite(largest) or largest <= 0:
        return 0
    return min(most, max(least, math.floor(math.log(largest, base) + 1e-9)))


def _prefixed(power: int, symbol: str) -> str:
    prefix = _SI[power]
    spelled = "/" in symbol and symbol[0].islower()  # k tokens/s, but TB/s
    return f"{prefix} {symbol}".strip() if spelled else prefix + symbol


def _decimal_texts(values: Array, step: float) -> list[str]:
    """Return the texts of ticks, with an exponent if all are tiny."""
    largest = float(np.abs(values).max(initial=0.0))
    if 0 < largest < _TINY:
        digits = round(math.log10(largest / step) + 0.5)
        return [f"{value:.{digits}e}".replace("-", "−") if value else "0" for value in values]
    decimals = _decimals(step)
    return [f"{value:.{decimals}f}".replace("-", "−") for value in values]


def _decimals(step: float) -> int:
    for decimals in range(12):
        scaled = step * 10**decimals
        if round(scaled) and abs(scaled - round(scaled)) < 1e-6 * scaled:
            return decimals
    return 12
