"""Comparisons of one session: verdicts that hold together, in a table and in words."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from sessions.model import PairedComparison
from sessions.verdicts import verdict
from sessions.verdicts.multiple_comparisons import side_by_side
from sessions.verdicts.verdict_tables import blocks_table, verdicts_table
from sessions.verdicts.verdict_words import remarks, standing


def judged(logs, **facts: Any) -> PairedComparison:
    """Return a comparison with these log ratios, judged by itself."""
    blank = PairedComparison(
        arms=["off", "on"],
        order=[0, 1] * len(logs),
        medians_ms=[ms for log in logs for ms in (10.0, 10.0 * math.exp(log))],
        ratio=math.nan,
        low=math.nan,
        high=math.nan,
        verdict="UNDECIDED",
        clocks_mhz=[1980.0] * 2 * len(logs),
    )
    facts_judged = msgspec.to_builtins(verdict.judge(blank))
    ends = {name: facts_judged.pop(name) for name in ("ratio", "low", "high", "verdict")}
    return msgspec.structs.replace(blank, **ends, facts={**facts_judged, **facts})


def alternating(mean: float, swing: float, n: int) -> list[float]:
    return [mean + swing * (-1) ** index for index in range(n)]


DOUBTFUL = judged(alternating(-0.02, 0.006, 8))
CLEAR = judged(alternating(-0.5, 0.002, 20))
SAME = judged(alternating(0.0, 0.001, 20))


def test_one_comparison_stays_as_it_is():
    assert side_by_side([DOUBTFUL]) == [DOUBTFUL]
    assert standing(DOUBTFUL) == "" and DOUBTFUL.verdict == "FASTER"


def test_a_comparison_without_a_valid_pair_does_not_count():
    assert side_by_side([DOUBTFUL, judged([])]) == [DOUBTFUL, judged([])]


def test_a_doubtful_claim_is_withdrawn_among_many_and_says_what_it_was():
    corrected = side_by_side([DOUBTFUL, CLEAR, *[SAME] * 40])
    assert [comparison.verdict for comparison in corrected[:3]] == ["UNDECIDED", "FASTER", "SAME"]
    assert [comparison.facts["alone"] for comparison in corrected[:3]] == [
        "FASTER",
        "FASTER",
        "SAME",
    ]
    assert remarks(corrected[0])[0].startswith(
        "FASTER without correction, but its p value among 42 comparisons"
    )
    assert standing(corrected[0]).startswith("one of 42 comparisons: p 1.00")
    assert corrected[0].ratio == DOUBTFUL.ratio and "alone" not in DOUBTFUL.facts


def test_identical_arms_and_comparisons_without_a_verdict_do_not_count():
    calibration = msgspec.structs.replace(SAME, facts={**SAME.facts, "identical": True})
    begun = msgspec.structs.replace(SAME, facts={})
    strange = msgspec.structs.replace(SAME, facts={**SAME.facts, "p": "none"})
    uncounted = [calibration, begun, strange] * 20
    assert side_by_side([DOUBTFUL, *uncounted]) == [DOUBTFUL, *uncounted]
    assert side_by_side([DOUBTFUL, CLEAR, *uncounted])[0].facts["of"] == 2


def test_the_table_tells_verdict_and_numbers_of_each():
    right = {"ok": True, "reference": "float64", "text": "fine"}
    wrong = {"ok": False, "reference": "float64", "text": "far off"}
    fast = msgspec.structs.replace(
        CLEAR, facts={**CLEAR.facts, "numerics": {"0": right, "1": wrong}}
    )
    good = msgspec.structs.replace(
        CLEAR, facts={**CLEAR.facts, "numerics": {"0": right, "1": right}}
    )
    table = verdicts_table([fast, good, *[SAME] * 40, DOUBTFUL])
    names = [column.name for column in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    assert [row["numbers"] for row in rows[:3]] == ["B WRONG", "right", "unknown"]
    assert (rows[-1]["verdict"], rows[-1]["uncorrected"]) == ("UNDECIDED", "FASTER")
    assert (rows[0]["p (Holm)"], rows[-1]["p (Holm)"]) == ("below 0.001", "1.00")
    assert "| off | on | 0.6065 |" in table.to_markdown()
    unfinished = msgspec.structs.replace(SAME, ratio=math.nan, low=math.nan, high=math.nan)
    assert "| off | on | – | – | – |" in verdicts_table([unfinished]).to_markdown()


def test_the_table_of_blocks_has_the_digits_that_ratios_are_made_of():
    comparison = judged([0.0044, 0.0049])
    comparison.medians_ms[:] = [14.0688, 14.1312, 14.0712, 14.1399]
    comparison.clocks_mhz[:] = [1965.0, 1785.0, 1785.0, math.nan]
    comparison = msgspec.structs.replace(comparison, means_ms=[14.07, 18.4, 14.08, math.nan])
    table = blocks_table(comparison)
    lines = [line.split(",") for line in table.to_csv().splitlines()]
    assert lines[0][3:6] == ["median (ms)", "mean (ms)", "SM clock (MHz)"]
    assert lines[1][3:6] == ["14.06880", "14.07000", "1965.0"]
    read = [[float(cell) if cell else math.nan for cell in line[3:6]] for line in lines[1:]]
    for block, (median_ms, mean_ms, clock_mhz) in enumerate(read):
        assert math.isclose(median_ms, comparison.medians_ms[block], rel_tol=1e-5)
        for cell, value in (
            (mean_ms, comparison.means_ms[block]),
            (clock_mhz, comparison.clocks_mhz[block]),
        ):
            assert math.isclose(cell, value, rel_tol=1e-5) or (
                math.isnan(cell) and math.isnan(value)
            )
