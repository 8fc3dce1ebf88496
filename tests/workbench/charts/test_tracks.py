import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import cpu_session, gpu_session, nan_session

from sessions.columns import Columns
from sessions.model import STEP_COLUMNS, Configuration, Phase, Segment
from sessions.verdicts.statistics import clock
from workbench.charts.series.sources import Inverse, Moved
from workbench.charts.series.tracks import WINDOW, Rolling, Track
from workbench.plots import Run
from workbench.plots._steps import time_column


def columns(t_s, **values):
    table = Columns({"t_s": "f8", **dict.fromkeys(values, "f4")})
    table.append({"t_s": t_s, **values})
    return table


def segment_of(times, phases=None):
    steps = Columns(STEP_COLUMNS)
    segment = Segment(0, Configuration(family="f", preset="p"), "one", steps=steps)
    extend(segment, times, phases)
    return segment


def extend(segment, times, phases=None):
    count = segment.steps.rows
    segment.steps.append(
        {
            "t_s": (count + np.arange(len(times))) * 0.1,
            "gpu_ms": times,
            "phase": np.full(len(times), Phase.STEADY) if phases is None else phases,
        }
    )


@given(st.integers(1, 5000), st.integers(0, 2**32), st.floats(0.0, 0.9), st.floats(0.05, 1.0))
@settings(max_examples=60, deadline=None)
def test_a_view_has_the_extremes_of_what_it_shows(n, seed, start, share):
    rng = np.random.default_rng(seed)
    t_s = np.cumsum(rng.random(n) + 1e-3)
    y = rng.normal(size=n).astype(np.float32)
    track = Track(columns(t_s, y=y), "t_s", "y")
    track.pull()
    lower = t_s[0] + start * (t_s[-1] - t_s[0])
    upper = min(t_s[-1], lower + share * (t_s[-1] - t_s[0])) + 1e-3
    view = track.view(lower, upper, (upper - lower) / 200)
    inside = y[(t_s >= lower) & (t_s <= upper)]
    if len(inside):
        assert view.low.min() <= inside.min()
        assert view.high.max() >= inside.max()
    assert len(view.x) <= 202
    assert (np.diff(view.x) > 0).all()


def test_few_samples_are_shown_as_they_are():
    track = Track(columns(np.arange(5.0), y=[1, 2, np.nan, 4, 5]), "t_s", "y")
    track.pull()
    view = track.view(0.5, 3.5, 0.01)
    assert not view.dense
    np.testing.assert_array_equal(view.x, np.arange(5.0))
    np.testing.assert_array_equal(view.low, np.array([1, 2, np.nan, 4, 5], np.float32))


def test_a_track_sees_new_rows_only_when_it_is_pulled():
    table = columns([0.0, 1.0], y=[1.0, 2.0])
    track = Track(table, "t_s", "y")
    track.pull()
    table.append({"t_s": [2.0], "y": [3.0]})
    assert track.span == (0.0, 1.0)
    track.pull()
    assert track.span == (0.0, 2.0)
    assert track.at(2.5) == 3.0


def test_the_value_at_a_place_is_the_last_before_it_and_nothing_in_a_gap():
    track = Track(columns([0.0, 1.0, 2.0], y=[5.0, 6.0, 7.0]), "t_s", "y")
    track.pull()
    assert track.at(1.5) == 6.0
    assert np.isnan(track.at(-0.1))
    assert np.isnan(track.at(2.0 + track.gap + 0.1))


