"""The timeline of a profile: stored in bounds, drawn in lanes, summed over a range, searched."""

from __future__ import annotations

import dataclasses

import numpy as np
import profile_samples
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import Written

from sessions.errors import SessionError
from sessions.model import Session
from sessions.storage.content import cleaned
from sessions.storage.study_schema import TIMELINE
from sessions.studies import breakdown, timeline
from sessions.studies.timeline import Timeline
from sessions.tracing import timeline as stored
from sessions.tracing import trace


@pytest.fixture(scope="module")
def study():
    return profile_samples.rich_study(blocks=3)


@pytest.fixture(scope="module")
def data(study) -> Timeline:
    return timeline.of(study)


def changed(study, columns):
    """Return the profile with other columns in its timeline."""
    table = {**study.tables["timeline"], **columns}
    return dataclasses.replace(study, tables={**study.tables, "timeline": table})


def test_lanes_are_steps_threads_launches_modules_streams_and_idle_time(data):
    titles = [lane.title for lane in data.lanes()]
    assert titles == ["Steps", "Modules (CPU)", "CPU thread 1", "CPU thread 2", "CPU launches",
                      "Modules", "Stream 13", "Stream 7", "GPU idle"]  # fmt: skip


def test_a_kernel_is_stored_with_its_module_and_the_launch_before_it(data):
    kernels = data.of_kind(breakdown.STREAM_TRACK)
    launches = data.launch[kernels] - 1
    assert (launches >= 0).all()
    assert (data.start[launches] <= data.start[kernels]).all()
    assert {data.labels[module] for module in data.module[kernels]} >= {"blocks.0.mlp.down"}


@pytest.mark.parametrize("title", ["Modules (CPU)", "Modules"])
def test_modules_lie_within_the_module_around_them_and_beside_each_other(data, title):
    lane = next(lane for lane in data.lanes() if lane.title == title)
    for depth in range(lane.rows):
        here = lane.depth == depth
        order = np.argsort(lane.start[here])
        starts, stops = lane.start[here][order], lane.stop[here][order]
        assert (stops[:-1] <= starts[1:] + 1e-6).all()
        if depth:
            outer = lane.depth == depth - 1
            for start, stop in zip(starts, stops, strict=True):
                inside = (lane.start[outer] <= start + 1e-6) & (stop <= lane.stop[outer] + 1e-6)
                assert inside.any()


@settings(max_examples=25, deadline=None)
@given(st.tuples(st.floats(0, 20_000), st.floats(0, 20_000)))
def test_statistics_of_a_range_are_what_its_halves_add_up_to(data, ends):
    start, stop = min(ends), max(ends) + 1.0
    middle = (start + stop) / 2

    def total(a, b):
        return sum(row.total_us for row in data.statistics(a, b))

    assert total(start, stop) == pytest.approx(total(start, middle) + total(middle, stop))
    for row in data.statistics(start, stop):
        assert row.mean_us * row.count == pytest.approx(row.total_us)
        assert row.share == pytest.approx(row.total_us / (stop - start))


def test_all_of_a_gpus_time_is_work_or_idle_but_for_short_gaps(data):
    kernels = data.of_kind(breakdown.STREAM_TRACK)
    first, last = data.start[kernels].min(), data.stop[kernels].max()
    busy = sum(row.total_us for row in data.statistics(first, last))
    assert busy + data.idle_us(first, last) >= last - first - 1.0


def test_search_finds_names_and_modules_whatever_their_case(data):
    assert data.matching("FLASH").sum() > 0
    named = data.matching("blocks.2.mlp.down")
    assert {data.labels[m] for m in data.module[named]} == {"blocks.2.mlp.down"}
    assert not data.matching("nothing of the kind").any()


def test_on_a_cpu_own_time_of_operators_counts_once(tmp_path):
    made = Written()
    made.mark(trace.STEP, 0, 100)
    made.op("aten::linear", 10, 90)
    made.op("aten::mm", 20, 60)
    read = trace.read(made.save(tmp_path / "t.json"), "cpu")
    columns = stored.tables(read)
    study = profile_samples.study(blocks=1)
    tables = {
        name: {c: np.array(v, object if isinstance(v[0], str) else float) for c, v in t.items()}
        for name, t in columns.items()
    }
    data = timeline.of(dataclasses.replace(study, tables={**study.tables, **tables}))
    assert not data.on_device and np.isnan(data.idle_us(0, 100))
    assert {row.name: row.total_us for row in data.statistics(0, 100)} == {
        "aten::linear": 40.0, "aten::mm": 40.0
    }  # fmt: skip


def test_more_events_than_are_stored_leave_the_last_step_then_no_nested_operators():
    read = profile_samples.gpu_trace(blocks=3, steps=3)
    everything = len(stored.tables(read)["timeline"]["us"])
    last = stored.tables(read, most=everything - 1)
    assert last["timeline"]["name"].count(0.0) == 1 and last["labels"]["text"][0] == "step 1"
    assert len(last["timeline"]["us"]) < everything / 2
    assert len(stored.tables(read, most=50)["timeline"]["us"]) == 50


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("name", 1e6, "a name that does not exist"),
        ("module", 0.5, "a module that does not exist"),
        ("track", 99, "a track that does not exist"),
        ("launch", 1e9, "a launch that does not exist"),
        ("depth", 1000, "nested too deeply"),
        ("us", -1.0, "expected 0"),
    ],
)
def test_a_timeline_that_refers_to_nothing_is_refused(study, column, value, words):
    values = study.tables["timeline"][column].copy()
    values[3] = value
    with pytest.raises(SessionError, match=words):
        cleaned(Session(studies=[changed(study, {column: values})]))


def test_a_profile_of_an_older_version_has_no_timeline():
    assert timeline.of(profile_samples.study()) is None


@pytest.mark.parametrize("lost", TIMELINE)
def test_a_profile_that_ended_before_its_whole_timeline_came_opens_without_one(study, lost):
    assert timeline.of(cleaned(Session(studies=[study])).studies[0]) is not None
    without = {name: table for name, table in study.tables.items() if name != lost}
    session = Session(studies=[dataclasses.replace(study, tables=without)])
    assert not any(map(timeline.is_stored, session.studies))
    (opened,) = cleaned(session).studies
    assert set(opened.tables) == set(without) - set(TIMELINE)
