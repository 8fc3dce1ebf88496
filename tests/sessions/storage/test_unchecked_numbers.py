"""Numbers that nobody could check are told as such wherever a verdict is read, and never right."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from sessions.model import Numerics, PairedComparison, Study
from sessions.studies.attribution import words as attribution_words
from sessions.studies.attribution.rows import Arm, arm_rows
from sessions.verdicts.arm_results import unchecked_arms, wrong_arms
from sessions.verdicts.verdict_tables import verdicts_table
from sessions.verdicts.verdict_words import headline, numerics_lines

WHY = "not checked: Out of memory: 2.00 GiB more was needed."
RIGHT = {"reference": "float64", "ok": True, "text": "fine"}
UNKNOWN = {"reference": "", "ok": None, "text": WHY}
OLD_UNKNOWN = {"reference": "", "ok": True, "text": WHY}  # as files of before have it
WRONG = {"reference": "float64", "ok": False, "text": "far off"}


def comparison(first, second) -> PairedComparison:
    return PairedComparison(
        arms=["off", "on"],
        order=[0, 1],
        medians_ms=[10.0, 9.0],
        ratio=0.9,
        low=0.89,
        high=0.91,
        verdict="FASTER",
        facts={"p": 0.001, "numerics": {"0": first, "1": second}},
    )


@pytest.mark.parametrize("unknown", [UNKNOWN, OLD_UNKNOWN])
def test_a_verdict_tells_of_what_was_not_checked(unknown):
    compared = comparison(RIGHT, unknown)
    assert (unchecked_arms(compared), wrong_arms(compared)) == ([("B", WHY)], [])
    assert headline(compared) == "B is FASTER than A; numbers of B not checked"
    assert numerics_lines(compared)[1] == f"B: numbers unknown: {WHY}"
    table = verdicts_table([compared])
    column_index = [column.name for column in table.columns].index("numbers")
    assert table.rows[0][column_index] == "unknown"


def test_only_a_line_of_right_numbers_is_shortened():
    right, unknown = {**RIGHT, "text": "fine; all"}, {**UNKNOWN, "text": "not checked; a reason"}
    lines = numerics_lines(comparison(right, unknown), short=True)
    assert lines[0] == "A: numbers right against float64: fine"
    assert lines[1] == "B: numbers unknown: not checked; a reason"


def test_wrong_numbers_stay_before_all():
    title = headline(comparison(WRONG, UNKNOWN))
    assert title.startswith("A computed wrong numbers; ") and title.endswith("of B not checked")


def test_right_numbers_need_no_words():
    assert headline(comparison(RIGHT, RIGHT)) == "B is FASTER than A"


def test_an_attribution_tells_of_what_was_not_checked():
    checks = msgspec.convert(RIGHT, Numerics), msgspec.convert(UNKNOWN, Numerics)
    arms = [Arm(frozenset(), "base", numerics=checks[0]), Arm(frozenset({0}), "+ x", "measured")]
    arms[1].numerics = checks[1]
    columns = arm_rows(arms, np.full((1, 2), math.nan))
    table = {
        name: np.array(
            [math.nan if cell is None else cell for cell in cells],
            object if isinstance(cells[0], str) else float,
        )
        for name, cells in columns.items()
    }
    study = Study("attribution", "two arms", 0.0, {}, {}, {"arms": table})
    assert attribution_words.unchecked_arms(study) == ["+ x"]
    assert attribution_words.headline(study).endswith("; numbers of + x not checked")
    shown = attribution_words.arms_table(study)
    column_index = [column.name for column in shown.columns].index("numbers")
    assert [row[column_index] for row in shown.rows] == ["right", "not checked"]
