"""Exponents and their intervals: exact laws, noise, curved laws, and what cannot be fitted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sessions.studies import scaling

SIZES = 2.0 ** np.arange(7, 15)


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_an_exact_power_law_is_found_with_no_doubt(exponent):
    fitted = scaling.fit(SIZES, 3e-3 * SIZES**exponent)
    assert fitted.exponent == pytest.approx(exponent, abs=1e-9)
    assert fitted.factor == pytest.approx(3e-3, rel=1e-7)
    assert fitted.high - fitted.low < 1e-6 and fitted.scatter < 1e-6
    assert fitted.at(SIZES) == pytest.approx(3e-3 * SIZES**exponent)


def test_without_known_noise_it_is_the_ordinary_least_squares_fit():
    from scipy import stats  # slow to load, in every process that collects the tests

    rng = np.random.default_rng(3)
    y = SIZES**1.2 * np.exp(rng.normal(0, 0.1, len(SIZES)))
    fitted = scaling.fit(SIZES, y)
    wanted = stats.linregress(np.log(SIZES), np.log(y))
    half = stats.t.ppf(0.975, len(SIZES) - 2) * wanted.stderr
    assert fitted.exponent == pytest.approx(wanted.slope)
    assert (fitted.low, fitted.high) == pytest.approx((wanted.slope - half, wanted.slope + half))


def covered(points: int, noise, scatter: float, degrees: int, runs: int = 1000) -> float:
    """Return how often the interval holds the truth: standard errors are estimated from blocks."""
    rng = np.random.default_rng(11)
    x = SIZES[:points]
    spread = np.broadcast_to(noise, points)
    hits = 0
    for _ in range(runs):
        y = 5 * x**1.3 * np.exp(rng.normal(0, spread) + rng.normal(0, scatter, points))
        seen = spread * np.sqrt(rng.chisquare(degrees, points) / degrees)
        fitted = scaling.fit(x, y, seen)
        hits += fitted.low <= 1.3 <= fitted.high
    return hits / runs


def test_scatter_is_what_makes_chi_square_as_large_as_expected():
    rng = np.random.default_rng(5)
    own = np.geomspace(0.001, 0.05, len(SIZES))
    y = 5 * SIZES**1.3 * np.exp(rng.normal(0, 0.08, len(SIZES)))
    fitted = scaling.fit(SIZES, y, own)
    variance = own**2 + math.log1p(fitted.scatter) ** 2
    residual = np.log(y / fitted.at(SIZES))
    assert fitted.scatter > 0.02
    assert (residual**2 / variance).sum() == pytest.approx(len(SIZES) - 2, rel=1e-4)


@pytest.mark.parametrize("points", [4, 8])
def test_the_interval_holds_the_truth_where_points_scatter_beyond_their_noise(points):
    assert 0.93 <= covered(points, 0.002, 0.05, degrees=9) <= 0.97


@pytest.mark.parametrize("points", [3, 5, 8])
def test_the_interval_holds_the_truth_where_noise_is_all_there_is(points):
    uneven = np.geomspace(0.001, 0.03, points)
    assert covered(points, 0.01, 0.0, degrees=9) >= 0.94
    assert covered(points, uneven, 0.0, degrees=9) >= 0.94


def test_noise_that_is_left_out_of_account_makes_an_interval_that_misses():
    """Show the use of standard errors: an ordinary fit of quiet-looking points is not enough."""
    x, y = SIZES[:3], SIZES[:3]
    assert scaling.fit(x, y).high - scaling.fit(x, y).low < 1e-6
    noisy = scaling.fit(x, y, [0.05, 0.05, 0.05])
    assert noisy.low < 0.6 and noisy.high > 1.4


def test_a_noisy_point_pulls_less_than_a_quiet_one():
    y = SIZES.copy()
    y[-1] *= 2
    errors = np.full(len(SIZES), 0.01)
    trusting = scaling.fit(SIZES, y, errors).exponent
    errors[-1] = 0.7
    assert abs(scaling.fit(SIZES, y, errors).exponent - 1) < 0.3 * abs(trusting - 1)


def test_unknown_noise_counts_as_the_largest_that_is_known():
    y = SIZES * np.array([1, 1.1, 1, 0.9, 1, 1, 1.05, 1])
    errors = np.array([0.02, 0.05, 0.02, math.nan, 0.02, 0.02, math.nan, 0.01])
    filled = np.where(np.isnan(errors), 0.05, errors)
    assert scaling.fit(SIZES, y, errors) == scaling.fit(SIZES, y, filled)


def test_a_curved_law_has_a_wide_interval_and_says_how_far_it_bends():
    y = 1 + (SIZES / 2000) ** 2  # launches first, then the square
    overall = scaling.fit(SIZES, y, np.full(len(SIZES), 1e-4))
    assert overall.high - overall.low > 0.5 and overall.scatter > 0.2
    upper = scaling.longer_half(SIZES)
    assert upper.sum() == 4
    assert overall.exponent < scaling.fit(SIZES[upper], y[upper]).exponent < 2
    local = scaling.steps_between(SIZES, y)
    assert math.isnan(local[0]) and (np.diff(local[1:]) > 0).all() and local[-1] < 2


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([], [], "no point was measured"),
        ([128], [3.0], "1 measured point at one size: 2 sizes are needed for an exponent"),
        ([128, 128], [3.0, 3.1], "2 measured points at one size"),
        ([128, 256, 512], [math.nan, 1.0, math.nan], "1 measured point at one size"),
        ([0, 128, 256], [1.0, 2.0, 4.0], "a line through 2 points always fits"),
        ([128, 129], [1.0, 2.0], "the sizes are too close to one another"),
        ([4096, 4097, 4098], [1.0, 2.0, 3.0], "the sizes are too close to one another"),
    ],
)
def test_what_gives_no_interval_says_why(x, y, reason):
    fitted = scaling.fit(x, y)
    assert fitted.reason.startswith(reason)
    assert math.isnan(fitted.low) and math.isnan(fitted.high)


def test_two_sizes_give_an_exponent_though_no_interval():
    assert scaling.fit([100, 200], [3.0, 12.0]).exponent == pytest.approx(2)


def test_columns_of_differing_length_are_refused():
    with pytest.raises(ValueError, match="x, y and errors have 2, 1 and 2 points"):
        scaling.fit([1, 2], [1.0])
