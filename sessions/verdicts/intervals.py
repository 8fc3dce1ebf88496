"""The interval of a mean log ratio of pairs, valid at every look, and its p value.

A person watches the interval and may stop or continue at any block, so an ordinary 95 % interval
would miss far more often than in 5 %. This interval is valid at all times: it contains the log
ratios for which the test martingale of ``sessions.verdicts.martingale`` is below 1 / alpha. The
price is an interval about 1.6 times as wide as one for a fixed number of pairs. For skewed log
ratios, the BCa bootstrap (Efron, JASA 82, 1987), stretched by the same factor, is used too: the
interval covers both on each side.

**Two builds of one configuration differ** permanently, because they have different addresses. On an
H100, in 40 comparisons of identical captured steps, intervals from pairs alone excluded 1 in 38
cases, at a ratio of 1.0014. If both arms were built several times, the mean log ratio of each
*build* is a unit of a second martingale, and the interval covers both: it is the pairs' interval if
builds do not differ, and the builds' interval if they do. Pairs of one build share its offset, so
the pairs' interval alone would be too narrow. Each interval is valid at every look, and so is their
union. Without a second build, the interval describes the two builds that ran.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.model import PairedComparison
from sessions.verdicts import martingale
from sessions.verdicts.builds import Builds, scatter
from sessions.verdicts.martingale import ALPHA, critical

MIN_PAIRS = 8
_LARGEST_LOG = 709.0  # largest log ratio with a finite ratio
_RESAMPLES = 1999
_DRAWN = 1 << 20  # numbers of resamples that are held at once


@dataclass(frozen=True)
class Pairs:
    """The finished pairs of a comparison, in the order in which they ran.

    ``logs`` are the log ratios of step time, second arm over first, ``cycle_logs`` those of clock
    cycles (NaN where a block's clock is not known), ``mean_logs`` those of the blocks' mean step
    times (likewise; empty where none is); ``numbers`` are the pairs' own, ``builds`` the number of
    the build that each ran in (empty: all in one).
    """

    numbers: NDArray
    logs: NDArray
    cycle_logs: NDArray
    mean_logs: NDArray = field(default_factory=lambda: np.empty(0))
    builds: NDArray = field(default_factory=lambda: np.empty(0, int))

    def builds_of(self, chosen: NDArray) -> NDArray:
        """Return the builds of the ``chosen`` pairs."""
        return self.builds[chosen] if len(self.builds) else np.zeros(int(chosen.sum()), int)


@dataclass(frozen=True)
class Interval:
    """Mean of log ratios and the interval that holds it; NaN where there are too few pairs."""

    n: int
    mean: float
    low: float
    high: float
    deviation: float  # standard deviation of one pair
    builds: Builds | None = None  # set if there are several builds of several pairs each

    @property
    def half_width(self) -> float:
        """The longer of the two sides."""
        return max(self.high - self.mean, self.mean - self.low)

    @property
    def ratios(self) -> tuple[float, float, float]:
        """The ratio and the ends of its interval; infinite where too large for a float.

        The critical value of few blocks has no upper limit.
        """
        return ratio_of(self.mean), ratio_of(self.low), ratio_of(self.high)


def ratio_of(log: float) -> float:
    """Return the ratio of a log ratio, which may be infinite."""
    return math.inf if log > _LARGEST_LOG else math.exp(log)


def load() -> None:
    """Import what judging needs, which takes time once: not to be spent among timed blocks."""
    import scipy.special  # noqa: F401


def pairs(comparison: PairedComparison) -> Pairs:
    """Pair the blocks of the first two arms, void ones left out.

    Where the comparison does not say which pair a block belongs to, neighbours make one.
    """
    count = len(comparison.order)
    numbers = comparison.pairs or [block // 2 for block in range(count)]
    clocks = comparison.clocks_mhz or [math.nan] * count
    voids = comparison.voids or [""] * count
    means = comparison.means_ms or [math.nan] * count
    builds = comparison.builds or [0] * count
    blocks: dict[int, dict[int, tuple[float, float, float]]] = {}
    for arm, number, median, clock, mean, void in zip(
        comparison.order, numbers, comparison.medians_ms, clocks, means, voids, strict=True
    ):
        if not void and median > 0 and math.isfinite(median):
            blocks.setdefault(number, {})[arm] = (median, clock, mean)
    complete = {number: arms for number, arms in blocks.items() if arms.keys() >= {0, 1}}
    measured = np.array([[arms[0], arms[1]] for arms in complete.values()]).reshape(-1, 2, 3)
    measured[~(measured > 0)] = math.nan  # a clock or a mean that was not measured
    logs, clock_logs, mean_logs = np.log(measured[:, 1] / measured[:, 0]).T
    build_of = dict(zip(numbers, builds, strict=True))
    return Pairs(
        np.array(list(complete), int),
        logs,
        logs + clock_logs,
        mean_logs,
        np.array([build_of[number] for number in complete], int),
    )


def interval(
    logs: ArrayLike, alpha: float = ALPHA, builds: NDArray | None = None, least: int = 1
) -> Interval:
    """Return the interval of the mean log ratio that holds at all times at once.

    t and BCa together. ``builds``: the number of the build of each log ratio; their scatter takes
    part where there are several. There is no interval before there are ``least`` builds.
    """
    series = np.asarray(logs, np.float64)
    pairs_only = _interval(series, alpha)
    if builds is None:
        return pairs_only
    between = scatter(series, builds)
    if between is None or (between.n == 1 and least == 1):
        return pairs_only
    low = high = math.nan
    if between.n >= least:
        half = between.half_width(alpha)
        wide = math.isfinite(half)  # two builds of a comparison that did not plan for several
        low = min(pairs_only.low, between.mean - half) if wide else pairs_only.low
        high = max(pairs_only.high, between.mean + half) if wide else pairs_only.high
    return dataclasses.replace(pairs_only, low=low, high=high, builds=between)


def _interval(series: NDArray, alpha: float) -> Interval:
    n = len(series)
    if n < 2:
        mean = float(series[0]) if n else math.nan
        return Interval(n, mean, math.nan, math.nan, math.nan)
    mean, deviation = float(series.mean()), _deviation(series)
    error = deviation / math.sqrt(n)
    half = float(critical(n, alpha)) * error
    if not math.isfinite(half):
        return Interval(n, mean, math.nan, math.nan, deviation)
    low, high = mean - half, mean + half
    if n >= MIN_PAIRS and deviation > 0:
        below, above, fixed = _fixed(series, alpha)
        low = min(low, mean - (mean - below) * half / fixed)
        high = max(high, mean + (above - mean) * half / fixed)
    return Interval(n, mean, low, high, deviation)


def _deviation(series: NDArray) -> float:
    """Return the standard deviation; exactly 0 for equal values, despite rounding of their mean."""
    return float(series.std(ddof=1)) if np.ptp(series) > 0 else 0.0


def fixed_interval(logs: ArrayLike) -> Interval:
    """Return the interval for a number of pairs that was fixed before the first look.

    It is the wider of t and BCa on each side. It holds if there was no look in between.
    """
    series = np.asarray(logs, np.float64)
    n = len(series)
    mean, deviation = float(series.mean()), _deviation(series) if n > 1 else 0.0
    if n < MIN_PAIRS or not deviation > 0:
        return interval(series)
    below, above, half = _fixed(series, ALPHA)
    return Interval(n, mean, min(below, mean - half), max(above, mean + half), deviation)


def p_value(time: Interval, margin: float) -> float:
    """Return the p value of "the log ratio lies within ``+-margin``", valid under any stopping.

    Where builds scatter, the larger of the pairs' and the builds', as the interval holds both.
    """
    p = martingale.p_value(time.n, abs(time.mean) - margin, time.deviation)
    between = time.builds
    if between is None or not math.isfinite(between.half_width()):
        return p
    distance = math.copysign(between.mean, between.mean * time.mean) - margin
    return max(p, martingale.p_value(between.n, distance, between.deviation, martingale.BUILDS))


def _fixed(series: NDArray, alpha: float) -> tuple[float, float, float]:
    """Return the ends of the BCa interval of the mean, and half the width of the t interval."""
    from scipy import special  # slow to load, and the window imports this module for its numbers

    n = len(series)
    half = float(special.stdtrit(n - 1, 1 - alpha / 2) * series.std(ddof=1)) / math.sqrt(n)
    # The method of scipy.stats.bootstrap, whose jackknife stores n x n numbers: hours of pairs do
    # not fit in memory. The jackknife of a mean has a formula.
    mean = float(series.mean())
    deviations = series - mean
    draw = np.random.default_rng(0)
    rows = max(1, _DRAWN // n)
    means = np.concatenate(
        [
            deviations[draw.integers(0, n, (min(rows, _RESAMPLES - first), n))].mean(axis=1)
            for first in range(0, _RESAMPLES, rows)
        ]
    )
    standard = deviations / deviations.std()  # first, for the squares of small numbers may be 0
    skewness = float(np.sum(standard**3) / n**1.5) / 6
    tie = 1e-9 * np.ptp(deviations)  # a resample this close to the mean ties, despite rounding
    bias = special.ndtri((np.mean(means < -tie) + np.mean(means <= tie)) / 2)
    reach = bias + special.ndtri([alpha / 2, 1 - alpha / 2])
    below, above = np.quantile(means, special.ndtr(bias + reach / (1 - skewness * reach)))
    return mean + float(below), mean + float(above), half
