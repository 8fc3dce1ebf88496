"""Efficiency over ranks: from ratios and intervals, in tables and words, and in files."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import scaling_samples
from hypothesis import given
from hypothesis import strategies as st

from sessions.errors import SessionError
from sessions.exports import exportable
from sessions.model import Session
from sessions.storage import hdf5
from sessions.storage.content import cleaned
from sessions.storage.study_schema import columns_of
from sessions.studies.attribution.words import ONE_BUILD
from sessions.studies.rank_scaling import (
    KIND,
    POINTS,
    RANKS,
    STRONG,
    WEAK,
    curves,
    efficiency,
    efficiency_text,
    headline,
    points,
    points_table,
    ranks_of,
    ranks_table,
    remarks,
    scalings,
    skew_ms,
    wrong_points,
)

RATIOS = st.floats(1e-3, 1e3)


@given(RATIOS, st.floats(1, 2), st.integers(2, 64))
def test_an_efficiency_is_ideal_where_the_work_per_rank_takes_as_long_as_before(ratio, width, n):
    ends = ratio / width, ratio * width
    strong = efficiency(STRONG, n, ratio / n, ends[0] / n, ends[1] / n)
    weak = efficiency(WEAK, n, ratio, *ends)
    for estimate in (strong, weak):
        low, value, high = estimate.low, estimate.value, estimate.high
        assert value == pytest.approx(1 / ratio)
        assert low == pytest.approx(1 / ends[1]) and high == pytest.approx(1 / ends[0])
        assert low <= value * (1 + 1e-12) and value <= high * (1 + 1e-12)


@pytest.mark.parametrize("ratio", [math.nan, math.inf, 0.0, -1.0])
def test_no_efficiency_comes_of_a_ratio_that_is_none(ratio):
    assert math.isnan(efficiency(STRONG, 2, ratio, ratio, ratio).value)


def test_the_skew_is_between_the_slowest_rank_and_the_median():
    assert skew_ms([10.0, 11.0, 15.0]) == 4.0
    assert skew_ms([10.0, 10.0]) == 0.0
    assert math.isnan(skew_ms([])) and math.isnan(skew_ms([1.0, math.nan]))


@pytest.mark.parametrize("mode", [STRONG, WEAK])
def test_points_come_kind_by_kind_and_those_without_a_ratio_say_why(mode):
    study = scaling_samples.study(mode)
    order = [(row["kind"], row["count"]) for row in points(study)]
    assert order == [("one device", 1), ("data", 2), ("data", 4), ("data", 8),
                     ("fsdp", 2), ("fsdp", 4)]  # fmt: skip
    assert {kind: len(rows) for kind, rows in curves(study).items()} == {"data": 2, "fsdp": 2}
    for kind, cost in scaling_samples.KINDS.items():
        for row in curves(study)[kind]:
            assert row["efficiency"] == pytest.approx(1 / (cost + 0.01 * row["count"]))
    table = points_table(study)
    refused = table.rows[3]
    assert refused[2] == "refused" and refused[-1] == "needs 8 GPUs; this machine has 4"
    assert headline(study) == (
        f"{mode} scaling efficiency of data, 4 ranks: 0.909 (0.891 to 0.928); "
        "fsdp, 4 ranks: 0.806 (0.791 to 0.823)"
    )
    assert len(ranks_table(study).rows) == 12
    assert [row["host"] for row in ranks_of(study, points(study)[2])] == ["node-a"] * 2 + [
        "node-b"
    ] * 2


@pytest.mark.parametrize(
    ("estimate", "shown"),
    [
        ((4e-4, 3e-4, 5e-4), "0.00040 (0.00030 to 0.00050)"),
        ((1.01, 1.0002, 1.02), "1.010 (1.0002 to 1.020)"),
    ],
)
def test_an_efficiency_has_the_digits_that_its_interval_and_the_ideal_deserve(estimate, shown):
    row = dict(zip(("efficiency", "low", "high"), estimate, strict=True))
    assert efficiency_text(row) == shown


def test_a_verdict_of_unequal_work_is_none_and_all_points_are_of_one_build():
    for mode, word in ((STRONG, "FASTER"), (WEAK, "other work")):
        study = scaling_samples.study(mode)
        table = points_table(study)
        verdicts = {row[table.column("verdict")] for row in table.rows}
        assert verdicts == {word, ""} and ONE_BUILD in remarks(study)


def test_wrong_numbers_and_what_was_not_recorded_are_told():
    study = scaling_samples.study(wrong=True)
    assert wrong_points(study) == ["fsdp, 2 ranks", "fsdp, 4 ranks"]
    assert "Wrong numbers, however fast: fsdp, 2 ranks, fsdp, 4 ranks." in remarks(study)
    assert headline(study).endswith("fsdp, 4 ranks: 0.806 (0.791 to 0.823), WRONG numbers")
    columns = {**study.tables[POINTS]}
    columns["exposed_ms"] = np.full(len(columns["kind"]), math.nan)
    blind = dataclasses.replace(study, tables={POINTS: columns})
    table = points_table(blind)
    shown = [row[table.column("exposed communication")] for row in table.rows]
    assert shown == [None, "not measured", "not measured", None, "not measured", "not measured"]
    assert not ranks_table(blind).rows


def test_a_file_keeps_the_study_and_exports_have_it(tmp_path):
    hdf5.save(Session(studies=[scaling_samples.study()]), tmp_path / "s.h5")
    session = hdf5.load(tmp_path / "s.h5")
    (study,) = scalings(session)
    assert headline(study) == headline(scaling_samples.study())
    tables = exportable(session)
    assert len(tables["scaling"][0].rows) == 6 and len(tables["ranks"][0].rows) == 12


def test_columns_that_a_file_lacks_are_unknown_and_impossible_ones_refused():
    study = scaling_samples.study()
    names = ("kind", "count", "efficiency")
    bare = {POINTS: {name: study.tables[POINTS][name] for name in names}}
    incomplete = Session(studies=[dataclasses.replace(study, tables=bare)])
    (completed,) = scalings(cleaned(incomplete))
    assert len(points_table(completed).rows) == 6 and len(curves(completed)) == 2
    wrong = {POINTS: {**study.tables[POINTS], "step_ms": np.full(6, -1.0)}}
    with pytest.raises(SessionError, match="step_ms"):
        cleaned(Session(studies=[dataclasses.replace(study, tables=wrong)]))


def test_the_samples_have_the_columns_that_are_described():
    tables = scaling_samples.study().tables
    for table in (POINTS, RANKS):
        assert set(tables[table]) == set(columns_of(KIND, table)), table
