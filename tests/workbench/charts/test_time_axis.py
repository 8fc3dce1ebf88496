"""Tests of the time axis, which begins at the first run and leaves out idle gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import gpu_session

from sessions.columns import Columns
from sessions.model import TELEMETRY_COLUMNS, Configuration, Phase, PhaseSpan, Segment, Session
from sessions.storage import hdf5
from workbench import protocol
from workbench.charts.canvas import Canvas
from workbench.charts.style import screen_style
from workbench.charts.time_axis import IDLE_S, TimeAxis, shared_axis
from workbench.client.recorder import Recorder
from workbench.plots import PLOTS, Run
from workbench.theming.theme import DARK

pytestmark = pytest.mark.usefixtures("qapp")  # plots are drawn

CONFIGURATION = Configuration(family="hydra", preset="tiny")


def ran(*spans: tuple[float, float]) -> Session:
    """Return a session of one segment for each span, whose telemetry goes on between them."""
    session = Session()
    for index, (start, stop) in enumerate(spans):
        segment = Segment(index, CONFIGURATION, "", start)
        segment.phases = [PhaseSpan(Phase.STEADY, start, stop)]
        t_s = np.linspace(start, stop, 20)
        segment.steps.append({"t_s": t_s, "gpu_ms": np.full(20, 10.0), "phase": np.full(20, 5)})
        session.segments.append(segment)
    table = Columns(TELEMETRY_COLUMNS)
    times = np.arange(0.0, spans[-1][1] + 50.0, 0.25)
    table.append({"t_s": times, "power_w": np.full(len(times), 300.0)})
    session.telemetry["gpu0"] = table
    return session


def test_it_begins_at_the_first_run_and_leaves_out_idle_time():
    axis = Run(ran((100.0, 110.0), (500.0, 505.0))).axis
    assert axis.positions([100, 105, 110, 300, 500, 505]).tolist() == [0, 5, 10, 10, 10, 15]
    assert axis.gaps == [(10.0, 390.0)]
    assert axis.times_s([0, 5, 12, 16, -1]).tolist() == [100, 105, 502, 506, 99]


def test_a_short_gap_stays():
    axis = Run(ran((0.0, 5.0), (5.0 + IDLE_S, 10.0))).axis
    assert axis.gaps == [] and axis.run_span() == (0.0, 10.0)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 50)), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), min_size=2, max_size=20),
)
def test_positions_ascend_and_lead_back_to_their_times(lengths, shares):
    spans, now = [], 0.0
    for gap, length in lengths:
        spans.append((now + gap, now + gap + length))
        now += gap + length
    axis = TimeAxis(session := Session())
    for index, (start, stop) in enumerate(spans):  # known early, nothing of it changes later
        segment = Segment(index, CONFIGURATION, "", start)
        segment.phases = [PhaseSpan(Phase.STEADY, start, stop)]
        before = axis.positions([span[0] for span in spans[:index]])
        session.segments.append(segment)
        axis.pull()
        assert index == 0 or np.allclose(
            before, axis.positions([span[0] for span in spans[:index]])
        )
    times = np.sort([start + share * (stop - start) for start, stop in spans for share in shares])
    positions = axis.positions(times)
    assert positions.min() >= 0 and (np.diff(positions) >= 0).all()
    assert axis.run_span()[1] <= sum(stop - start for start, stop in spans) + IDLE_S * len(spans)
    assert np.allclose(axis.times_s(positions), times) or axis.gaps


@pytest.mark.parametrize("name", ["step_time", "power"])
def test_a_plot_has_no_idle_time(name):
    canvas = Canvas(screen_style(DARK))
    session = ran((100.0, 110.0), (500.0, 505.0))
    PLOTS[name].paint(canvas, [Run(session)], canvas.chart_style)
    canvas.refresh()
    first, last = canvas.x_span()
    assert (first, last) == (pytest.approx(0, abs=0.3), pytest.approx(15, abs=0.3))


def test_telemetry_of_a_growing_session_appears_with_its_run():
    session = ran((100.0, 110.0))
    canvas = Canvas(screen_style(DARK))
    PLOTS["power"].paint(canvas, [Run(session)], canvas.chart_style)
    canvas.refresh()
    assert canvas.x_span()[1] == pytest.approx(10.0)
    session.segments[0].phases = [PhaseSpan(Phase.STEADY, 100.0, 130.0)]
    canvas.refresh()
    assert canvas.x_span()[1] == pytest.approx(30.0)


def test_the_axis_takes_the_steps_of_a_file_that_were_read_since(tmp_path):
    session = ran((1.0, 8.0), (9.0, 20.0))
    for segment in session.segments:
        segment.phases = []
    hdf5.save(session, tmp_path / "s.h5")
    loaded = hdf5.load(tmp_path / "s.h5")
    axis = TimeAxis(loaded)
    axis.pull()
    assert axis.last_s == 9.0  # where the last segment begins: no step was read
    loaded.segments[1].steps["t_s"]
    axis.pull()
    assert axis.last_s == pytest.approx(20.0)


def test_panels_share_the_axis_of_a_session_with_equal_hidden_segments():
    session = ran((1.0, 8.0), (9.0, 20.0))
    run = Run(session)
    assert run.axis is shared_axis(session) is Run(session).axis
    assert run.axis is not shared_axis(session, frozenset({1}))
    assert run.axis is not Run(ran((1.0, 8.0))).axis


def test_a_compile_grows_while_it_goes_on():
    """Its span ended with the message that came before, so that it was seen only when over."""
    recorder = Recorder()
    started = protocol.SegmentStarted(t_s=1.0, index=0, configuration=CONFIGURATION, label="")
    recorder.record(started)
    recorder.record(protocol.PhaseChanged(t_s=1.0, segment=0, phase=Phase.COMPILE))
    samples = protocol.TelemetrySamples(t_s=6.0, device="cpu", columns={"t_s": [5.0, 6.0]})
    recorder.record(samples)
    assert recorder.session.segments[0].phases == [PhaseSpan(Phase.COMPILE, 1.0, 6.0)]
    recorder.record(protocol.Finished(t_s=6.5, reason="done", steps=0))
    recorder.record(protocol.TelemetrySamples(t_s=9.0, device="cpu", columns={"t_s": [9.0]}))
    assert recorder.session.segments[0].phases[-1].stop_s == 6.5


def test_the_measuring_of_ceilings_is_a_phase_of_the_segment_that_waited_for_it():
    recorder = Recorder()
    command = protocol.Start(configuration=CONFIGURATION)
    recorder.record(protocol.Ordered(t_s=2.0, command=command))
    recorder.record(protocol.CeilingsFound(t_s=12.0, ceilings=None, source="measured"))
    started = protocol.SegmentStarted(t_s=12.1, index=0, configuration=CONFIGURATION, label="")
    recorder.record(started)
    assert recorder.session.segments[0].phases == [PhaseSpan(Phase.CEILINGS, 2.0, 12.0)]
    assert Run(recorder.session).axis.run_span()[0] == 0.0
    assert Run(recorder.session).axis.position(7.0) == 5.0


def test_phases_are_drawn_where_they_are_on_the_axis():
    session = gpu_session(2, 60)
    axis = Run(session).axis
    canvas = Canvas(screen_style(DARK))
    PLOTS["step_time"].paint(canvas, [Run(session)], canvas.chart_style)
    canvas.refresh()
    phases = next(layer for layer in canvas.layers if type(layer).__name__ == "Phases")
    assert phases._places[0][0] == axis.position(phases._spans[0].start_s)
