"""Verdicts where builds differ: error rates by simulation (seeds fixed, rates stated), and rules.

Each simulated pair is a log ratio of 1 % scatter, as that of two blocks of 20 steps. Every build
adds an offset of its own, which all of its pairs share. "Ever" is the hardest stopping rule:
somebody who looks after every build and stops as soon as the interval says what he likes to hear.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model import PairedComparison
from sessions.verdicts import verdict
from sessions.verdicts.builds import LEAST_BUILDS, scatter
from sessions.verdicts.verdict_words import ratio_line, remarks

SCATTER = 0.01  # of a pair
ON_H100 = 0.0014  # between two captures of one step
MARGIN = math.log1p(verdict.REGION)


def disturbance(kind, rng, shape):
    """Return a machine's effect on the log ratios (trials, builds, pairs) of blocks side by side.

    A drift and a load act on both blocks; what is left is how they change between the two, of
    random sign, because the order is random.
    """
    trials, builds, pairs = shape
    sign = rng.choice([-1, 1], shape)
    match kind:
        case "drift":
            return sign * 0.1 / (2 * builds * pairs)
        case "autocorrelation":
            noise = rng.normal(size=(trials, builds * pairs))
            for block in range(1, builds * pairs):
                noise[:, block] = 0.8 * noise[:, block - 1] + 0.6 * noise[:, block]
            return sign * 0.01 * noise.reshape(shape)
        case "intermittent load":
            starts_or_ends = rng.random(shape) < 0.1  # between the two blocks of a pair
            return sign * 0.3 * starts_or_ends
    return np.zeros(shape)


def simulated(kind, between, *, trials, builds=10, pairs=6, seed=1):
    """Log ratios (trials, builds, pairs) of arms that run the same code."""
    rng = np.random.default_rng(seed)
    shape = (trials, builds, pairs)
    offsets = between * rng.normal(size=(trials, builds, 1))
    return offsets + SCATTER * rng.normal(size=shape) + disturbance(kind, rng, shape)


def intervals(logs, looks=(3, 4, 6, 10)):
    """Yield the interval of a comparison (builds, pairs) after so many of its builds."""
    builds, pairs = logs.shape
    numbers = np.repeat(np.arange(builds), pairs)
    series = logs.ravel()
    for until in (count * pairs for count in looks):
        yield verdict.interval(series[:until], builds=numbers[:until], least=LEAST_BUILDS)


@pytest.mark.parametrize(
    ("kind", "between"),
    [
        *(("none", between) for between in (0.0, ON_H100, 0.01)),
        *((kind, ON_H100) for kind in ("drift", "autocorrelation", "intermittent load")),
    ],
)
def test_identical_arms_are_never_told_apart_in_more_than_5_percent(kind, between):
    """Check 100 comparisons at any look.

    Measured: the truth left out in 0 or 1, none called different by more than the region.
    """
    left_out = different = 0
    for logs in simulated(kind, between, trials=100):
        looks_at = list(intervals(logs))
        left_out += any(not look.low <= 0 <= look.high for look in looks_at)
        different += any(look.low > MARGIN or look.high < -MARGIN for look in looks_at)
    assert left_out <= 5 and different <= 5


def test_pairs_of_one_build_leave_out_the_truth_that_several_builds_hold():
    """Captured steps scatter by 0.01 %, and builds of them by 0.14 %."""
    rng = np.random.default_rng(3)
    offsets = ON_H100 * rng.normal(size=(40, 10, 1))
    logs = offsets + 0.0001 * rng.normal(size=(40, 10, 8))
    alone = [verdict.interval(row[0]) for row in logs]
    assert sum(not row.low <= 0 <= row.high for row in alone) >= 30
    together = [list(intervals(row)) for row in logs]
    assert sum(all(look.low <= 0 <= look.high for look in looks) for looks in together) >= 38


@pytest.mark.parametrize("between", [0.0, ON_H100])
def test_a_true_difference_of_2_percent_is_detected_within_20_seconds_of_steps_of_5_ms(between):
    """A pair of blocks of 20 steps takes 0.24 s with its settling steps; rebuilding a quarter."""
    pairs_in_20_s = int(0.75 * 20 / 0.24)
    logs = simulated("none", between, trials=60, builds=10, pairs=pairs_in_20_s // 10)
    judged = [next(intervals(row + math.log(1.02), (10,))) for row in logs]
    assert np.mean([row.low > MARGIN for row in judged]) >= 0.95


@given(st.lists(st.floats(-0.05, 0.05), min_size=9, max_size=40), st.integers(3, 8))
def test_the_interval_with_builds_holds_that_of_the_pairs(logs, count):
    series = np.array(logs)
    numbers = np.arange(len(series)) * count // len(series)
    pairs, both = verdict.interval(series), verdict.interval(series, builds=numbers)
    assert both.low <= pairs.low and pairs.high <= both.high
    assert both.mean == pairs.mean
    for margin in (0.0, 0.01):
        assert verdict.p_value(both, margin) >= verdict.p_value(pairs, margin)


@given(st.floats(0.0005, 0.03), st.floats(-0.02, 0.02), st.floats(0, 0.02))
def test_a_p_value_below_alpha_is_that_of_an_interval_beyond_the_margin(between, mean, margin):
    rng = np.random.default_rng(7)
    series = mean + np.repeat(between * rng.normal(size=8), 5) + 1e-4 * rng.normal(size=40)
    judged = verdict.interval(series, builds=np.repeat(np.arange(8), 5))
    beyond = judged.low > margin or judged.high < -margin
    if beyond:
        assert verdict.p_value(judged, margin) <= verdict.ALPHA * 1.0001


def test_a_build_that_has_just_begun_does_not_count_and_pairs_with_builds_of_their_own_are_units():
    series = np.array([0.01] * 4 + [0.02] * 4 + [0.03] * 4 + [0.9])
    numbers = np.array([0] * 4 + [1] * 4 + [2] * 4 + [3])
    assert scatter(series, numbers).n == 3
    assert scatter(series, np.arange(13)) is None
    assert scatter(series, np.zeros(13, int)).n == 1


def compared(offsets, pairs=4):
    """Return a comparison with a build for each offset."""
    logs = [offset + 0.0005 * (-1) ** pair for offset in offsets for pair in range(pairs)]
    count = len(logs)
    return PairedComparison(
        arms=["A", "B"],
        order=[0, 1] * count,
        medians_ms=[value for log in logs for value in (5.0, 5.0 * math.exp(log))],
        ratio=math.nan,
        low=math.nan,
        high=math.nan,
        verdict="UNDECIDED",
        pairs=[pair for pair in range(count) for _ in "AB"],
        builds=[number for number in range(len(offsets)) for _ in range(2 * pairs)],
    )


def test_nothing_is_claimed_before_there_are_enough_builds():
    early = verdict.judge(compared([0.1, 0.1]), seconds=4.0, least_builds=3)
    assert early.verdict == "UNDECIDED" and early.low is None and not early.settled
    assert early.reasons == ["measured 2 of at least 3 builds"]
    assert early.builds == 2 and early.more_s == pytest.approx(2.0)
    assert verdict.judge(compared([0.1, 0.1, 0.1]), least_builds=3).verdict == "SLOWER"
    assert verdict.judge(compared([0.1, 0.1])).verdict == "SLOWER", "of a file that planned none"


def test_builds_that_disagree_leave_it_open_though_their_pairs_are_sure():
    judged = verdict.judge(compared([0.04, -0.03, 0.05, 0.035]), least_builds=3)
    assert judged.verdict == "UNDECIDED" and judged.low < 1 < judged.high
    assert judged.builds == 4 and judged.p > 0.05


def test_the_words_say_how_many_builds_there_were_or_why_there_was_one():
    judged = msgspec.to_builtins(verdict.judge(compared([0.1] * 5), seconds=8.0, least_builds=3))
    shown = msgspec.structs.replace(
        compared([0.1] * 5), ratio=judged["ratio"], low=judged["low"], high=judged["high"],
        verdict=judged["verdict"], facts={**judged, "seconds": 8.0, "one_build": ""},
    )  # fmt: skip
    assert "20 pairs of 5 builds in 8 s" in ratio_line(shown)
    assert not any("build" in line for line in remarks(shown))
    facts = {**shown.facts, "builds": 1, "one_build": "building both arms again takes about 45 s"}
    single = msgspec.structs.replace(shown, facts=facts)
    assert "of 5 builds" not in ratio_line(single)
    remark = (
        "This holds for the build that was measured: building both arms again takes about 45 s."
    )
    assert remark in remarks(single)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("ratio", [1.0, 1.2, 0.7])
def test_equal_pairs_have_no_scatter_however_their_mean_is_rounded(ratio):
    logs = np.full(10, math.log(ratio))
    for made in (verdict.interval(logs), verdict.fixed_interval(logs)):
        assert made.deviation == 0 and made.low == made.mean == made.high
