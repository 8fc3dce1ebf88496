import re
import threading

import numpy as np
import pytest
from hang_limit import HANG_S
from PySide6.QtCore import QPoint, QPointF, QRectF, Qt
from PySide6.QtGui import QGuiApplication, QImage, QWheelEvent
from PySide6.QtWidgets import QApplication
from synthetic import cpu_session, gpu_session

from sessions.model import Event, Phase, PhaseSpan, Session
from workbench import plot_export
from workbench.plots import PLOTS, Run
from workbench.theming.theme import DARK, LIGHT
from workbench.ui import panel_list
from workbench.ui.panels._chart import Chart
from workbench.ui.panels.live import SHOWN


@pytest.fixture
def panel(qtbot, workspace):
    panel = panel_list.live(workspace)
    qtbot.addWidget(panel)
    panel.resize(1000, 700)
    panel.show()
    return panel


@pytest.fixture
def running(qtbot, panel, show):
    """Return the panel with a session that is being recorded."""
    show(gpu_session(2, 300, seed=4))
    qtbot.waitUntil(lambda: panel.is_drawn)
    assert panel.charts["step_time"].reason is None
    return panel


def grow(workspace, seconds=5.0):
    """Announce new steps, as the window's state does."""
    segment = workspace.session.shown.segments[-1]
    last = float(segment.steps["t_s"][-1])
    t_s = last + np.arange(1, 51) * seconds / 50
    columns = {name: np.full(50, segment.steps[name][-1]) for name in segment.steps}
    segment.steps.append(columns | {"t_s": t_s})
    span = segment.phases[-1]
    segment.phases[-1] = PhaseSpan(Phase.STEADY, span.start_s, float(t_s[-1]))
    workspace.session.dataArrived.emit()
    return end_of(workspace.session.shown)


def end_of(session):
    """Return where the axis of a session ends."""
    return Run(session).axis.run_span()[1]


def ranges(panel):
    return [tuple(chart.canvas.vb.viewRange()[0]) for chart in panel.shown]


