"""Words of a verdict about each arm's memory, apart from what was held for the other."""

from __future__ import annotations

import math

from sessions.model import Configuration, PairedComparison, Segment
from sessions.verdicts.comparison import OTHERS, OWN_PEAK
from sessions.verdicts.verdict_words import memory_words

MIB = 2**20


def words(side, *ledgers, segments=(0, 1)):
    comparison = PairedComparison(
        arms=["A", "B"], order=[], medians_ms=[], ratio=1.0, low=math.nan, high=math.nan,
        verdict="UNDECIDED", facts={"segments": list(segments)} if segments else {},
    )  # fmt: skip
    configuration = Configuration(family="hydra", preset="tiny")
    made = [
        Segment(index, configuration, "", ledger=ledger) for index, ledger in enumerate(ledgers)
    ]
    return memory_words(comparison, side, made)


def test_each_arm_is_told_its_own_peak_and_what_was_held_beside_it():
    plain = {OWN_PEAK: 300.0 * MIB, OTHERS: 0.0}
    coded = {OWN_PEAK: 120.0 * MIB, OTHERS: 200.0 * MIB}
    assert words("A", plain, coded) == "own peak memory 300 MiB"
    assert words("B", plain, coded) == (
        "own peak memory 120 MiB, plus 200 MiB for other configurations"
    )


def test_nothing_is_said_where_no_allocator_counted_or_no_segment_is_known():
    assert words("A", {}, {}) == ""
    assert words("B", {OWN_PEAK: 1.0}) == ""
    assert words("A", {OWN_PEAK: 1.0}, segments=()) == ""