@given(st.integers(1, 150), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_rolling_percentiles_equal_those_of_every_trailing_window(count, seed):
    segment = segment_of([])
    rolling = Rolling(segment, "gpu_ms")
    rng = np.random.default_rng(seed)
    times = rng.lognormal(size=count)
    begun = 0
    while begun < len(times):
        count = int(rng.integers(1, 60))
        extend(segment, times[begun : begun + count])
        begun += count
        rolling.pull()
    values = np.array(times, np.float32)
    for row in range(len(values)):
        window = values[max(0, row - WINDOW + 1) : row + 1]
        expected = np.percentile(window, (5, 50, 95), method="nearest")
        expected[1] = np.median(window)
        if len(window) < 20:
            expected[[0, 2]] = np.nan
        got = [rolling.columns[name][row] for name in ("p5", "median", "p95")]
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_rolling_leaves_out_what_is_not_steady_and_what_was_not_measured():
    phases = np.full(60, Phase.STEADY)
    phases[:5] = Phase.WARM_UP
    times = np.full(60, 2.0)
    times[:5] = 900.0
    times[30] = np.nan
    rolling = Rolling(segment_of(times, phases), "gpu_ms")
    rolling.pull()
    assert np.nanmax(rolling.columns["p95"]) == 2.0
    assert rolling.columns.rows == 54
    assert 30 not in rolling.columns["row"]


def test_one_slow_step_among_a_segments_first_is_no_percentile():
    times = np.full(60, 2.0)
    times[8] = 900.0
    rolling = Rolling(segment_of(times), "gpu_ms")
    rolling.pull()
    assert np.isnan(rolling.columns["p95"][:19]).all()
    np.testing.assert_array_equal(rolling.columns["p95"][19:], 2.0)
    np.testing.assert_array_equal(rolling.columns["median"], 2.0)


def test_a_long_segment_gets_fewer_rolling_values_but_the_same_ones():
    times = np.random.default_rng(0).random(70_000) + 1
    exact, thin = (Rolling(segment_of(times), "gpu_ms", thin=thin) for thin in (False, True))
    exact.pull()
    thin.pull()
    assert exact.columns.rows == 70_000
    assert 4096 + 61_440 // 8 < thin.columns.rows < 12_000
    rows = thin.columns["row"]
    np.testing.assert_array_equal(thin.columns["median"], exact.columns["median"][rows])


@pytest.mark.parametrize("session", [gpu_session(), cpu_session(), nan_session()])
def test_the_clock_of_the_plots_is_that_of_the_statistics(session):
    run = Run(session)
    for segment in session.segments:
        expected = {"GPU": "gpu_ms", "host": "wall_ms"}[clock(segment)]
        assert time_column(run, segment) == expected


def test_throughput_turns_extremes_over_and_never_becomes_infinite():
    track = Track(columns([0.0, 1.0, 2.0], y=[2.0, 0.0, 4.0]), "t_s", "y")
    track.pull()
    inverse = Inverse(track, 8.0)
    view = inverse.view(0, 2, 1e-3)
    np.testing.assert_array_equal(view.low, [4.0, np.nan, 2.0])
    assert inverse.at(0.5) == 4.0
    assert np.isnan(inverse.at(1.5))


def test_a_moved_track_answers_from_its_new_origin():
    track = Track(columns([10.0, 11.0], y=[1.0, 2.0]), "t_s", "y")
    track.pull()
    moved = Moved(track, offset=-10.0, factor=3.0)
    assert moved.span == (0.0, 1.0)
    assert moved.at(0.0) == 3.0
    np.testing.assert_array_equal(moved.view(0, 1, 0.1).low, [3.0, 6.0])


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_a_view_that_grows_step_by_step_still_has_the_extremes_of_what_it_shows(seed):
    rng = np.random.default_rng(seed)
    table = columns([0.0], y=[0.0])
    track = Track(table, "t_s", "y")
    window = float(rng.choice([5.0, 50.0, 1e9]))
    width = 0.05
    for _ in range(30):
        last = float(table["t_s"][-1])
        count = int(rng.integers(1, 3000))
        table.append(
            {"t_s": last + np.cumsum(rng.random(count) * 0.004 + 1e-6), "y": rng.normal(size=count)}
        )
        track.pull()
        t_s, y = table["t_s"], table["y"]
        start = max(0.0, float(t_s[-1]) - window)
        view = track.view(start, float(t_s[-1]) + 0.3, width)
        inside = y[t_s >= start]
        assert view.low.min() <= inside.min() and view.high.max() >= inside.max()
        assert (np.diff(view.x) > 0).all()
        around = y[max(0, int(np.searchsorted(t_s, start - 2 * width)) - 32) :]
        assert view.low.min() >= around.min() and view.high.max() <= around.max()


def test_samples_of_one_place_are_one_bin_of_any_view():
    track = Track(columns(np.zeros(40), value=np.arange(40)), "t_s", "value")
    track.pull()
    for start, stop in ((-1.0, 1.0), (0.0, 0.5), (-1.0, 1.0)):
        view = track.view(start, stop, 0.01)
        assert (view.x.tolist(), view.low.tolist(), view.high.tolist()) == ([0.0], [0.0], [39.0])