def wheel(chart):
    """Zoom with the wheel over the middle of the plot, as a person does."""
    view = chart._view
    center = QPointF(view.mapFromScene(chart.canvas.vb.sceneBoundingRect().center()))
    event = QWheelEvent(
        center,
        view.mapToGlobal(center),
        QPoint(),
        QPoint(0, 120),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(view.viewport(), event)


def test_an_empty_session_says_what_would_fill_the_panel(panel):
    assert panel._stack.currentWidget() is panel._empty


def test_the_first_plots_are_the_four_that_matter_and_more_can_be_chosen(running):
    assert [chart.plot.name for chart in running.shown] == list(SHOWN)
    running.show_plot("throughput")
    running.show_plot("power", False)
    assert {chart.plot.name for chart in running.shown} == {*SHOWN, "throughput"} - {"power"}
    running.show_plot("power")


def test_the_view_follows_the_newest_step(qtbot, running, workspace):
    last = grow(workspace)
    qtbot.waitUntil(lambda: ranges(running)[0][1] >= last)
    assert len(set(ranges(running))) == 1
    running.set_window(10.0)
    qtbot.waitUntil(lambda: ranges(running)[0][0] == pytest.approx(last - 10))
    last = grow(workspace)
    qtbot.waitUntil(lambda: ranges(running)[0][0] == pytest.approx(last - 10))


def test_a_held_view_does_not_move_and_draws_nothing_new_while_steps_arrive(
    qtbot, running, workspace
):
    workspace.session.set_follow(False)
    before = ranges(running)
    drawn = running.charts["step_time"].canvas.x_span()
    grow(workspace)
    qtbot.waitUntil(lambda: "50 steps since" in running._status.text())
    qtbot.wait(60)
    assert ranges(running) == before
    assert running.charts["step_time"].canvas.x_span() == drawn
    assert running._live.isVisible() and not running._hold.isVisible()


def test_jump_to_live_catches_up(qtbot, running, workspace):
    workspace.session.set_follow(False)
    last = grow(workspace)
    qtbot.wait(40)
    qtbot.mouseClick(running._live, Qt.MouseButton.LeftButton)
    assert workspace.session.follow
    qtbot.waitUntil(lambda: ranges(running)[0][1] >= last)
    assert running._hold.isVisible() and not running._live.isVisible()
    assert running._status.text() == ""


def test_zooming_one_plot_holds_the_view_and_moves_all(qtbot, running, workspace):
    before = ranges(running)[0]
    wheel(running.charts["memory"])
    assert not workspace.session.follow
    after = ranges(running)
    assert len(set(after)) == 1
    assert after[0][1] - after[0][0] < before[1] - before[0]
    grow(workspace)
    qtbot.wait(60)
    assert ranges(running) == after


def test_a_double_click_shows_everything_and_follows_again(qtbot, running, workspace):
    wheel(running.charts["memory"])
    running.charts["memory"].reset()
    assert workspace.session.follow
    last = end_of(workspace.session.shown)
    qtbot.waitUntil(lambda: ranges(running)[0][1] >= last)


def test_a_time_that_is_asked_for_is_shown_and_held(running, workspace):
    workspace.session.focus(5.0)
    assert not workspace.session.follow
    start, stop = ranges(running)[0]
    assert (start + stop) / 2 == pytest.approx(running._run.axis.position(5.0))


def test_the_crosshair_is_linked_and_reads_every_plot(qtbot, running):
    chart = running.charts["step_time"]
    box = chart.canvas.vb.sceneBoundingRect()
    chart._view.scene().sigMouseMoved.emit(box.center())
    places = {shown.canvas._cursor.line_x for shown in running.shown}
    assert len(places) == 1 and None not in places
    cursor = places.pop()
    assert running._place.text().startswith("at ")
    memory = running.charts["memory"].canvas
    reading = {entry.name: entry.reading(cursor) for entry in memory.entries() if entry.reading}
    segment = running._run.session.segments[0]
    row = int(np.searchsorted(segment.steps["t_s"], cursor, side="right")) - 1
    peak = float(segment.steps["peak"][row])
    assert reading["peak"] == f"{peak / 2**30:.1f} GiB"
    chart.cursorMoved.emit(None)
    assert {shown.canvas._cursor.line_x for shown in running.shown} == {None}
    assert running._place.text() == ""


def test_stacked_plots_line_up(qtbot, running):
    def lined_up() -> bool:
        boxes = [chart.canvas.vb.sceneBoundingRect() for chart in running.shown]
        sides = (QRectF.left, QRectF.right)
        return all(len({round(side(box)) for box in boxes}) == 1 for side in sides)

    qtbot.waitUntil(lined_up)


def test_only_the_lowest_plot_with_data_names_the_times(qtbot, panel, show):
    show(cpu_session())
    qtbot.waitUntil(lambda: panel.is_drawn)
    assert panel.charts["power"].reason is not None
    named = [c.plot.name for c in panel.shown if c.canvas.axis("bottom").texts and not c.reason]
    assert named == ["utilization"]


def test_a_plot_appears_when_its_first_data_arrives(qtbot, panel, show, workspace):
    session = gpu_session(1, 50)
    telemetry, session.telemetry = session.telemetry, {}
    show(session)
    qtbot.waitUntil(lambda: panel.charts["step_time"].reason is None)
    assert panel.charts["power"].reason == "This session has no telemetry."
    session.telemetry = telemetry
    workspace.session.dataArrived.emit()  # once: nothing need follow for it to be seen
    qtbot.waitUntil(lambda: panel.charts["power"].reason is None)


def test_a_new_segment_and_its_marker_appear_while_following(qtbot, running, workspace):
    grown = gpu_session(3, 300, seed=4)
    workspace.session.shown.segments.append(grown.segments[2])
    workspace.session.shown.events.append(
        Event(grown.segments[2].start_s, "toggle", "compile: default")
    )
    workspace.session.segmentsChanged.emit()
    last = running._run.axis.position(float(grown.segments[2].steps["t_s"][-1]))
    canvas = running.charts["step_time"].canvas
    qtbot.waitUntil(lambda: canvas.x_span()[1] == last)
    assert "compile: default" in [label[3] for label in canvas.lane._labels]


def test_another_session_replaces_the_plots_and_is_followed(qtbot, running, workspace, show):
    workspace.session.set_follow(False)
    show(cpu_session())
    qtbot.waitUntil(lambda: running.charts["power"].reason is not None)
    assert workspace.session.follow


def test_a_session_from_a_file_is_shown_whole_whatever_the_window(qtbot, running, workspace):
    running.set_window(10.0)
    session = gpu_session(4, 300)
    workspace.session.shown = session
    workspace.session.sessionChanged.emit()
    assert not workspace.session.live
    last = end_of(session)
    qtbot.waitUntil(lambda: running.is_drawn)
    assert ranges(running)[0][1] >= last
    assert ranges(running)[0][0] <= 0.0


def test_a_moment_that_is_asked_for_before_all_plots_are_drawn_is_shown(running, workspace):
    workspace.session.show(gpu_session(4, 300))
    assert not running.is_drawn
    workspace.session.focus(20.0)
    assert running.is_drawn and not workspace.session.follow
    assert len(set(ranges(running))) == 1
    start, stop = ranges(running)[0]
    assert (start + stop) / 2 == pytest.approx(running.run.axis.position(20.0))
    assert stop - start >= end_of(workspace.session.shown)


def test_a_plot_that_is_zoomed_before_all_plots_are_drawn_keeps_its_range(
    qtbot, running, workspace
):
    workspace.session.show(gpu_session(4, 300))
    wheel(running.charts["memory"])
    after = ranges(running)
    assert len(set(after)) == 1 and running.is_drawn and not workspace.session.follow
    qtbot.wait(60)
    assert ranges(running) == after


def test_a_view_that_is_paused_before_all_plots_are_drawn_shows_the_whole_session(
    qtbot, running, workspace
):
    workspace.session.show(gpu_session(4, 300))
    workspace.session.set_follow(False)
    assert not running.is_drawn
    qtbot.waitUntil(lambda: running.is_drawn)
    assert len(set(ranges(running))) == 1
    assert ranges(running)[0][1] >= end_of(workspace.session.shown)


def test_the_theme_changes_without_moving_the_view(qtbot, running, workspace):
    workspace.session.focus(4.0)
    before = ranges(running)
    workspace.theme.set(LIGHT)
    assert ranges(running) == before
    assert all(chart.canvas.chart_style.theme is LIGHT for chart in running.shown)
    image = running.charts["memory"].grab().toImage()
    assert image.pixelColor(3, 3).name() == LIGHT.surface


def test_the_selected_segment_is_tinted(qtbot, running, workspace):
    canvas = running.charts["memory"].canvas
    before = running.charts["memory"].grab().toImage()
    workspace.session.select(1)
    qtbot.waitUntil(lambda: running._run.selected == 1 and not running._timer.isActive())
    start = workspace.session.shown.segments[1].start_s + 0.5
    point = canvas.vb.mapViewToScene(QPointF(start, canvas.vb.viewRange()[1][1] * 0.95)).toPoint()
    after = running.charts["memory"].grab().toImage()
    assert before.pixelColor(point) != after.pixelColor(point)


def test_the_menu_of_a_plot_offers_its_options_copy_and_export(running):
    texts = [action.text() for action in running.charts["power"].menu().actions()]
    assert "Right: sm clock" in texts and "Right: temperature" in texts
    assert {"Copy as image", "Copy as data", "Export PNG …", "Export CSV …"} <= set(texts)
    running.charts["power"].set_option("right", "temperature")
    assert running.charts["power"].canvas.axis("right").title == "Temperature"


def test_the_y_axis_can_leave_zero(running):
    chart = running.charts["memory"]
    assert chart.canvas.vb.viewRange()[1][0] == 0
    chart.set_zero(False)
    assert chart.canvas.vb.viewRange()[1][0] > 2**30


def test_a_chosen_file_is_written_and_a_mistake_is_told(qtbot, running, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr("PySide6.QtWidgets.QMessageBox.warning", lambda *a: warnings.append(a[2]))
    for name in ("chart", "no/such/folder/chart.png"):
        chosen = (str(tmp_path / name), "Vector drawing (*.svg)")
        monkeypatch.setattr("PySide6.QtWidgets.QFileDialog.getSaveFileName", lambda *a, c=chosen: c)
        running.export_plot()
    qtbot.waitUntil(lambda: bool(warnings) and (tmp_path / "chart.svg").exists())
    assert (tmp_path / "chart.svg").read_text().startswith("<?xml")
    assert len(warnings) == 1 and "choose another place" in warnings[0]


def test_the_stack_goes_to_the_clipboard_as_it_is_seen(running):
    running.copy_image()
    assert QGuiApplication.clipboard().image().width() == running._splitter.width()


def test_a_hidden_panel_does_no_work_until_it_is_shown(qtbot, running, workspace):
    running.hide()
    drawn = running.charts["step_time"].canvas.x_span()
    last = grow(workspace)
    qtbot.wait(50)
    assert running.charts["step_time"].canvas.x_span() == drawn
    running.show()
    qtbot.waitUntil(lambda: running.charts["step_time"].canvas.x_span()[1] == last)


def test_a_session_that_begins_to_run_replaces_the_empty_page(qtbot, panel, show, workspace):
    session = Session()
    show(session)
    assert panel._stack.currentWidget() is panel._empty
    session.segments.extend(gpu_session(1, 60).segments)
    workspace.session.segmentsChanged.emit()
    qtbot.waitUntil(lambda: panel._stack.currentWidget() is panel._area)
    chart = panel.charts["step_time"]
    qtbot.waitUntil(lambda: chart.reason is None)
    last = end_of(session)
    qtbot.waitUntil(lambda: chart.canvas.vb.viewRange()[0][1] >= last)


def pixels(image):
    """Red, green and blue of an image (height, width, 3)."""
    image = image.convertToFormat(QImage.Format.Format_RGB32)
    flat = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.width(), 4)
    return flat[:, :, :3].astype(int)


def test_what_is_painted_piece_by_piece_is_what_would_be_painted_at_once(qtbot, running, workspace):
    for _ in range(25):
        grow(workspace, seconds=0.08)
        qtbot.wait(20)
    qtbot.waitUntil(lambda: not running._timer.isActive())
    qtbot.wait(50)  # what is due is painted some milliseconds later
    seen = QGuiApplication.primaryScreen().grabWindow(running.winId()).toImage()
    at_once = running.grab().toImage()
    different = (abs(pixels(seen) - pixels(at_once)) > 40).any(axis=2)
    newest = float(workspace.session.shown.segments[-1].steps["t_s"][-1])
    for chart in running.shown:  # the plots themselves; readings above them are renewed at leisure
        box = chart.canvas.vb.sceneBoundingRect().toRect()
        end = round(chart.canvas.vb.mapViewToScene(QPointF(newest, 0)).x()) + 2
        origin = chart._view.mapTo(running, QPoint(0, 0))
        rows = slice(origin.y() + box.top() + 1, origin.y() + box.bottom() - 1)
        part = different[rows, origin.x() + end - 60 : origin.x() + end]
        assert part.sum() <= 4


@pytest.mark.parametrize("to_a_file", [True, False])
def test_while_a_plots_data_is_written_or_copied_the_window_goes_on_and_the_cursor_says_so(
    qtbot, tasks, monkeypatch, tmp_path, to_a_file
):
    """Two million steps took twelve seconds, in which the window was dead."""
    chart, hold = Chart(PLOTS["step_time"], DARK, tasks), threading.Event()
    qtbot.addWidget(chart)
    chart.runs = [Run(gpu_session(1, 50))]
    path, csv_bytes = tmp_path / "steps.csv", plot_export.csv_bytes

    def write(*arguments, **options):
        assert hold.wait(HANG_S)
        return csv_bytes(*arguments, **options)

    monkeypatch.setattr(plot_export, "csv_bytes", write)
    monkeypatch.setattr("workbench.ui.panels._chart.message_boxes.file_to_write", lambda *_: path)
    usual = chart.cursor().shape()
    chart.export_plot(".csv") if to_a_file else chart.copy_data()
    chart.copy_data()
    assert chart.cursor().shape() == Qt.CursorShape.BusyCursor
    hold.set()
    qtbot.waitUntil(lambda: chart.cursor().shape() == usual)
    text = path.read_text() if to_a_file else QGuiApplication.clipboard().text()
    first, *rows = text.splitlines()
    assert re.split("[,\t]", first)[0] == "session" and len(rows) == 50


def test_what_hinders_the_writing_is_told(qtbot, tasks, monkeypatch, tmp_path):
    chart, warnings = Chart(PLOTS["step_time"], DARK, tasks), []
    qtbot.addWidget(chart)

    def shown(*arguments):
        warnings.append(arguments)

    monkeypatch.setattr("workbench.ui.panels._chart.QMessageBox.warning", shown)
    path = tmp_path / "no" / "such" / "folder.csv"
    monkeypatch.setattr("workbench.ui.panels._chart.message_boxes.file_to_write", lambda *_: path)
    chart.export_plot(".csv")
    qtbot.waitUntil(lambda: len(warnings) == 1)
    assert "No step has been timed yet" in warnings[0][2]
    chart.runs = [Run(gpu_session(1, 50))]
    chart.export_plot(".csv")
    qtbot.waitUntil(lambda: len(warnings) == 2)
    assert "choose another place" in warnings[1][2]
