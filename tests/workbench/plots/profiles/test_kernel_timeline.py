"""The kernel timeline and the roofline of a profile: drawn, searched, measured, tried next."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import profile_samples
import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from test_plots import STYLES, ink, painted

from sessions.model import Segment, Session
from sessions.studies import breakdown, timeline
from workbench.plots import PLOTS, Run
from workbench.plots.kernel_timeline import Slices
from workbench.plots.profile_roofline import Operators
from workbench.ui import panel_list
from workbench.ui.panels._next_steps import _Row
from workbench.ui.process.gc_timer import GcTimer


@pytest.fixture(scope="module")
def profiled() -> Session:
    made = Session(title="profiled")
    for number in (0, 1):
        made.studies.append(profile_samples.rich_study(blocks=3, faster=0.8**number))
        made.segments.append(Segment(number, profile_samples.session().segments[0].configuration,
                                     "defaults"))  # fmt: skip
    return made


@pytest.fixture
def panel(qtbot, workspace, show, profiled):
    gc.collect()
    timer = GcTimer(workspace)
    panel = panel_list.breakdown(workspace)
    qtbot.addWidget(panel)
    panel.resize(900, 560)
    panel.show()
    show(profiled)
    yield panel
    timer.stop()


@pytest.mark.parametrize("style", sorted(STYLES))
@pytest.mark.parametrize("name", ["kernel_timeline", "profile_roofline"])
def test_it_is_drawn_in_every_style_and_exported_as_data(profiled, name, style):
    run = Run(profiled)
    assert PLOTS[name].can_show([run]) is None
    image, _ = painted(PLOTS[name], [run], STYLES[style])
    assert ink(image, STYLES[style].theme.surface) > 0.02
    table = PLOTS[name].table([run])
    assert len({len(column) for column in table.values()}) == 1


def test_a_timeline_without_a_track_of_a_known_kind_has_an_empty_picture(profiled):
    study = profiled.studies[0]
    tracks = dict(study.tables["tracks"])
    tracks["kind"] = np.array(["of another version"] * len(tracks["kind"]), object)
    tables = {**study.tables, "tracks": tracks}
    strange = Session(title="strange", segments=profiled.segments[:1])
    strange.studies.append(dataclasses.replace(study, tables=tables))
    image, canvas = painted(PLOTS["kernel_timeline"], [Run(strange)], STYLES["dark"])
    assert not image.isNull() and canvas.vb.viewRange()[1][0] < canvas.vb.viewRange()[1][1]


@pytest.mark.parametrize("name", ["kernel_timeline", "profile_roofline"])
def test_an_older_profile_says_why_it_is_not_drawn(name):
    reason = PLOTS[name].can_show([Run(profile_samples.session(1))])
    assert reason and reason.endswith(".")


def test_every_slice_is_found_where_it_is_drawn(profiled):
    _, canvas = painted(PLOTS["kernel_timeline"], [Run(profiled)], STYLES["dark"])
    layer = next(layer for layer in canvas.layers if isinstance(layer, Slices))
    for top, lane in zip(layer._tops, layer.lanes, strict=False):
        for index in range(0, len(lane.start), 37):
            y = -(top + lane.depth[index] + 0.5)
            hit = layer.at((lane.start[index] + lane.stop[index]) / 2, y)
            assert hit is not None and hit.lane is lane
            assert (hit.start_us, hit.stop_us) == (lane.start[index], lane.stop[index])
    assert layer.at(-5.0, -0.5) is None and layer.at(1.0, -1000.0) is None


def test_a_dot_lies_as_far_below_the_roof_as_it_is_from_attainable(profiled):
    study = breakdown.profiles(profiled)[0]
    rate, flops = breakdown.ceilings(study)
    points = {point.name: point for point in breakdown.roof_points(study)}
    attainable = min(points["rms_norm"].intensity * rate, max(flops.values()))
    assert points["rms_norm"].achieved / attainable == pytest.approx(points["rms_norm"].share)
    assert points["rms_norm"].share == pytest.approx(0.4)
    _, canvas = painted(PLOTS["profile_roofline"], [Run(profiled)], STYLES["light"])
    (layer,) = (layer for layer in canvas.layers if isinstance(layer, Operators))
    biggest = layer.points[-1]
    position = QPointF(np.log10(biggest.intensity), np.log10(biggest.achieved))
    assert layer.at(canvas._frame(canvas.vb.rect()), position) is biggest


def test_search_fades_the_rest_and_sums_the_matches(panel):
    page = panel.timeline
    page.search.setText("flash")
    assert page.statistics.rowCount() == 1 and page.statistics.item(0, 0).text().startswith("flash")
    assert "matches overall" in page.range.text()
    assert page.layer._matching is not None
    page.search.setText("")
    assert page.layer._matching is None and page.statistics.isHidden()


def test_shift_and_drag_selects_a_range_with_its_statistics(panel):
    page = panel.timeline
    page.chart.grab()
    viewport = page.chart._view.viewport()
    box = page.chart.canvas.vb.sceneBoundingRect()
    y = box.center().y()
    points = [
        page.chart._view.mapFromScene(QPointF(box.left() + share * box.width(), y))
        for share in (0.2, 0.6)
    ]
    drag = ((QEvent.Type.MouseButtonPress, points[0]), (QEvent.Type.MouseMove, points[1]),
            (QEvent.Type.MouseButtonRelease, points[1]))  # fmt: skip
    left, shift = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ShiftModifier
    for kind, point in drag:
        where = QPointF(point)
        QApplication.sendEvent(viewport, QMouseEvent(kind, where, where, left, left, shift))
    start, stop = page.layer.selection
    end = page.layer.timeline.end_us
    assert (start, stop) == (pytest.approx(0.2 * end, rel=0.05), pytest.approx(0.6 * end, rel=0.05))
    assert page.range.text().startswith("Selected: ") and "GPU idle" in page.range.text()
    total = sum(row.total_us for row in page.layer.timeline.statistics(start, stop))
    shown = sum(float(page.statistics.table.rows[n][2]) for n in range(page.statistics.rowCount()))
    assert shown == pytest.approx(total)
    page.chart.reset()
    assert page.layer.selection is None and page.statistics.isHidden()


def test_w_a_s_d_zoom_and_move(panel):
    chart = panel.timeline.chart

    def width():
        low, high = chart.canvas.vb.viewRange()[0]
        return high - low

    everything = width()
    QTest.keyClick(chart.more, Qt.Key.Key_W)
    QTest.keyClick(chart.more, Qt.Key.Key_W)
    assert width() < everything / 2
    before = chart.canvas.vb.viewRange()[0][0]
    QTest.keyClick(chart.more, Qt.Key.Key_D)
    assert chart.canvas.vb.viewRange()[0][0] > before
    QTest.keyClick(chart.more, Qt.Key.Key_A)
    QTest.keyClick(chart.more, Qt.Key.Key_S)
    assert width() > everything / 2.4


def test_kernels_are_searched_by_module_and_sorted_by_a_click(panel):
    searched = panel.searched
    headings = [column.name for column in searched.view.table.columns]
    assert headings[-1] == "Of attainable"
    searched.search.setText("blocks.1.attention.qkv")
    assert searched.view.rowCount() == 1
    searched.search.setText("")
    shares = headings.index("Of attainable")
    searched.view.horizontalHeader().sectionClicked.emit(shares)
    values = [row[shares] for row in searched.view.table.rows if row[shares] == row[shares]]
    assert values == sorted(values, reverse=True)
    searched.view.horizontalHeader().sectionClicked.emit(0)
    names = [row[0].casefold() for row in searched.view.table.rows]
    assert names == sorted(names)


def test_a_suggestion_can_be_applied_or_judged_and_shows_what_it_follows_from(
    qtbot, workspace, panel
):
    rows = panel.next_steps.findChildren(_Row)
    assert 2 <= len(rows) <= 3
    assert not rows[0].apply.isEnabled()
    assert rows[0].apply.toolTip() == "The runner has not started yet."
    rows[0].expander.setChecked(True)
    assert not rows[0].details.isHidden() and rows[0].details.rowCount() >= 1
    assert "up to" in rows[0].text._whole


def test_all_lanes_of_what_is_selected_add_up_to_the_table(profiled):
    study = breakdown.profiles(profiled)[0]
    data = timeline.of(study)
    stats = data.statistics(0.0, data.end_us)
    kernels = data.of_kind(breakdown.STREAM_TRACK)
    assert sum(row.count for row in stats) == len(kernels)
