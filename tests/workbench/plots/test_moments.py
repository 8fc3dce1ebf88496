"""Tests of measured ranges, single steps, notes and hidden studies in the live plots."""

import math

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QApplication, QInputDialog
from synthetic import gpu_session

from sessions.model import Configuration, Event, Order, Segment, Session, Study
from sessions.session_log import log
from sessions.storage import hdf5
from workbench.charts.range_statistics import RangeStatistics, explain_step, measure_range, step_at
from workbench.ui import panel_list
from workbench.ui.panels.live import RUN, SEGMENT


@pytest.fixture
def panel(qtbot, workspace, show):
    panel = panel_list.live(workspace)
    qtbot.addWidget(panel)
    panel.resize(1000, 700)
    panel.show()
    show(gpu_session(3, 300, seed=4))
    qtbot.waitUntil(lambda: panel.charts["step_time"].reason is None)
    qtbot.waitUntil(lambda: not panel._timer.isActive())
    return panel


def drag(chart, first: float, last: float, modifiers) -> None:
    """Drag from one position of the axis to another, as a person does."""
    view, box = chart._view, chart.canvas.vb
    middle = sum(box.viewRange()[1]) / 2
    ends = [
        QPointF(view.mapFromScene(box.mapViewToScene(QPointF(x, middle)))) for x in (first, last)
    ]
    left, none = Qt.MouseButton.LeftButton, Qt.MouseButton.NoButton
    between = [ends[0] + (ends[1] - ends[0]) * share for share in (0.3, 0.6, 1.0)]
    steps = [(QEvent.Type.MouseButtonPress, ends[0], left, left)]
    steps += [(QEvent.Type.MouseMove, point, none, left) for point in between]
    steps += [(QEvent.Type.MouseButtonRelease, ends[1], left, none)]
    for kind, point, button, buttons in steps:
        on_screen = view.mapToGlobal(point)
        event = QMouseEvent(kind, point, on_screen, button, buttons, modifiers)
        QApplication.sendEvent(view.viewport(), event)


def test_a_drag_with_shift_measures_a_range_in_every_plot(panel):
    before = panel.view_span()
    drag(panel.charts["step_time"], 2.0, 4.0, Qt.KeyboardModifier.ShiftModifier)
    first, last = panel.moments.span
    assert (first, last) == (pytest.approx(2, abs=0.2), pytest.approx(4, abs=0.2))
    assert panel.view_span() == before
    assert {chart.canvas.marked_range for chart in panel.charts.values()} == {(first, last)}
    times = panel.run.axis.times_s([first, last])
    statistics = measure_range(panel.run.chosen(), *times, last - first)
    assert panel.moments.bar.isVisible() and statistics.text() in panel.moments.bar.text
    assert "median" in statistics.text() and "p95" in statistics.text()
    panel.moments.zoom()
    assert panel.view_span() == pytest.approx((first, last))
    panel.moments.clear()
    assert not panel.moments.bar.isVisible()


def test_a_drag_without_shift_moves_the_view(panel):
    before = panel.view_span()
    drag(panel.charts["step_time"], 2.0, 3.0, Qt.KeyboardModifier.NoModifier)
    assert panel.moments.span is None and panel.view_span() != before


def test_two_cursors_are_set_by_a_key(qtbot, panel):
    chart = panel.charts["step_time"]
    chart._view.setFocus()
    for position in (5.0, 3.0):
        chart.cursorMoved.emit(position)
        qtbot.keyClick(chart._view, Qt.Key.Key_M)
    assert panel.moments.span == (3.0, 5.0)


def test_statistics_are_those_of_the_steps_in_the_range():
    session = gpu_session(2, 300)
    segment = session.segments[1]
    rows = slice(100, 200)
    t_s = segment.steps["t_s"]
    measured = measure_range(session.segments, t_s[100], t_s[200], 1.0)
    assert measured.steps == measured.steady == 100
    assert measured.median_ms == pytest.approx(np.median(segment.steps["gpu_ms"][rows]))
    assert measured.p95_ms == pytest.approx(np.percentile(segment.steps["gpu_ms"][rows], 95))
    assert measured.peak_bytes == segment.steps["peak"][rows].max()
    assert measure_range(session.segments, -2.0, -1.0, 1.0).text() == "0 steps"


def test_the_slowest_step_is_shown_with_what_happened_in_it(qtbot, panel, workspace):
    session = panel.run.session
    segment = session.segments[1]
    row = 150
    segment.steps["gpu_ms"][row] = 500.0
    t_s = float(segment.steps["t_s"][row])
    session.events.append(Event(t_s + 0.1, "warning", "another process used the GPU"))
    panel.moments.jump_to_slowest()
    assert f"Step {row} of #1" in panel.moments.bar.text
    assert "another process used the GPU" in panel.moments.bar.text
    assert "x the segment's median" in panel.moments.bar.text
    start, stop = panel.view_span()
    assert start < panel.run.axis.position(t_s) < stop and stop - start < 30
    wanted = []
    workspace.session.eventsWanted.connect(wanted.append)
    panel.moments.bar.events.click()
    assert wanted == [t_s]


def test_a_lower_clock_is_among_what_explains_a_step():
    session = gpu_session(1, 300)
    step = step_at(session.segments[0], 200)
    table = next(iter(session.telemetry.values()))
    row = int(np.searchsorted(table["t_s"], step.t_s)) - 1
    table["sm_clock"][row : row + 2] = 900.0
    assert any("below its median" in clause for clause in explain_step(session, step))


def test_a_click_on_a_step_explains_it(panel):
    segment = panel.run.session.segments[2]
    position = panel.run.axis.position(float(segment.steps["t_s"][200]))
    panel.show_span(position - 0.2, position + 0.2)
    panel.charts["step_time"].clicked.emit(QPointF(position, 10.0))
    assert "Step 200 of #2" in panel.moments.bar.text


