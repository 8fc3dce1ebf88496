"""Legibility of plots: no text covers another, and nothing important is cut."""

from __future__ import annotations

import attribution_samples
import pytest
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter, QPen, QPixmap
from PySide6.QtWidgets import QGraphicsWidget
from synthetic import cpu_session, gpu_session
from test_plots import STYLES, painted

from sessions.columns import Columns
from sessions.model import STEP_COLUMNS, Event
from sessions.studies import sweep
from sessions.studies.scaling import Scaling
from workbench.charts.header import Header
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry
from workbench.plots import PLOTS, Run
from workbench.plots._distributions import MOST
from workbench.plots._waterfall import Bar, Bars
from workbench.theming.theme import DARK, LIGHT
from workbench.ui import panel_list
from workbench.ui.panels._chart import Chart
from workbench.ui.panels.live import _LEAST_PX, _LINE_PX


class Noting(QPainter):
    """Paints, and notes where texts and lines went: their ends on the x axis."""

    def __init__(self, on: QPixmap) -> None:
        super().__init__(on)
        self.texts: list[tuple[float, float]] = []
        self.lines: list[tuple[float, float]] = []

    def drawText(self, point: QPointF, text: str) -> None:
        width = self.fontMetrics().horizontalAdvance(text)
        self.texts.append((point.x(), point.x() + width))
        super().drawText(point, text)

    def drawLine(self, start: QPointF, end: QPointF) -> None:
        if start.y() == end.y():
            self.lines.append((start.x(), end.x()))
        super().drawLine(start, end)


def test_a_reading_that_grows_beyond_what_was_reserved_covers_no_other_entry():
    reading = ["21 ms"]
    header = Header(STYLES["dark"])
    header.readings = True
    header.setGeometry(QRectF(0, 0, 900, 20))
    pen, brush = QPen(), QBrush()
    entries = [
        Entry("band", "band", pen, brush, lambda _: reading[0], "88 ms"),
        Entry("median", "line", pen, brush, lambda _: "1 ms", "88 ms"),
    ]
    header.set_entries(entries)
    for reading[0] in ("21 ms", "209 µs – 2.41 ms and what else a reading says"):
        header.set_cursor(1.0)
        metrics = QFontMetricsF(STYLES["dark"].font())
        (first, row), (second, other_row) = header._corners
        end = first + 27 + metrics.horizontalAdvance("band") + 6
        assert row == other_row and end + metrics.horizontalAdvance(reading[0]) < second


def test_the_newest_of_crowded_markers_is_named():
    session = gpu_session(1, 200)
    last = float(session.segments[-1].steps["t_s"][-1])
    for share in (0.3, 0.55, 0.8):
        text = f"a change that takes many words to tell of, at {share}"
        session.events.append(Event(share * last, "note", text))
    _, canvas = painted(PLOTS["step_time"], [Run(session)], STYLES["dark"], size=(700, 140))
    labels = [(x, text) for x, _, _, text, mark in canvas.lane._labels if mark.kind == "note"]
    assert len(labels) == 3 and all(text for _, text in labels), labels


@pytest.mark.parametrize("name", ["box", "attribution"])
def test_long_names_leave_a_narrow_chart_most_of_its_room(name):
    words = "a name that somebody gave it who had much to say"
    session = gpu_session(3, 120, title=words, labels=tuple(f"{words} {n}" for n in range(3)))
    toggles = {f"{words.replace(' ', '_')}_{n}": "on" for n in range(2)}
    session.studies.append(attribution_samples.study(toggles=toggles))
    for width in (240, 320, 900):
        _, canvas = painted(PLOTS[name], [Run(session)], STYLES["dark"], size=(width, 300))
        assert canvas.vb.rect().width() > 0.5 * width


@pytest.mark.parametrize("high", [150.0, 320.0])
def test_the_label_of_an_effect_is_never_on_its_interval(high):
    bar = Bar(1, "time", 110.0, 100.0, low=60.0, high=high, is_total=False, ratio=0.91)
    layer = Bars("time", [bar], -1, STYLES["dark"])
    pixmap = QPixmap(400, 100)
    painter = Noting(pixmap)
    layer.draw(painter, Frame((0.0, 330.0), (-2.0, 0.0), 400.0, 100.0))
    painter.end()
    ((left, right),) = painter.texts
    start, stop = max(painter.lines, key=lambda line: line[1] - line[0])
    assert right < start or left > stop


