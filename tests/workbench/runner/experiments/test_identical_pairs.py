"""Identical arms, compared by the real runner again and again, are hardly ever called different."""

from __future__ import annotations

import math
import types

import pytest
from identical_pairs import Rate, compare, summary


def made(verdict: str, count: int, low: float = 0.99, high: float = 1.01):
    comparison = types.SimpleNamespace(verdict=verdict, low=low, high=high, facts={"pairs": 9})
    return [comparison] * count


def test_a_rate_that_chance_does_not_explain_is_told_and_one_that_it_does_is_not():
    assert summary(made("FASTER", 9, 0.9, 0.95) + made("SAME", 51))["too_high"]
    few = summary(made("SLOWER", 2) + made("SAME", 58))
    assert not few["too_high"] and "in keeping with the 5 % that are allowed" in few["words"]
    assert few["counts"]["SLOWER"] == 2 and few["interval_without_1"]["hits"] == 0
    none = summary(made("SAME", 100))
    assert "shown to be at most the 5 % that are allowed" in none["words"]
    # No event in n: the exact upper end solves (1 - p)^n = 0.025.
    assert Rate.of(0, 100).high == pytest.approx(1 - 0.025**0.01)
    unknown = summary(made("UNDECIDED", 3, math.nan, math.nan))
    assert unknown["interval_without_1"]["count"] == 0, "no interval is no mistake"


@pytest.mark.slow
def test_identical_arms_on_the_cpu_are_called_different_at_most_as_often_as_allowed(runner, small):
    counted = summary(compare(runner, small, count=12, budget_s=3.0))
    print(counted["words"])
    assert not counted["too_high"], counted["words"]
    assert counted["pairs"] >= 12 * 8, "too few pairs to call anything different"
