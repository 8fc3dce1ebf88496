"""Answers of a paired comparison to an expectation: it holds, it does not, or it is open."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sessions.model import Judgement
from sessions.numbers import interval_text
from sessions.verdicts import verdict
from sessions.verdicts.expectation import at_most
from sessions.verdicts.verdict import REGION


def judged(low, high, side="UNDECIDED", pairs=9, **more):
    ratio = None if low is None else math.sqrt(low * high)
    return Judgement(verdict=side, pairs=pairs, ratio=ratio, low=low, high=high, **more)


@pytest.mark.parametrize(
    ("judgement", "most", "holds"),
    [
        (judged(0.45, 0.55, "FASTER"), 1 / 1.5, True),
        (judged(0.45, 0.55, "FASTER"), 1 / 3, False),
        (judged(0.45, 0.55, "FASTER"), 1 / 2, None),
        (judged(0.97, 1.005), 1.01, True),
        (judged(0.97, 1.02), 1.01, None),
        (judged(1.05, 1.10, "SLOWER"), 1.01, False),
        (judged(0.45, 0.55, pairs=7), 1.01, None),
        (judged(None, None, pairs=2), 1.01, None),
        (judged(0.45, 0.55), 1.01, None),  # the clocks differed
        (judged(1.05, 1.10), 1.01, None),
        (judged(0.998, 1.002), 1.01, None),  # by all steps together it is slower
        (judged(0.998, 1.002, "SAME"), 1.01, True),
    ],
)
def test_it_is_open_where_the_verdict_is_or_the_interval_reaches_over_it(judgement, most, holds):
    assert at_most(judgement, most, REGION).holds is holds


@pytest.mark.parametrize(
    ("low", "high", "side", "of_means", "most", "holds"),
    [
        (0.97, 1.005, "UNDECIDED", [1.08, 1.05, 1.1], 1.01, None),  # over the region's edge
        (0.995, 1.03, "UNDECIDED", [0.96, 0.95, 0.97], 0.99, None),
        (0.45, 0.55, "FASTER", [0.8, 0.78, 0.82], 1 / 1.5, None),  # faster, but not by so much
        (0.75, 0.85, "FASTER", [0.5, 0.48, 0.52], 1 / 1.5, None),
        (0.97, 1.005, "UNDECIDED", [1.02, 0.99, 1.05], 1.01, True),  # refutes nothing
        (0.97, 1.005, "UNDECIDED", [1.08, None, None], 1.01, True),
        (0.45, 0.55, "FASTER", [0.6, 0.58, 0.62], 1 / 1.5, True),
    ],
)
def test_it_is_open_where_the_means_say_the_contrary_of_the_medians(
    low, high, side, of_means, most, holds
):
    answer = at_most(judged(low, high, side, of_means=of_means), most, REGION, seconds=5.0)
    assert answer.holds is holds
    if holds is None:
        verb = "holds" if high <= most else "does not hold"
        assert answer.more_s is None and answer.reasons == [
            f"by the median step it {verb}, but the ratio of mean step times is "
            f"{interval_text(*of_means, region=most - 1)}: some steps take far longer than the "
            "median"
        ]


def test_the_seconds_that_are_missing_are_those_for_what_is_expected_and_not_for_the_verdict():
    logs = np.random.default_rng(0).normal(math.log(1 / 1.6), 0.05, 10)
    paired = verdict.Pairs(np.arange(10), logs, np.full(10, math.nan))
    judgement = verdict.judge_pairs(paired, seconds=10.0)
    interval = verdict.interval(logs)
    assert judgement.verdict == "FASTER" and judgement.more_s is None
    answer = at_most(judgement, 1 / 1.58, REGION, interval, 10.0)
    assert answer.holds is None and answer.reasons == ["the interval includes that limit"]
    nearer = at_most(judgement, 1 / 1.59, REGION, interval, 10.0)
    assert 1 < answer.more_s < nearer.more_s


def test_too_few_pairs_are_told_as_the_verdict_tells_them():
    logs = np.array([0.0, 0.3, -0.2, 0.1, 0.0])
    judgement = verdict.judge_pairs(
        verdict.Pairs(np.arange(5), logs, np.full(5, math.nan)), seconds=5.0
    )
    answer = at_most(judgement, 1.01, REGION, verdict.interval(logs), 5.0)
    assert answer.holds is None and answer.reasons == ["measured 5 of at least 8 pairs"]
    assert answer.more_s >= 3.0