def test_the_label_of_all_together_lies_on_no_axis_where_there_is_room_on_its_bar():
    bar = Bar(1, "time", 0.0, 170.0, low=105.0, high=280.0, is_total=True, ratio=1.7)
    layer = Bars("time", [bar], -1, STYLES["dark"])
    frame = Frame((-30.0, 290.0), (-2.0, 0.0), 200.0, 100.0)
    pixmap = QPixmap(200, 100)
    painter = Noting(pixmap)
    layer.draw(painter, frame)
    painter.end()
    ((left, right),) = painter.texts
    assert frame.px(0.0) < left < right < frame.px(bar.low)


@pytest.mark.parametrize("name", ["ecdf", "box"])
def test_very_many_configurations_leave_the_plot_its_room_and_what_is_left_out_is_told(name):
    session = gpu_session(3 * MOST, 30)
    _, canvas = painted(PLOTS[name], [Run(session)], STYLES["print"], size=(900, 520))
    assert len(canvas.layers) == MOST
    assert f"{MOST} of {3 * MOST}" in canvas.header.subtitle
    assert canvas.vb.rect().height() > 520 / 2
    few = gpu_session(MOST, 30)
    _, canvas = painted(PLOTS[name], [Run(few)], STYLES["print"], size=(900, 520))
    assert len(canvas.layers) == MOST and "of" not in canvas.header.subtitle


def test_a_chart_that_names_nothing_still_names_nothing_in_another_theme(qtbot, tasks):
    chart = Chart(PLOTS["memory"], DARK, tasks)
    qtbot.addWidget(chart)
    chart.show_runs([Run(gpu_session(2, 40))])
    chart.canvas.captions = False
    chart.set_theme(LIGHT)
    assert not chart.canvas.captions


def test_a_plot_without_data_takes_one_line_of_the_live_stack_once_there_are_steps(
    qtbot, workspace, show
):
    panel = panel_list.live(workspace)
    qtbot.addWidget(panel)
    panel.resize(1000, 700)
    panel.show()
    show(cpu_session())
    power, steps = panel.charts["power"], panel.charts["step_time"]
    qtbot.waitUntil(lambda: power.height() <= _LINE_PX and steps.reason is None)
    assert power.reason is not None and steps.height() > 1.5 * _LEAST_PX
    named = [chart.canvas.captions for chart in panel.shown if chart.reason is None]
    assert named == [True] + [False] * (len(named) - 1)
    show(gpu_session(2, 60))
    qtbot.waitUntil(lambda: power.reason is None and power.height() >= _LEAST_PX)


def test_an_exponent_of_two_points_has_two_decimals():
    nan = float("nan")
    scaling = Scaling(2, -0.000184, nan, nan, factor=1.0, scatter=nan, reason="two")
    assert sweep.exponent_text(scaling) == "0.00, no interval: two"


def test_a_field_is_called_by_what_it_counts():
    request = {"fields": ["settings.sequence", "model.n_kv_heads"]}
    study = attribution_samples.study()
    study.request.update(request)
    assert [sweep.field_title(study, index) for index in (0, 1)] == ["sequence", "kv heads"]


@pytest.mark.parametrize("height", [140, 200, 400])
def test_a_legend_leaves_the_plot_most_of_the_room_and_tells_of_what_it_leaves_out(
    qtbot, height, tasks
):
    runs = []
    for number in range(10):
        session = gpu_session()
        session.title = f"A long title that somebody typed, of session number {number}"
        runs.append(Run(session, color=number, segments=(0,)))
    chart = Chart(PLOTS["ecdf"], DARK, tasks)
    qtbot.addWidget(chart)
    chart.readings = True
    chart.resize(520, height)
    chart.show()
    chart.show_runs(runs)
    header, plot = chart.canvas.header, chart.canvas.vb
    qtbot.waitUntil(lambda: bool(header._corners))
    assert header.size().height() <= max(0.45 * height, 2.5 * header._row_px())
    assert plot.size().height() > 0.2 * height
    assert len(header._corners) + header._left_out == 10
    assert (header._left_out > 0) == (height < 400)


