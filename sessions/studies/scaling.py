"""The exponent of a power law that relates two quantities, and its interval.

A line is fitted to log y over log x. Points deviate from it for two reasons: noise, whose standard
errors are known from the measured blocks, and growth that is not exactly a power (data outgrows a
cache, launches stop to matter). The second is estimated from the scatter beyond the noise, as a
variance common to all points (Paule and Mandel, J. Res. NBS 87, 1982). The weight of each point
uses the sum of both variances. The interval is Student's with n - 2 degrees of freedom, never
narrower than the noise allows (Knapp and Hartung, Statistics in Medicine 22, 2003, with their
factor kept at 1 or above). Without standard errors this is the ordinary least squares fit. With
standard errors, the interval also includes the interval of the ordinary fit: if another program
slows some points, the few quiet ones have nearly all the weight, and their line looks more certain
than it is (8 points, load in 30 % of the blocks: 10 % of the intervals missed, 3 % with both).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.numbers import counted

LEAST_POINTS = 3  # fewest points of an interval: a line always fits two points
MOST_LOG = 60.0  # a steeper line is noise between near sizes; natural logarithm
TOO_CLOSE = "the sizes are too close to one another for an exponent"
_TOLERANCE = 1e-6  # relative error of the variance beyond the points' own


@dataclass(frozen=True)
class Scaling:
    """y = factor * x ** exponent; NaN where there are too few points, and ``reason`` says so.

    ``low`` and ``high`` bound the 95 % interval of the exponent. ``scatter`` is the relative
    distance of the points from the line beyond their noise.
    """

    n: int
    exponent: float
    low: float
    high: float
    factor: float
    scatter: float
    reason: str = ""

    def at(self, x: ArrayLike) -> NDArray:
        """Return y on the fitted line."""
        with np.errstate(over="ignore"):
            line: NDArray = self.factor * np.asarray(x, np.float64) ** self.exponent
        return line


def fit(x: ArrayLike, y: ArrayLike, errors: ArrayLike | None = None) -> Scaling:
    """Fit the points (n,); ``errors`` are standard errors of log y, NaN where not known.

    A point of unknown noise counts as the noisiest that is known. Points at which x or y is not
    above 0, or not finite, are left out.
    """
    log_x, log_y, variance = _points(x, y, errors)
    n = len(log_x)
    if len(set(log_x.tolist())) < 2:
        sizes = f"{counted(n, 'measured point')} at one size: 2 sizes are needed"
        return _without_line(n, f"{sizes} for an exponent" if n else "no point was measured")
    slope, intercept = _line(log_x, log_y, np.ones(n))[:2]
    if abs(intercept) > MOST_LOG:
        return _without_line(n, TOO_CLOSE)
    if n < LEAST_POINTS:
        reason = f"a line through {n} points always fits: {LEAST_POINTS} are needed for an interval"
        return Scaling(n, slope, math.nan, math.nan, math.exp(intercept), math.nan, reason)
    from scipy import special  # slow to load, where nothing is fitted too

    beyond = _scatter(log_x, log_y, variance)
    total = variance + beyond
    if not total.max() > 0:  # a perfect line
        total = np.full(n, np.finfo(np.float64).tiny)
    slope, intercept, error, chi_square = _line(log_x, log_y, 1 / total)
    if abs(intercept) > MOST_LOG:
        return _without_line(n, TOO_CLOSE)
    error *= math.sqrt(max(1.0, chi_square / (n - 2)))
    half = float(special.stdtrit(n - 2, 0.975)) * error
    low, high = slope - half, slope + half
    if variance.max() > 0:
        ordinary = fit(np.exp(log_x), np.exp(log_y))
        low, high = min(low, ordinary.low), max(high, ordinary.high)
    return Scaling(n, slope, low, high, math.exp(intercept), math.expm1(math.sqrt(beyond)))


def longer_half(x: ArrayLike) -> NDArray:
    """Return a mask (n,) of the points in the upper half of x, including the middle one.

    Launches, which do not grow, limit small sizes. Claims about scaling are about large sizes.
    """
    values = np.asarray(x, np.float64)
    upper: NDArray = values >= np.sort(values)[len(values) // 2] if len(values) else values > 0
    return upper


def steps_between(x: ArrayLike, y: ArrayLike) -> NDArray:
    """Return the exponent from each point's lower neighbour: (n,) of ascending x, first NaN."""
    with np.errstate(all="ignore"):
        log_x, log_y = (np.log(np.asarray(values, np.float64)) for values in (x, y))
        return np.concatenate([[math.nan], np.diff(log_y) / np.diff(log_x)])[: len(log_x)]


def _points(
    x: ArrayLike, y: ArrayLike, errors: ArrayLike | None
) -> tuple[NDArray, NDArray, NDArray]:
    """Return logarithms of the points that have any, and the variances of log y."""
    places, values = np.asarray(x, np.float64), np.asarray(y, np.float64)
    spread = np.zeros(len(places)) if errors is None else np.array(errors, np.float64)
    if not len(places) == len(values) == len(spread):
        raise ValueError(
            f"x, y and errors have {len(places)}, {len(values)} and {len(spread)} points"
        )
    with np.errstate(invalid="ignore"):
        usable = (places > 0) & (values > 0) & np.isfinite(places) & np.isfinite(values)
    spread = spread[usable]
    known = spread[np.isfinite(spread)]
    spread[~np.isfinite(spread)] = known.max() if len(known) else 0.0
    return np.log(places[usable]), np.log(values[usable]), spread**2


def _line(x: NDArray, y: NDArray, weight: NDArray) -> tuple[float, float, float, float]:
    """Fit slope, intercept, the slope's standard error and the weighted sum of squares."""
    share = weight / weight.sum()
    mean_x, mean_y = float(share @ x), float(share @ y)
    spread = float(weight @ (x - mean_x) ** 2)
    slope = float(weight @ ((x - mean_x) * (y - mean_y))) / spread
    residual = y - mean_y - slope * (x - mean_x)
    return slope, mean_y - slope * mean_x, spread**-0.5, float(weight @ residual**2)


def _scatter(x: NDArray, y: NDArray, variance: NDArray) -> float:
    """Return the variance of all points beyond their own, so that chi square is as expected."""
    freedom = len(x) - 2
    plain = _line(x, y, np.ones(len(x)))[3] / freedom
    if not variance.max() > 0:
        return plain

    def excess(beyond: float) -> float:
        return _line(x, y, 1 / np.maximum(variance + beyond, 1e-300))[3] - freedom

    if excess(0.0) <= 0:
        return 0.0
    from scipy import optimize

    high = max(plain, float(variance.max()))
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=_TOLERANCE * high, rtol=_TOLERANCE))


def _without_line(n: int, reason: str) -> Scaling:
    unknown = math.nan
    return Scaling(n, unknown, unknown, unknown, unknown, unknown, reason)
