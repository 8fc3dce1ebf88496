"""The ratio of two configurations that were visited alternately, several times each."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np

from sessions.verdicts.measurements import REPEATS, Measurement, SegmentRatio
from sessions.verdicts.verdict import (
    ALPHA,
    REGION,
    Interval,
    critical,
    reading,
)

LEAST_VISITS = 3  # visits of each configuration


def visits_in_turn(
    base: Sequence[Measurement], other: Sequence[Measurement]
) -> tuple[list[float], list[float]] | None:
    """Return the log medians of alternating visits of two configurations; None if too few."""
    sides = [(measurement, False) for measurement in base] + [
        (measurement, True) for measurement in other
    ]
    sides.sort(key=lambda item: item[0].start)
    visits: tuple[list[float], list[float]] = ([], [])
    for is_other, run in itertools.groupby(sides, key=lambda item: item[1]):
        visits[is_other].append(
            statistics.fmean(math.log(measurement.summary.median) for measurement, _ in run)
        )
    return visits if min(map(len, visits)) >= LEAST_VISITS else None


def of_repeats(
    base: Sequence[Measurement], other: Sequence[Measurement], of: int
) -> SegmentRatio | None:
    """Return the ratio of repeats; ``of`` verdicts share the error rate (Bonferroni)."""
    visits = visits_in_turn(base, other)
    if visits is None:
        return None
    time, strict = (welch(*visits, alpha=alpha) for alpha in (ALPHA, ALPHA / of))
    if not math.isfinite(time.low):
        return None
    verdict = reading(strict, math.log1p(REGION))
    counts = " and ".join(str(len(side)) for side in visits)
    return SegmentRatio(*time.ratios, REPEATS, verdict, f"{counts} visits in turn")


def welch(base: Sequence[float], other: Sequence[float], alpha: float = ALPHA) -> Interval:
    """Return the interval of the difference of two means of unequal variance, valid at each look.

    Welch's statistic and its degrees of freedom, with the critical value of as many pairs. NaN ends
    where there are too few values for one.
    """
    sides = [np.asarray(values, np.float64) for values in (base, other)]
    mean = float(sides[1].mean() - sides[0].mean())
    shares = [float(side.var(ddof=1)) / len(side) for side in sides]
    variance, n = sum(shares), min(map(len, sides))
    if not variance > 0:
        return Interval(n, mean, math.nan, math.nan, math.nan)
    freedom = variance**2 / sum(
        share**2 / (len(side) - 1) for share, side in zip(shares, sides, strict=True)
    )
    half = float(critical(freedom + 1, alpha)) * math.sqrt(variance)
    if not math.isfinite(half):
        return Interval(n, mean, math.nan, math.nan, math.nan)
    return Interval(n, mean, mean - half, mean + half, math.sqrt(variance))