def test_a_capped_name_takes_the_room_that_its_row_has(qtbot):
    """Cut in the middle, an exponent reads as another number."""
    host = QGraphicsWidget()
    host.resize(500, 200)  # room for three rows: names of 300 pixels are capped
    header = Header(STYLES["dark"])
    header.setParentItem(host)
    header.setGeometry(QRectF(0, 0, 500, 60))
    metrics = QFontMetricsF(STYLES["dark"].font())
    names = [f"layers {n}, defaults, exponent 0.{n}5 (0.20 to 0.50) of it" for n in range(5)]
    header.set_entries([Entry(name, "line", QPen(), QBrush()) for name in names])
    assert header._cap_px < metrics.horizontalAdvance(names[0])
    drawn = []
    for entry, (x, y), end in zip(header._entries, header._corners, header._ends, strict=False):
        name = header._name(entry, metrics, end - x - 27)
        neighbours = [left for left, row in header._corners if row == y and left > x]
        assert x + 27 + metrics.horizontalAdvance(name) <= min([500.0, *neighbours])
        drawn.append((name, bool(neighbours)))
    assert any(name == entry.name for (name, _), entry in zip(drawn, header._entries, strict=False))


def test_of_a_study_s_many_arms_a_legend_names_a_few_however_large_the_plot(qtbot, tasks):
    chart = Chart(PLOTS["ecdf"], DARK, tasks)
    qtbot.addWidget(chart)
    chart.resize(300, 1200)
    chart.show()
    header = chart.canvas.header
    left_out = {}
    for arms in (10, 40):
        header.set_entries(
            [Entry(f"arm {number}", "line", QPen(), QBrush()) for number in range(arms)]
        )
        assert len(header._corners) + header._left_out == arms
        left_out[arms] = header._left_out
    assert left_out[10] == 0 and left_out[40] > 25
    assert header.size().height() < 4 * header._row_px()


def test_live_plots_scroll_where_the_window_is_too_low_and_cover_nothing(qtbot, workspace):
    panel = panel_list.live(workspace)
    qtbot.addWidget(panel)
    assert panel._splitter.minimumSizeHint().height() > 3 * _LEAST_PX
    assert panel.minimumSizeHint().height() < 2 * _LEAST_PX


def test_live_plots_share_the_height_although_some_had_data_before_others(qtbot, workspace, show):
    panel = panel_list.live(workspace)
    qtbot.addWidget(panel)
    panel.resize(860, 460)
    panel.show()
    session, measured = cpu_session(), cpu_session()
    for segment in session.segments:  # while the model is built there is telemetry alone
        segment.steps = Columns(STEP_COLUMNS)
    show(session)
    utilization = panel.charts["utilization"]
    qtbot.waitUntil(lambda: panel.is_drawn and utilization.height() > panel.shown[0].height())
    for segment, with_steps in zip(session.segments, measured.segments, strict=True):
        segment.steps = with_steps.steps
    workspace.session.dataArrived.emit()
    qtbot.waitUntil(lambda: panel.charts["power"].brief)
    drawn = [chart for chart in panel.shown if not chart.brief]
    panel.resize(900, 1200)
    qtbot.waitUntil(lambda: sum(panel._splitter.sizes()) > 1000)
    heights = [chart.height() for chart in drawn]
    assert len(heights) == 3 and max(heights) - min(heights) < 20, heights


def test_a_plot_that_its_heading_left_no_room_has_it_back_once_less_is_said(qtbot, tasks):
    chart = Chart(PLOTS["memory"], DARK, tasks)
    qtbot.addWidget(chart)
    chart.resize(700, 80)
    chart.show()
    chart.show_runs([Run(gpu_session(3, 60))])
    canvas = chart.canvas
    qtbot.waitUntil(lambda: canvas.vb.rect().height() < 2)
    assert canvas.rect().height() == chart.height(), "it ends where its view ends"
    canvas.captions = canvas.axis("bottom").texts = False
    canvas.refresh()
    assert canvas.vb.rect().height() > 15
    assert canvas.vb.viewRange()[1][1] > 2**30 and canvas.axis("left").fixedWidth is not None


@pytest.mark.parametrize("size", [(500, 300), (700, 360), (1000, 700)])
def test_in_a_small_window_every_live_plot_has_room_for_what_it_draws(qtbot, workspace, show, size):
    panel = panel_list.live(workspace)
    qtbot.addWidget(panel)
    panel.resize(*size)
    panel.show()
    show(gpu_session(3, 60))

    def heights():
        drawn = [chart for chart in panel.shown if chart.reason is None]
        return {chart.plot.title: chart.canvas.vb.size().height() for chart in drawn}

    def roomy():
        assert panel.is_drawn, "the stack is laid out after the last plot"
        assert len(heights()) >= 3 and min(heights().values()) >= 40, heights()

    qtbot.waitUntil(roomy)
    for chart in panel.shown:
        assert chart.canvas.rect().height() == chart.height(), "none ends below its view"
