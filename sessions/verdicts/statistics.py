"""Statistics of one step series: median, percentiles, rolling bands, distribution.

Consecutive steps are not independent (lag-1 autocorrelation 0.8 was measured on real steps), so an
interval from raw steps is far too narrow. Intervals here come from the medians of long blocks
(*sectioning*: the estimate is the median of all steps, its uncertainty the scatter of the block
medians about it; Asmussen and Glynn, Stochastic Simulation, 2007, III.5). They cover what varied
within the series, and decide how many digits of a median are shown. What differs between two runs
at different times (clocks, temperature) they cannot know: ``sessions.verdicts.ratios`` compares
runs.
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
MAX_BLOCKS = 64  # more would only shorten the blocks, and the scatter is well known by then
_LONGEST = 1 << 15  # longer series are averaged in groups before their autocorrelation is taken


def step_ms(segment: Segment) -> NDArray:
    """Step times of a segment in ms, one a row: the GPU's where it was measured, else the host's.

    The choice is made once for the whole segment, so that two clocks never mix in one series; a
    step that the chosen clock did not measure is NaN.
    """
    return segment.steps["gpu_ms" if clock(segment) == "GPU" else "wall_ms"]


def clock(segment: Segment) -> str:
    """Return which clock ``step_ms`` gives: "GPU", or "host"."""
    return "GPU" if np.isfinite(segment.steps["gpu_ms"]).any() else "host"


def steady(segment: Segment) -> NDArray:
    """Mark the steps that are in the steady phase and have a time: one bool for each row."""
    mask: NDArray = np.isfinite(step_ms(segment)) & (segment.steps["phase"] == Phase.STEADY)
    return mask


def steady_ms(segment: Segment) -> NDArray:
    """Return times of the steady steps in ms, in the order in which they ran."""
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


def summarize(values: ArrayLike) -> Summary:
    """Summarize the finite values; ``error`` takes them to be in time order, and in ms."""
    series = _finite(values)
    if not len(series):
        return Summary(0, *[math.nan] * 10)
    percents = np.percentile(series, [50, 5, 25, 75, 95, 99])
    median, p5, p25, p75, p95, p99 = (float(value) for value in percents)
    mad = float(np.median(np.abs(series - median)))
    blocks = Blocks.of(series)
    enough = blocks.count >= MIN_BLOCKS
    error = median * math.expm1(_t_half_width(blocks)) if enough else math.nan
    extremes = float(series.min()), float(series.max())
    return Summary(len(series), median, mad, p5, p25, p75, p95, p99, *extremes, error)


def rolling(
    values: ArrayLike, window: int, percents: tuple[float, ...] = (5.0, 50.0, 95.0)
) -> NDArray:
    """Compute percentiles in a window centred on each value: shape (len(percents), len(values)).

    Exact (the value of nearest rank, not interpolated; the series is mirrored at its ends); about
    0.05 s a percentile for a million values. Windows count the finite values only; where the value
    itself is not finite the result is NaN. Raises ``ValueError`` for a window below 1.
    """
    from scipy import ndimage  # slow to load, where nothing is computed too

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
    """Return sorted values, and the share of the series at or below each.

    ``points`` thins it to at most so many, evenly by rank, each still exact and both ends kept.
    """
    ordered = np.sort(_finite(values))
    n = len(ordered)
    ranks = np.arange(n)
    if points is not None and n > points:
        ranks = np.unique(np.linspace(0, n - 1, max(points, 2)).round().astype(np.int64))
    return ordered[ranks], (ranks + 1) / max(n, 1)


@dataclass(frozen=True)
class Blocks:
    """A series cut into equal blocks up to its end, with the scatter of their medians."""

    n: int
    median: float  # median of the complete series; NaN if it is empty
    steps: int  # steps in a block
    deviations: NDArray  # log block median less log median, (blocks,); empty if one is not above 0

    @property
    def count(self) -> int:
        """Number of blocks."""
        return len(self.deviations)

    @classmethod
    def of(cls, values: ArrayLike) -> Blocks:
        """Cut the finite values, in time order.

        A block must be long against the autocorrelation time, or neighbouring medians go together:
        eight times as long, or down to four times where fewer than ten blocks would be left.
        A series that drifts from end to end is left with too few, on purpose: in some hundred steps
        a drift looks like a wandering that is slower than the series is long (AR(1), 0.98 to 0.995,
        200 or 400 steps). There, t over five equal blocks misses the truth in 14 to 51 %.
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


def _autocorrelation_time(above: NDArray) -> float:
    """Return the steps over which the series repeats itself: 1 + 2 x the sum of autocorrelations.

    The series is ``above``: is a step above the median? The median's variance depends on that, and
    outliers cannot spoil it. The sum goes up to five times the result (Sokal's automatic window).
    """
    group = -(-len(above) // _LONGEST)
    used = len(above) // group * group
    signal = above[:used].reshape(-1, group).mean(axis=1)
    signal -= signal.mean()
    n = len(signal)
    lags = n // 4
    covariance = np.fft.irfft(np.abs(np.fft.rfft(signal, 2 * n)) ** 2)[:lags]
    if lags < 2 or covariance[0] <= 0:
        return float(group)
    times = 2 * np.cumsum(covariance / covariance[0]) - 1
    enough = np.flatnonzero(np.arange(lags) >= 5 * times)
    return group * max(1.0, float(times[enough[0]] if len(enough) else times.max()))


def _t_half_width(blocks: Blocks) -> float:
    """Compute half the width of the 95 % interval of a log median."""
    from scipy import special  # slow to load, where nothing is computed too

    variance = float(np.sum(blocks.deviations**2)) / (blocks.count - 1) / blocks.count
    return float(special.stdtrit(blocks.count - 1, 0.975)) * math.sqrt(variance)


def _finite(values: ArrayLike) -> NDArray:
    series = np.asarray(values, np.float64)
    measured = np.isfinite(series)
    return series if measured.all() else series[measured]
