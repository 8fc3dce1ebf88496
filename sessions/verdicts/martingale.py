"""The test martingale behind every interval here: Student's t, valid however often one looks.

For ``n`` independent normal values of unknown variance,

    E_n = (1 + n g)^(-1/2) ((1 + t^2 / v) / (1 + t^2 / ((1 + n g) v)))^(n / 2),    v = n - 1

(t the t statistic of the n values, g the variance of the normal mixture over the standardised
effect) is a martingale if the values have the mean that t tests. By Ville's inequality the
probability that it *ever* exceeds 1 / alpha is at most alpha (Wang and Ramdas, Anytime-valid
t-tests and confidence sequences for Gaussian means with unknown variance, 2023; Lai, Annals of
Statistics 4, 1976).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

ALPHA = 0.05
# Variances of the mixture over the effect, in those of one value. Of pairs there are 8 to 100, and
# 1 is narrow there. Of builds there are few: of three, 20 is the first round number that gives an
# interval at all, and of eight the interval is a tenth wider than with 1.
PAIRS, BUILDS = 1.0, 20.0


def critical(n: ArrayLike, alpha: float = ALPHA, mixture: float = PAIRS) -> NDArray:
    """Return the |t| of ``n`` values at which the martingale is 1 / alpha.

    Infinite where no t is large enough: for one value, and for some two to five where alpha or the
    mixture is small.
    """
    count = np.asarray(n, np.float64)
    with np.errstate(all="ignore"):
        grown = (np.sqrt(1 + count * mixture) / alpha) ** (2 / count)
        left = 1 - grown / (1 + count * mixture)
        square = np.where(left > 0, (count - 1) * (grown - 1) / left, np.inf)
    return np.where(count > 1, np.sqrt(square), np.inf)


def paths(logs: ArrayLike, alpha: float = ALPHA) -> tuple[NDArray, NDArray]:
    """Return mean and half-width of the t interval after each pair; logs and both are (..., n).

    This is ``verdict.interval`` without the bootstrap, for every look at once. Infinite half-width
    where there is no interval.
    """
    series = np.asarray(logs, np.float64)
    n = np.arange(1, series.shape[-1] + 1)
    mean = np.cumsum(series, axis=-1) / n
    # Deviations from the first value, because the mean may be far from 0 against the scatter.
    shifted = series - series[..., :1]
    total, squares = np.cumsum(shifted, axis=-1), np.cumsum(shifted**2, axis=-1)
    with np.errstate(all="ignore"):
        error = np.sqrt(np.maximum(squares - total**2 / n, 0) / (n - 1) / n)
        half = np.where(n > 1, critical(n, alpha) * error, np.inf)
    return mean, np.where(np.isnan(half), np.inf, half)


def p_value(n: int, distance: float, deviation: float, mixture: float = PAIRS) -> float:
    """Return 1 / E_n, at most 1, for a mean that lies ``distance`` from the tested value.

    ``deviation``: the standard deviation of one value. It keeps its error rate under whatever
    stopping, as the interval does.
    """
    if n < 2 or not distance > 0:
        return 1.0
    if not deviation > 0:
        return 0.0
    ratio, grown = deviation / distance, 1 + n * mixture
    # Use 1 / x with x = t^2 / v: a difference of logarithms can change its sign at large x.
    inverse = ratio * ratio * (n - 1) / n
    log_e = n / 2 * math.log1p(n * mixture / (1 + grown * inverse)) - math.log(grown) / 2
    return min(1.0, math.exp(-log_e))
