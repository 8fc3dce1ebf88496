"""Sessions side by side."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import session_samples as samples

from sessions.errors import SessionError
from sessions.model import Configuration, Phase, Segment, Session
from sessions.tables import comparison_table
from sessions.verdicts.comparison import compare, configuration_differences, differences


def session_of(median_ms: float, title: str = "s", n: int = 600, **environment: str) -> Session:
    configuration = Configuration(family="hydra", preset="tiny")
    steps = samples.steps(n, seed=int(10 * median_ms), median_ms=median_ms)
    segments = [Segment(0, configuration, "only", steps=steps)]
    return Session(title=title, segments=segments, environment=environment)


def without_gpu(session: Session) -> Session:
    for segment in session.segments:
        n = len(segment.steps["wall_ms"])
        segment.steps = dict(segment.steps, gpu_ms=np.full(n, np.nan, "f4"))
    return session


def test_ratios_refer_to_the_baseline():
    arms = compare([session_of(10.0), session_of(8.0), session_of(5.0)], baseline=1).arms
    assert arms[1].ratio is None
    assert arms[0].ratio.ratio == pytest.approx(1.25, abs=0.01)
    assert arms[2].ratio.ratio == pytest.approx(0.625, abs=0.01)
    assert {arm.ratio.verdict for arm in (arms[0], arms[2])} == {"unpaired"}
    assert abs(arms[0].summary.median - 9.0) < 0.1
    assert arms[0].peak_bytes == 1.9e9


def test_ten_sessions_are_compared_and_eleven_are_not():
    sessions = [session_of(10.0, n=200) for _ in range(11)]
    assert len(compare(sessions[:10]).arms) == 10
    with pytest.raises(SessionError, match="compare 2 to 10 sessions at a time, not 11"):
        compare(sessions)


def test_one_session_is_not_compared():
    with pytest.raises(SessionError, match="compare 2 to 10 sessions at a time, not 1"):
        compare([session_of(10.0)])


@pytest.mark.parametrize("baseline", [-1, 2])
def test_baseline_that_is_not_there_is_refused(baseline):
    with pytest.raises(SessionError, match=f"there is no baseline {baseline}; the 2 sessions"):
        compare([session_of(10.0), session_of(8.0)], baseline)


def test_segment_with_the_most_steady_steps_is_chosen():
    session = session_of(10.0, n=300)
    warm = samples.steps(900) | {"phase": np.full(900, Phase.WARM_UP, "u1")}
    configuration = session.segments[0].configuration
    session.segments += [
        Segment(1, configuration, "warm", steps=warm),
        Segment(2, configuration, "longest", steps=samples.steps(400)),
    ]
    arms = compare([session, session_of(8.0)]).arms
    assert arms[0].segment.label == "longest"
    assert compare([session, session_of(8.0)], segments=[0, None]).arms[0].segment.label == "only"


def test_segment_that_is_not_there_is_refused():
    with pytest.raises(SessionError, match=r"'s' has no segment 3; expected 0 to 0\."):
        compare([session_of(10.0), session_of(8.0)], segments=[3, None])


def test_segments_must_be_named_for_every_session():
    with pytest.raises(SessionError, match="1 segment cannot belong to 2 sessions"):
        compare([session_of(10.0), session_of(8.0)], segments=[0])


def test_session_without_steady_steps_is_refused():
    session = session_of(10.0, title="hasty")
    session.segments[0].steps = dict(session.segments[0].steps, phase=np.zeros(600, "u1"))
    with pytest.raises(SessionError, match="'hasty' has no steady steps to compare; run it longer"):
        compare([session_of(10.0), session])


def test_session_without_segments_is_refused():
    with pytest.raises(SessionError, match="'Untitled' has no segments"):
        compare([session_of(10.0), Session()])


def test_only_what_differs_is_listed_under_flat_names():
    first = session_of(10.0, gpu="H200", torch="2.11", os="Linux")
    second = session_of(10.0, gpu="H200", torch="2.15", cuda="13.0", os="Linux")
    second.segments[0].configuration = Configuration(
        family="hydra", preset="tiny", settings={"batch": 8}, toggles={"compile": "default"}
    )
    assert {difference.name: difference.values for difference in differences([first, second])} == {
        "settings.batch": [None, 8],
        "toggles.compile": [None, "default"],
        "environment.torch": ["2.11", "2.15"],
        "environment.cuda": [None, "13.0"],
    }


def test_equal_numbers_of_different_kinds_differ_and_nan_does_not():
    def configuration(value):
        return Configuration(family="f", preset="p", model={"x": value})

    assert configuration_differences([configuration(1), configuration(True)])
    assert configuration_differences([configuration(1), configuration(1.0)])
    assert not configuration_differences([configuration(math.nan), configuration(math.nan)])


@pytest.mark.parametrize("name", ["gpu", "GPU", "driver", "torch", "device"])
def test_another_gpu_driver_or_torch_is_warned_of(name):
    first, second = session_of(10.0, "a", **{name: "x"}), session_of(10.0, "b", **{name: "y"})
    (warning,) = compare([first, second]).warnings
    assert warning == f"{name} differs (a: x, b: y); this alone may change step times."


def test_machines_that_differ_in_much_are_warned_of_in_one_line():
    first = session_of(10.0, "a", gpu="x", driver="1", torch="2.11", os="x")
    second = session_of(10.0, "b", gpu="y", driver="2", torch="2.15", os="y")
    comparison = compare([first, second])
    assert comparison.warnings == [
        "These differ, and each alone may change step times: driver, gpu, torch."
    ]
    assert {d.name: d.values for d in comparison.differences}["environment.gpu"] == ["x", "y"]


def test_many_sessions_are_counted_where_they_differ_and_not_named():
    titles = [f"a title that takes half a line of its own, {number}" for number in range(5)]
    made = [session_of(10.0, title, gpu="x" if title == titles[0] else "y") for title in titles]
    (warning,) = compare(made).warnings
    assert warning == "gpu differs (x: 1 of 5, y: 4 of 5); this alone may change step times."


def test_another_operating_system_is_listed_but_not_warned_of():
    first, second = session_of(10.0, "a", os="x"), session_of(10.0, "b", os="y")
    comparison = compare([first, second])
    assert comparison.warnings == []
    assert [difference.name for difference in comparison.differences] == ["environment.os"]


def test_another_cpu_is_warned_of_where_the_host_times_the_steps():
    first, second = session_of(10.0, "a", cpu="x"), session_of(10.0, "b", cpu="y")
    assert compare([first, second]).warnings == []
    assert "cpu differs" in compare([without_gpu(first), without_gpu(second)]).warnings[0]


def test_times_of_different_clocks_are_not_set_in_ratio():
    comparison = compare([session_of(10.0, "a"), without_gpu(session_of(10.0, "b"))])
    assert comparison.arms[1].ratio.note == "host times cannot be compared with GPU times"
    assert math.isnan(comparison.arms[1].ratio.ratio)
    assert comparison.warnings == ["Step times come from different clocks (a: GPU, b: host)."]


def of_work(title: str, **changed) -> Session:
    session = session_of(10.0, title)
    configuration = session.segments[0].configuration
    session.segments[0].configuration = msgspec.structs.replace(configuration, **changed)
    return session


def test_steps_that_do_different_work_are_warned_of_and_other_toggles_or_seeds_are_not():
    first = of_work("a", settings={"batch": 4}, toggles={"triton": "on"})
    other = of_work("b", family="moe", settings={"batch": 8}, toggles={"triton": "on"})
    assert compare([first, other]).warnings == [
        "Different models (family): a ratio of their step times is no speed-up.",
        "Steps do different work (settings.batch): a ratio of their times is no speed-up.",
    ]
    toggled = of_work("c", settings={"batch": 4}, toggles={"triton": "off"}, seed=9)
    assert compare([first, toggled]).warnings == []
    arms = compare([first, other, toggled], baseline=0).arms
    assert [arm.other_work for arm in arms] == [False, True, False]
    table = comparison_table(compare([first, other]))
    verdicts = [row[table.column("verdict")] for row in table.rows]
    assert verdicts == [None, "different models"]


def test_a_model_of_ones_own_may_be_compared_with_its_next_edition():
    editions = [
        of_work(
            edition, family="own", model={"source": f"/{edition}.py", "sha256": edition, "dim": 4}
        )
        for edition in "ab"
    ]
    comparison = compare(editions)
    assert comparison.warnings == []
    assert [difference.name for difference in comparison.differences] == [
        "model.sha256",
        "model.source",
    ]


def test_peak_memory_is_that_of_the_steady_phase():
    session = session_of(10.0, n=300)
    phase = np.full(300, Phase.STEADY, "u1")
    phase[:10] = Phase.AUTOTUNE
    peak = np.full(300, 2e9)
    peak[:10] = 9e9
    peak[20] = np.nan
    session.segments[0].steps = dict(session.segments[0].steps, phase=phase, peak=peak)
    assert compare([session, session_of(8.0)]).arms[0].peak_bytes == 2e9


def test_clocks_of_many_sessions_are_counted_and_not_listed_by_title():
    titles = [f"a title that takes half a line of its own, {number}" for number in range(5)]
    first, *rest = (session_of(10.0, title) for title in titles)
    (warning,) = compare([without_gpu(first), *rest]).warnings
    assert warning == "Step times come from different clocks (host: 1 of 5, GPU: 4 of 5)."
