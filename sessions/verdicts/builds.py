"""The scatter between builds of one configuration, for the interval of a ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sessions.verdicts.martingale import ALPHA, BUILDS, critical

LEAST_BUILDS = 3  # the fewest whose scatter gives an interval


@dataclass(frozen=True)
class Builds:
    """The scatter between builds.

    Their number, and the mean and the standard deviation of their mean log ratios.
    """

    n: int
    mean: float
    deviation: float

    def half_width(self, alpha: float = ALPHA) -> float:
        """Return half the width of the interval that takes each build as one value.

        Infinite for fewer than ``LEAST_BUILDS``.
        """
        if self.n < LEAST_BUILDS:
            return math.inf
        return float(critical(self.n, alpha, BUILDS)) * self.deviation / math.sqrt(self.n)


def scatter(series: NDArray, builds: NDArray) -> Builds | None:
    """Return the scatter between the builds of log ratios; None where each has its own build.

    Then the scatter between pairs is that between builds. A build that has just begun does not
    count: of few pairs its mean scatters more.
    """
    numbers, indices, counts = np.unique(builds, return_inverse=True, return_counts=True)
    if len(numbers) == len(series):
        return None
    means = np.bincount(indices, series) / counts
    means = means[counts >= np.median(counts) / 2]
    deviation = float(means.std(ddof=1)) if len(means) > 1 else math.nan
    return Builds(len(means), float(means.mean()), deviation)