@pytest.mark.parametrize("window", [RUN, SEGMENT])
def test_the_view_can_follow_the_run_or_the_segment(qtbot, panel, window):
    panel.set_window(window)
    qtbot.waitUntil(lambda: not panel._timer.isActive())
    axis, segments = panel.run.axis, panel.run.chosen()
    first, last = axis.run_span() if window == RUN else axis.segment_span(segments[-1])
    start, stop = panel.view_span()
    assert start <= first and stop >= last
    assert stop - start <= 1.6 * (last - first)


def test_a_live_run_whose_end_is_before_its_begin_has_a_range_to_show(panel):
    assert panel._session.live
    for start, stop in ((3.0, 2.0), (3.0, 3.0), (3.0, 4.0)):
        left, right = panel._range(start, stop)
        assert left < start < right


def test_a_note_and_a_bookmark_are_stored_at_their_moment(qtbot, panel, workspace, tmp_path):
    panel.charts["step_time"].cursorMoved.emit(3.0)
    panel.moments.bookmark()
    panel.moments.add_note()
    dialog = panel.findChild(QInputDialog)
    dialog.setTextValue("the fan started")
    dialog.accept()
    t_s = float(panel.run.axis.times_s(3.0))
    written = [event for event in workspace.session.shown.events if event.t_s == pytest.approx(t_s)]
    assert [(event.kind, event.text) for event in written] == [
        ("bookmark", "Bookmark"),
        ("note", "the fan started"),
    ]
    qtbot.waitUntil(
        lambda: "the fan started"
        in [mark.text for layer in panel.charts["step_time"].canvas.layers
            for mark in getattr(layer, "marks", [])]
    )  # fmt: skip


def test_a_note_to_an_opened_file_is_written_to_it(qtbot, workspace, tmp_path):
    path = tmp_path / "session.h5"
    hdf5.save(gpu_session(1, 50), path)
    workspace.session.open(path)
    qtbot.waitUntil(lambda: workspace.session.path == path)
    workspace.session.add_note("too hot", 1.5)
    qtbot.waitUntil(lambda: hdf5.load(path).events[-1:] == [Event(1.5, "note", "too hot")])


def test_a_note_without_a_moment_stands_at_the_end_of_an_opened_session(qtbot, workspace, tmp_path):
    path = tmp_path / "session.h5"
    hdf5.save(gpu_session(2, 50), path)
    workspace.session.open(path)
    qtbot.waitUntil(lambda: workspace.session.path == path)
    shown = workspace.session.shown
    last_step_s = float(shown.segments[-1].steps["t_s"][-1])
    workspace.session.add_note("the fans were loud")
    (note,) = (event for event in shown.events if event.kind == "note")
    assert note.t_s >= last_step_s > 0
    qtbot.waitUntil(lambda: hdf5.load(path).events[-1:] == [note])
    assert log(shown)[-1] == note, "it is the last entry of the log"


def test_a_note_in_a_session_without_any_time_stands_at_its_begin(workspace):
    workspace.session.show(Session(title="empty"))
    workspace.session.add_note("nothing ran")
    assert workspace.session.shown.events == [Event(0.0, "note", "nothing ran")]


def with_a_study():
    """Return a session whose segments 1 and 2 are a sweep's, and whose last order is a run."""
    session = gpu_session(4, 60)
    session.studies = [Study("sweep", "batch 1 to 8", session.segments[1].start_s)]
    kinds = ((0, 0, "start"), (1, 0, "sweep"), (3, 1, "start"))
    session.orders = [
        Order(
            start_s=session.segments[first].start_s,
            command={"type": kind},
            segments=first,
            studies=studies,
        )
        for first, studies, kind in kinds
    ]
    return session


def test_segments_of_a_study_take_no_room_in_live_until_they_are_wanted(qtbot, panel, show):
    show(session := with_a_study())
    assert [segment.index for segment in panel.run.chosen()] == [0, 3]
    hidden_end = panel.run.axis.run_span()[1]
    panel.show_studies(True)
    assert [segment.index for segment in panel.run.chosen()] == [0, 1, 2, 3]
    assert panel.run.axis.run_span()[1] > hidden_end + 1
    panel.show_studies(False)
    middle = session.segments[1].start_s + 1
    panel.focus(middle)
    assert panel.run.hidden == frozenset(), "a moment of a study shows it"
    assert sum(panel.view_span()) / 2 == pytest.approx(panel.run.axis.position(middle))
    session.orders.pop()
    session.segments.pop()
    panel.show_studies(False)
    assert len(panel.run.chosen()) == 3, "the last study may be running"


def test_the_log_has_runs_and_studies():
    session = with_a_study()
    entries = [(event.kind, event.text) for event in log(session)]
    assert ("study", "Sweep: batch 1 to 8") in entries
    assert [text for kind, text in entries if kind == "run"][-1] == "Run ended: 60 steps"
    assert [text for kind, text in log_of_running(session)][-1].startswith("Run started")


def log_of_running(session):
    return [(event.kind, event.text) for event in log(session, running=True) if event.kind == "run"]


def test_a_single_step_is_named_in_the_singular():
    configuration = Configuration(family="hydra", preset="tiny", workload="train")
    segment = Segment(index=0, label="a", configuration=configuration, start_s=0.0)
    segment.steps = {"t_s": np.ones(1)}
    order = Order(start_s=0.0, command={"type": "start"})
    events = log(Session(title="short", segments=[segment], orders=[order]))
    range_text = RangeStatistics(1.0, 1, 1, 2.0, 2.0, math.nan).text()
    for text in (events[-1].text, range_text):
        assert "1 step" in text and "1 steps" not in text
