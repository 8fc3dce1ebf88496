"""The verdict of a toggle's row, and the ratio that a run measured since."""

from __future__ import annotations

import pytest

from sessions.model import Configuration, PairedComparison, Segment
from workbench.ui.controllers.toggle_verdicts import last_verdicts

OFF, ON, FP32_ON = (
    Configuration(family="moe", preset="tiny", workload="train", toggles=toggles)
    for toggles in (
        {"adamw": "loop", "precision": "bf16"},
        {"adamw": "fused", "precision": "bf16"},
        {"adamw": "fused", "precision": "fp32"},
    )
)


def comparison(segments, ratio=0.8, pairs=20, **facts):
    return PairedComparison(
        arms=["A", "B"],
        order=[],
        medians_ms=[],
        ratio=ratio,
        low=ratio - 0.1,
        high=ratio + 0.1,
        verdict="FASTER",
        facts={"segments": segments, "pairs": pairs, **facts},
    )


def last(*comparisons):
    segments = [
        Segment(index=index, label=str(index), configuration=configuration)
        for index, configuration in enumerate([OFF, ON, FP32_ON])
    ]
    return last_verdicts(segments, comparisons, OFF)


VERDICT = comparison([0, 1], pairs=10, final=True)


@pytest.mark.parametrize("segments", [[0, 1], [1, 0]])
def test_a_verdict_names_the_newer_ratio_that_a_run_paired_of_the_same_two(segments):
    by_run = comparison(segments, 0.9, background=True)
    verdict = last(VERDICT, by_run)["adamw"]
    assert verdict.comparison is VERDICT
    assert verdict.newer is not None and verdict.newer.comparison is by_run
    assert (verdict.newer.base == "loop") == (segments == [0, 1])


@pytest.mark.parametrize(
    "comparisons",
    [
        (comparison([0, 1], background=True), VERDICT),
        (VERDICT, comparison([0, 2], background=True)),
        (VERDICT, comparison([0, 1], pairs=10, background=True)),
    ],
    ids=["earlier", "other configurations", "no more pairs"],
)
def test_only_a_later_ratio_of_the_same_two_makes_a_verdict_older(comparisons):
    assert last(*comparisons)["adamw"].newer is None
