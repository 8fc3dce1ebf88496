"""Comparisons of one session: verdicts that hold together, in a table and in words."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from sessions import verdict
from sessions.model import PairedComparison
from sessions.side_by_side import side_by_side, verdicts_table
from sessions.verdict_words import remarks, standing


def judged(logs, **facts: Any) -> PairedComparison:
    """A comparison with these log ratios, judged by itself."""
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
    told = msgspec.to_builtins(verdict.judge(blank))
    ends = {name: told.pop(name) for name in ("ratio", "low", "high", "verdict")}
    return msgspec.structs.replace(blank, **ends, facts={**told, **facts})


def alternating(mean: float, swing: float, n: int) -> list[float]:
    return [mean + swing * (-1) ** place for place in range(n)]


DOUBTFUL = judged(alternating(-0.02, 0.006, 8))
CLEAR = judged(alternating(-0.5, 0.002, 20))
SAME = judged(alternating(0.0, 0.001, 20))


def test_one_comparison_stays_as_it_is():
    assert side_by_side([DOUBTFUL]) == [DOUBTFUL]
    assert standing(DOUBTFUL) == "" and DOUBTFUL.verdict == "FASTER"


def test_a_doubtful_claim_is_withdrawn_among_many_and_says_what_it_was():
    found = side_by_side([DOUBTFUL, CLEAR, *[SAME] * 40])
    assert [one.verdict for one in found[:3]] == ["UNDECIDED", "FASTER", "SAME"]
    assert [one.facts["alone"] for one in found[:3]] == ["FASTER", "FASTER", "SAME"]
    assert remarks(found[0])[0].startswith("FASTER by itself, but among 42 comparisons (Holm)")
    assert standing(found[0]).startswith("one of 42 comparisons: p 1.00")
    assert found[0].ratio == DOUBTFUL.ratio and "alone" not in DOUBTFUL.facts


def test_identical_arms_and_comparisons_without_a_verdict_do_not_count():
    calibration = msgspec.structs.replace(SAME, facts={**SAME.facts, "identical": True})
    begun = msgspec.structs.replace(SAME, facts={})
    strange = msgspec.structs.replace(SAME, facts={**SAME.facts, "p": "none"})
    others = [calibration, begun, strange] * 20
    assert side_by_side([DOUBTFUL, *others]) == [DOUBTFUL, *others]
    assert side_by_side([DOUBTFUL, CLEAR, *others])[0].facts["of"] == 2


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
    assert (rows[-1]["verdict"], rows[-1]["by itself"]) == ("UNDECIDED", "FASTER")
    assert (rows[0]["p (Holm)"], rows[-1]["p (Holm)"]) == ("below 0.001", "1.00")
    assert "| off | on | 0.6065 |" in table.to_markdown()
    unfinished = msgspec.structs.replace(SAME, ratio=math.nan, low=math.nan, high=math.nan)
    assert "| off | on | – | – | – |" in verdicts_table([unfinished]).to_markdown()
