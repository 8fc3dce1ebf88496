"""Statistics of step series: medians, percentiles, rolling bands, distributions and ratios.

Consecutive steps are not independent (lag-1 autocorrelation 0.8 was measured on real steps), so an
interval from raw steps is far too narrow. Intervals here come from the medians of long blocks
(*sectioning*: the estimate is the median of all steps, its uncertainty the scatter of the block
medians about it; Asmussen and Glynn, Stochastic Simulation, 2007, III.5). They cover what varied
within the series. What differs between two runs at different times (clocks, temperature) they
cannot know: that takes a paired comparison of alternating blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.model import Phase, Segment

MIN_BLOCK_STEPS = 20
MIN_BLOCK_MS = 50.0
MIN_BLOCKS = 5
TOO_FEW = "too few independent blocks"
RUN_ON = "run at least"
MAX_BLOCKS = 64  # more would only shorten the blocks, and the scatter is well known by then
BCA_BLOCKS = 20  # below, the bootstrap's percentiles are too coarse and t is used
_RESAMPLES = 1999
_LONGEST = 1 << 15  # longer series are averaged in groups before their autocorrelation is taken


def step_ms(segment: Segment) -> NDArray:
    """Step times of a segment in ms, one a row: the GPU's where it was measured, else the host's.

    The choice is made once for the whole segment, so that two clocks never mix in one series; a
    step that the chosen clock did not measure is NaN.
    """
    return segment.steps["gpu_ms" if clock(segment) == "GPU" else "wall_ms"]


def clock(segment: Segment) -> str:
    """Which clock ``step_ms`` gives: "GPU", or "host"."""
    return "GPU" if np.isfinite(segment.steps["gpu_ms"]).any() else "host"


def steady(segment: Segment) -> NDArray:
    """Which steps are in the steady phase and have a time: one bool a row."""
    mask: NDArray = np.isfinite(step_ms(segment)) & (segment.steps["phase"] == Phase.STEADY)
    return mask


def steady_ms(segment: Segment) -> NDArray:
    """Times of the steady steps in ms, in the order in which they ran."""
    times: NDArray = step_ms(segment)[steady(segment)]
    return times


@dataclass(frozen=True)
class Summary:
    """A series in numbers; NaN where the series is empty, or too short for ``error``."""

    n: int
    median: float
    mad: float  # median absolute deviation from the median
    p5: float
    p25: float
    p75: float
    p95: float
    p99: float
    minimum: float
    maximum: float
    error: float  # half the width of the median's 95 % interval


def summarize(values: ArrayLike, blocks: Blocks | None = None) -> Summary:
    """Summary of the finite values; ``error`` takes them to be in time order, and in ms.

    ``blocks`` spares cutting the same series again.
    """
    series = _finite(values)
    if not len(series):
        return Summary(0, *[math.nan] * 10)
    percents = np.percentile(series, [50, 5, 25, 75, 95, 99])
    median, p5, p25, p75, p95, p99 = (float(value) for value in percents)
    mad = float(np.median(np.abs(series - median)))
    blocks = blocks or Blocks.of(series)
    error = math.nan
    if not blocks.refusal("series"):
        error = median * math.expm1(_t_half_width(blocks))
    extremes = float(series.min()), float(series.max())
    return Summary(len(series), median, mad, p5, p25, p75, p95, p99, *extremes, error)


def rolling(
    values: ArrayLike, window: int, percents: tuple[float, ...] = (5.0, 50.0, 95.0)
) -> NDArray:
    """Percentiles in a sliding window centred on each value: shape (len(percents), len(values)).

    Exact (the value of nearest rank, not interpolated; the series is mirrored at its ends); about
    0.05 s a percentile for a million values. Windows count the finite values only; where the value
    itself is not finite the result is NaN. Raises ``ValueError`` for a window below 1.
    """
    from scipy import ndimage  # seconds to load, where nothing is computed too

    if window < 1:
        raise ValueError(f"window is {window}, expected at least 1")
    series = np.asarray(values, np.float64)
    measured = np.isfinite(series)
    bands = np.full((len(percents), len(series)), np.nan)
    finite = series[measured]
    if len(finite):
        size = min(window, len(finite))
        for band, percent in zip(bands, percents, strict=True):
            rank = round(percent / 100 * (size - 1))
            band[measured] = ndimage.rank_filter(finite, rank, size=size, mode="reflect")
    return bands


def ecdf(values: ArrayLike, points: int | None = None) -> tuple[NDArray, NDArray]:
    """Empirical distribution: sorted values, and the share of the series at or below each.

    ``points`` thins it to at most so many, evenly by rank, each still exact and both ends kept.
    """
    ordered = np.sort(_finite(values))
    n = len(ordered)
    ranks = np.arange(n)
    if points is not None and n > points:
        ranks = np.unique(np.linspace(0, n - 1, max(points, 2)).round().astype(np.int64))
    return ordered[ranks], (ranks + 1) / max(n, 1)


@dataclass(frozen=True)
class Ratio:
    """Typical step time of one series over that of the base: below 1 is faster.

    ``low`` and ``high`` bound the 95 % interval; both are None where there is none, and ``reason``
    then says why, with ``method`` empty.
    """

    ratio: float
    low: float | None
    high: float | None
    method: str
    n_base: int
    n_other: int
    reason: str = ""


def ratio(base: ArrayLike | Blocks, other: ArrayLike | Blocks) -> Ratio:
    """Ratio of the medians of two step series (ms, each in time order), with its interval.

    A series that is compared more than once can be given as ``Blocks.of(series)``.

    False claims of a difference between identical autoregressive series (lag-1 autocorrelation 0.8,
    200 to 4000 steps) are between 4 and 7 % for the nominal 5 %. The same input always gives the
    same interval.
    """
    b = base if isinstance(base, Blocks) else Blocks.of(base)
    o = other if isinstance(other, Blocks) else Blocks.of(other)
    value = o.median / b.median if b.median > 0 else math.nan
    for name, arm in sorted((("base", b), ("other", o)), key=lambda item: item[1].n):
        if reason := arm.refusal(name):
            return Ratio(value, None, None, "", b.n, o.n, reason)
    if min(b.count, o.count) >= BCA_BLOCKS and b.varies and o.varies:
        below, above = _bca(b, o)
        method = f"BCa bootstrap over {b.count} and {o.count} block medians"
    else:
        above = _t_half_width(b, o)
        below = -above
        method = f"t over {b.count} and {o.count} block medians"
    low, high = value * math.exp(below), value * math.exp(above)
    return Ratio(value, low, high, method, b.n, o.n)


@dataclass(frozen=True)
class Blocks:
    """A series cut into equal blocks up to its end, with the scatter of their medians."""

    n: int
    median: float  # of the whole series; NaN if it is empty
    steps: int  # in a block
    deviations: NDArray  # log block median less log median, (blocks,); empty if one is not above 0

    @property
    def count(self) -> int:
        """Number of blocks."""
        return len(self.deviations)

    @property
    def varies(self) -> bool:
        """Whether any two blocks differ."""
        return bool(np.ptp(self.deviations) > 0)

    @classmethod
    def of(cls, values: ArrayLike) -> Blocks:
        """Cut the finite values, in time order.

        A block must be long against the autocorrelation time, or neighbouring medians go together:
        eight times as long, or down to four times where fewer than ten blocks would be left.
        A series that drifts from end to end is left with too few, on purpose: in some hundred steps
        a drift looks like a wandering that is slower than the series is long (AR(1), 0.98 to 0.995,
        200 or 400 steps), of which t over five equal blocks misses the truth in 14 to 51 %.
        """
        series = _finite(values)
        n = len(series)
        median = float(np.median(series)) if n else math.nan
        if not median > 0:
            return cls(n, median, 0, np.empty(0))
        time = _autocorrelation_time(series > median)
        longest = max(4 * time, min(8 * time, n / 10))
        steps = math.ceil(max(MIN_BLOCK_STEPS, MIN_BLOCK_MS / median, n / MAX_BLOCKS, longest))
        count = n // steps
        medians = np.median(series[n - count * steps :].reshape(count, steps), axis=1)
        if count and medians.min() <= 0:
            return cls(n, median, steps, np.empty(0))
        return cls(n, median, steps, np.log(medians / median))

    def refusal(self, name: str) -> str:
        """Why there is no interval, or nothing."""
        if self.n == 0:
            return f"the {name} has no steady steps"
        if not self.median > 0:
            return f"the median of the {name} is {self.median:g} ms, expected above 0"
        if self.count < MIN_BLOCKS:
            needed = max(MIN_BLOCKS * self.steps, self.n + 1)
            return (
                f"{TOO_FEW}: {self.n:,} steady steps of the {name} make "
                f"{self.n // self.steps} of {self.steps:,} steps each and {MIN_BLOCKS} are needed; "
                f"{RUN_ON} {needed:,} steady steps"
            )
        return ""


def _autocorrelation_time(above: NDArray) -> float:
    """Steps over which the series repeats itself: 1 + 2 x the sum of its autocorrelations.

    Of whether each step is ``above`` the median, which is what the median's variance depends on and
    which outliers cannot spoil; summed up to five times the result (Sokal's automatic window).
    """
    group = -(-len(above) // _LONGEST)
    whole = len(above) // group * group
    signal = above[:whole].reshape(-1, group).mean(axis=1)
    signal -= signal.mean()
    n = len(signal)
    lags = n // 4
    covariance = np.fft.irfft(np.abs(np.fft.rfft(signal, 2 * n)) ** 2)[:lags]
    if lags < 2 or covariance[0] <= 0:
        return float(group)
    times = 2 * np.cumsum(covariance / covariance[0]) - 1
    enough = np.flatnonzero(np.arange(lags) >= 5 * times)
    return group * max(1.0, float(times[enough[0]] if len(enough) else times.max()))


def _t_half_width(*arms: Blocks) -> float:
    """Half width of the 95 % interval of a (difference of) log medians (Welch)."""
    from scipy import stats  # seconds to load, where nothing is computed too

    variances = [float(np.sum(arm.deviations**2)) / (arm.count - 1) / arm.count for arm in arms]
    total = sum(variances)
    if total == 0:
        return 0.0
    parts = zip(variances, arms, strict=True)
    freedom = total**2 / sum(variance**2 / (arm.count - 1) for variance, arm in parts)
    return float(stats.t.ppf(0.975, freedom)) * math.sqrt(total)


def _bca(base: Blocks, other: Blocks) -> tuple[float, float]:
    """The 95 % interval of the difference of log medians, relative to the difference itself."""

    from scipy import stats  # seconds to load, where nothing is computed too

    def difference(first: NDArray, second: NDArray, axis: int) -> NDArray:
        return np.asarray(second.mean(axis=axis) - first.mean(axis=axis))

    samples = (base.deviations, other.deviations)
    result = stats.bootstrap(
        samples,
        difference,
        n_resamples=_RESAMPLES,
        vectorized=True,
        method="BCa",
        random_state=np.random.default_rng(0),
    )
    centre = float(difference(*samples, axis=0))
    interval = result.confidence_interval
    return float(interval.low) - centre, float(interval.high) - centre


def _finite(values: ArrayLike) -> NDArray:
    series = np.asarray(values, np.float64)
    measured = np.isfinite(series)
    return series if measured.all() else series[measured]
