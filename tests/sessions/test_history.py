"""Steps over commits are claimed of paired ratios alone."""

import dataclasses

import msgspec
import numpy as np
import pytest
from session_samples import steps

from sessions.history import history, history_table
from sessions.model import Configuration, PairedComparison, Segment, Session
from sessions.verdicts.ratios import PAIRED, UNPAIRED
from sessions.verdicts.work import MODEL_DIGEST

OWN = Configuration(family="own", preset="file", model={"source": "m.py:build"})


def plain(created, median_ms=10.0, configuration=OWN):
    segment = Segment(0, configuration, "", steps=steps(60, median_ms=median_ms))
    return Session(created=created, segments=[segment], environment={"commit": f"c{created}"})


def check(created, ratio, half=0.005, verdict="SLOWER", baseline="old", gpu="H100", **facts):
    session = plain(created, 10.0 * ratio)
    other = dataclasses.replace(session.segments[0], index=1)
    comparison = PairedComparison(
        arms=[baseline, "new"], order=[0, 1], medians_ms=[10.0, 10.0 * ratio], ratio=ratio,
        low=ratio - half, high=ratio + half, verdict=verdict, facts={"segments": [0, 1], **facts},
    )  # fmt: skip
    return dataclasses.replace(
        session,
        segments=[session.segments[0], other],
        comparisons=[comparison],
        environment={**session.environment, "gpu": gpu},
    )


def points_of(*sessions):
    return history(sessions, [str(session.created) for session in sessions])


def test_a_step_is_where_an_interval_excludes_that_of_the_commit_before():
    points, left_out = points_of(check(3, 1.06), check(1, 1.0), check(2, 1.002), check(4, 1.061))
    assert [point.commit for point in points] == ["c1", "c2", "c3", "c4"]
    assert [point.step for point in points] == ["", "", "slower", ""] and left_out == 0
    points, _ = points_of(check(1, 1.06), check(2, 1.0))
    assert [point.step for point in points] == ["", "faster"]


def test_a_commit_with_uncommitted_changes_is_marked():
    sessions = [check(1, 1.0), check(2, 1.0)]
    for session, mark in zip(sessions, ("", "+"), strict=True):
        session.environment["commit"] = "0123456789abcdef" + mark
    rows = history_table(points_of(*sessions)[0]).rows
    assert [row[1] for row in rows] == ["0123456789ab", "0123456789ab+"]


@pytest.mark.parametrize(("builds", "shown"), [(1, True), (2, True), (3, False)])
def test_a_step_of_few_processes_says_what_its_interval_leaves_out(builds, shown):
    points, _ = points_of(check(1, 1.0, builds=builds), check(2, 1.06, builds=builds))
    assert ("between two processes" in history_table(points).to_markdown()) is shown
    level, _ = points_of(check(1, 1.0, builds=builds), check(2, 1.0, builds=builds))
    assert not history_table(level).notes


@pytest.mark.parametrize("changed", [{"baseline": "older"}, {"gpu": "H200"}])
def test_ratios_to_different_baselines_or_of_different_machines_show_no_step(changed):
    points, _ = points_of(check(1, 1.5), check(2, 1.0, **changed), check(3, 1.6))
    assert [point.step for point in points] == ["", "", "slower"]
    table = history_table(points)
    assert [row[6] for row in table.rows] == ["old", changed.get("baseline", "old"), "old"]
    assert "the same baseline on the same machine" in table.to_markdown()


def test_a_commit_compared_with_itself_is_no_ratio_to_a_baseline():
    points, _ = points_of(check(1, 1.06), check(2, 1.0, identical=True))
    assert [(point.source, point.step) for point in points] == [(PAIRED, ""), (UNPAIRED, "")]


@pytest.mark.parametrize("facts", [{"pairs": 3}, {"pairs": 20}])
def test_an_interval_that_its_own_verdict_rejects_shows_no_step(facts):
    rejected = check(2, 1.2, verdict="UNDECIDED", **facts)
    points, _ = points_of(check(1, 1.0), rejected, check(3, 1.0))
    assert [point.step for point in points] == ["", "", ""]


def test_an_open_verdict_with_a_sound_interval_takes_part_in_steps():
    points, _ = points_of(check(1, 0.9), check(2, 1.01, verdict="UNDECIDED", pairs=20))
    assert [point.step for point in points] == ["", "slower"]


def test_a_comparison_without_names_of_its_arms_has_a_point():
    session = check(1, -1.0, verdict="UNDECIDED")
    nameless = msgspec.structs.replace(session.comparisons[0], arms=[])
    points, _ = points_of(dataclasses.replace(session, comparisons=[nameless]))
    assert [point.baseline for point in points] == [""]


def test_a_step_of_wrong_results_says_so():
    numerics = {"1": {"ok": False, "reference": "float64", "text": "0.5, at most 0.1"}}
    points, _ = points_of(check(1, 1.0), check(2, 0.5, verdict="FASTER", numerics=numerics))
    assert history_table(points).rows[1][-1] == "faster, WRONG results"


def test_what_ran_at_another_time_has_a_ratio_without_an_interval_or_a_step():
    points, _ = points_of(plain(1), plain(2, 20.0), check(3, 1.0), plain(4, 30.0))
    assert [point.source for point in points] == [UNPAIRED, UNPAIRED, PAIRED, UNPAIRED]
    assert points[1].ratio == pytest.approx(2.0, rel=0.05) and np.isnan(points[1].low)
    assert not any(point.step for point in points)
    assert "proves nothing" in history_table(points).to_markdown()


def test_other_configurations_and_sessions_without_steps_are_left_out():
    other = Configuration(family="hydra", preset="tiny")
    points, left_out = points_of(plain(1, configuration=other), plain(2), Session(created=3))
    assert len(points) == 1 and left_out == 2
    assert points_of(Session()) == ([], 1)


def test_hugging_face_configurations_of_other_models_are_left_out():
    sessions = [plain(1), plain(2), plain(3)]
    for session, digest in zip(sessions, ("one layer", "two layers", "two layers"), strict=True):
        session.segments[0].ledger[MODEL_DIGEST] = digest
    points, left_out = points_of(*sessions)
    assert [point.title for point in points] == ["2", "3"] and left_out == 1
