import dataclasses
import math

import msgspec
import pytest
from PySide6.QtGui import QColor, QGuiApplication
from synthetic import cpu_session, empty_session, gpu_session

from sessions.model import Session
from workbench.theming.theme import LIGHT
from workbench.titles import distinct
from workbench.ui import panel_list


@pytest.fixture
def panel(qtbot, workspace):
    panel = panel_list.compare(workspace)
    qtbot.addWidget(panel)
    panel.resize(1000, 700)
    panel.show()
    return panel


@pytest.fixture
def three(qtbot, panel, workspace):
    """Three compared sessions: the shown one, a faster one, one with four segments."""
    sessions = [
        gpu_session(1, 1600, seed=1, title="base"),
        gpu_session(1, 1600, seed=2, title="faster", typical_ms=15.0),
        gpu_session(4, 1600, seed=3, title="ladder"),
    ]
    workspace.session.shown = sessions[0]
    workspace.session.sessionChanged.emit()
    for session in sessions[1:]:
        workspace.compared.add(session)
    settle(qtbot, panel, 3)
    return sessions


def settle(qtbot, panel, arms):
    def compared():
        assert not panel._busy and not panel._timer.isActive()
        assert panel.result is not None and panel.result.comparison is not None
        assert len(panel.result.comparison.arms) == arms

    qtbot.waitUntil(compared)


def cells(panel, column):
    return [panel.sessions.item(row, column).text() for row in range(panel.sessions.rowCount())]


def test_the_empty_panel_says_what_to_drop(panel, qtbot):
    qtbot.waitUntil(lambda: panel.result is not None)
    assert panel._pages.currentWidget() is panel._empty
    assert "two session files (.h5)" in panel._empty._sentence.text()


def test_ratios_refer_to_the_shown_session_and_say_what_they_show(panel, three):
    assert cells(panel, 0) == ["base", "faster", "ladder"]
    base, faster, ladder = cells(panel, 2)
    assert base == "baseline"
    assert faster.startswith("0.62") and faster.endswith("x step time, unpaired")
    assert ladder.startswith("1.00") and ladder.endswith("x step time, unpaired")
    muted = QColor(LIGHT.muted), QColor(panel._theme.current.muted)
    assert all(panel.sessions.item(row, 2).foreground().color() in muted for row in (1, 2))
    for chart in panel.charts.values():
        assert chart.reason is None


def test_steps_of_other_work_are_called_neither_faster_nor_slower(qtbot, panel, three, workspace):
    smaller = gpu_session(1, 1600, seed=4, title="smaller", typical_ms=10.0)
    segment = smaller.segments[0]
    segment.configuration = msgspec.structs.replace(segment.configuration, settings={"batch": 1})
    workspace.compared.add(smaller)
    settle(qtbot, panel, 4)
    few = gpu_session(1, 40, seed=5, title="few", typical_ms=10.0)
    few.segments[0].configuration = segment.configuration
    workspace.compared.add(few)
    settle(qtbot, panel, 5)
    assert all(ratio.endswith("x step time, other work") for ratio in cells(panel, 2)[3:])
    assert panel.sessions.item(3, 2).foreground().color() == QColor(workspace.theme.current.text)


def test_memory_that_no_allocator_counts_is_called_the_resident_set_here_too(
    qtbot, panel, workspace
):
    def heading():
        return panel.sessions.horizontalHeaderItem(6).text()

    workspace.session.shown = cpu_session()
    workspace.compared.add(cpu_session())
    settle(qtbot, panel, 2)
    assert heading() == "Resident set"
    workspace.compared.add(gpu_session(1, 60, seed=1))
    settle(qtbot, panel, 3)
    assert heading() == "Peak memory"


def test_the_boxes_of_ten_sessions_do_not_touch_nor_their_names(qtbot, panel, workspace):
    sessions = [gpu_session(1, 60, seed, f"number {seed}") for seed in range(10)]
    workspace.session.shown = sessions[0]
    for session in sessions[1:]:
        workspace.compared.add(session)
    settle(qtbot, panel, 10)
    panel.resize(900, 460)  # its place in a window of 1280 x 800
    plot = panel.charts["box"].canvas

    def row_px():
        low, high = plot.fixed_y
        return plot.vb.height() / (high - low)

    qtbot.waitUntil(lambda: row_px() >= panel.fontMetrics().height())


def test_another_baseline_turns_the_ratios_over(qtbot, panel, three):
    panel.set_baseline(three[1])
    qtbot.waitUntil(lambda: cells(panel, 2)[1] == "baseline")
    assert cells(panel, 2)[0].startswith("1.6")


def test_a_session_takes_part_with_the_segment_that_is_chosen(qtbot, panel, three):
    panel.sessions.segmentChosen.emit(three[2], 3)
    qtbot.waitUntil(lambda: not cells(panel, 2)[2].startswith("1.00"))
    run = panel.result.runs[2]
    assert run.segments == (3,)
    assert panel.sessions.cellWidget(2, 1).currentText() == f"3: {three[2].segments[3].label}"


def test_a_session_can_be_taken_out_but_the_shown_one_cannot(qtbot, panel, three, workspace):
    assert not panel.sessions.cellWidget(0, 7).isEnabled()
    panel.sessions.cellWidget(1, 7).click()
    settle(qtbot, panel, 2)
    assert cells(panel, 0) == ["base", "ladder"]
    workspace.compared.clear()
    qtbot.waitUntil(lambda: panel._pages.currentWidget() is panel._empty)


def test_a_different_driver_is_warned_of_and_listed(qtbot, panel, three, workspace):
    other = gpu_session(1, 300, seed=9, title="other driver")
    other.environment["driver"] = "570.10"
    workspace.compared.add(other)
    settle(qtbot, panel, 4)
    assert panel._warning.isVisible()
    assert any("driver differs" in text for text in panel.result.comparison.warnings)
    names = [panel.differences.item(row, 0).text() for row in range(panel.differences.rowCount())]
    assert "environment.driver" in names
    assert panel._tabs.tabText(1) == f"Differences ({len(names)})"


def test_a_session_is_compared_once_and_that_it_is_there_already_is_told(panel, three, workspace):
    count = len(workspace.compared.sessions)
    for session in (workspace.session.shown, workspace.compared.sessions[0]):
        workspace.compared.add(session)
        assert repr(session.title) in workspace.failures.recent[-1].sentence
    assert len(workspace.compared.sessions) == count and len(workspace.failures.recent) == 2


def test_a_compared_session_that_is_opened_is_compared_with_the_others_and_not_with_itself(
    qtbot, panel, three, workspace
):
    before, opened = workspace.session.shown, workspace.compared.sessions[0]
    workspace.session.show(dataclasses.replace(opened))  # read from its file again
    settle(qtbot, panel, 2)
    assert [run.session.id for run in panel.result.runs].count(opened.id) == 1
    assert opened not in workspace.compared.sessions
    workspace.session.show(before)
    settle(qtbot, panel, 3)


def test_a_session_that_is_opened_again_is_compared_as_it_is_now(qtbot, panel, three, workspace):
    longer = gpu_session(1, 2400, seed=1, title="base")
    longer.id = three[0].id
    workspace.session.show(longer)
    settle(qtbot, panel, 3)
    qtbot.waitUntil(lambda: panel.result.runs[0].session is longer)


def test_gpu_and_cpu_times_are_not_given_a_ratio(qtbot, panel, three, workspace):
    workspace.compared.add(cpu_session(300))
    settle(qtbot, panel, 4)
    assert cells(panel, 2)[3] == "no ratio"  # it said "– × for other work"
    assert "cannot be compared" in panel.sessions.item(3, 2).toolTip()
    warnings = panel.result.comparison.warnings
    assert any("Step times come from different clocks" in warning for warning in warnings)


def test_sessions_without_steady_steps_are_refused_in_a_sentence(qtbot, panel, workspace):
    session = gpu_session(1, 4, title="short")
    workspace.session.shown = session
    workspace.session.sessionChanged.emit()
    workspace.compared.add(gpu_session(1, 100, title="long"))
    workspace.compared.add(empty_session())
    qtbot.waitUntil(lambda: bool(panel.result and panel.result.reason))
    assert panel._pages.currentWidget() is panel._empty
    assert "no steady steps" in panel._empty._sentence.text()


def test_what_cannot_be_compared_is_taken_out_alone(qtbot, panel, three, workspace):
    workspace.compared.add(gpu_session(1, 4, title="short"))
    qtbot.waitUntil(lambda: bool(panel.result and panel.result.reason))
    assert panel._out.isVisible() and panel._out.text() == "Remove 'short'"
    panel._out.click()
    settle(qtbot, panel, 3)
    assert cells(panel, 0) == ["base", "faster", "ladder"]


def test_the_time_lines_can_be_laid_over_one_another_by_step(panel, three):
    panel.set_align("step")
    chart = panel.charts["aligned_timeline"]
    assert chart.canvas.axis("bottom").title == "Steady steps since the first"
    assert chart.canvas.x_span() == (0.0, 1591.0)


def test_the_table_of_ratios_is_copied_as_markdown_and_csv(panel, three):
    panel.copy_table(".md")
    assert "| base |" in QGuiApplication.clipboard().text()
    panel.copy_table(".csv")
    assert QGuiApplication.clipboard().text().startswith("session,")


def test_in_large_type_titles_and_segments_keep_room_for_as_many_letters(panel, three):
    table = panel.sessions
    font = table.font()
    font.setPointSizeF(1.6 * font.pointSizeF())
    panel.resize(300, 600)
    table._names._share()
    small_px = [table.columnWidth(column) for column in (0, 1)]
    table.setFont(font)
    table._names._share()
    large_px = [table.columnWidth(column) for column in (0, 1)]
    assert min(large_px) > 1.4 * min(small_px)


def test_the_theme_is_followed(panel, three, workspace):
    workspace.theme.set(LIGHT)
    assert all(chart.canvas.chart_style.theme is LIGHT for chart in panel.charts.values())
    assert panel.charts["ecdf"].reason is None


def test_a_live_session_is_compared_as_it_was_when_asked(qtbot, panel, show, workspace):
    live = gpu_session(1, 300, seed=1, title="live")
    show(live)
    workspace.compared.add(gpu_session(1, 300, seed=2, title="saved"))
    settle(qtbot, panel, 2)
    run = panel.result.runs[0]
    assert run.session is not live
    rows = len(run.session.segments[0].steps["t_s"])
    live.segments[0].steps.append({"t_s": [1e3], "gpu_ms": [24.0], "phase": [5]})
    assert len(run.session.segments[0].steps["t_s"]) == rows


def test_an_unpaired_ratio_offers_a_verdict_and_one_configuration_twice_does_not(panel, three):
    assert panel.sessions.item(1, 2).font().underline() is (
        three[0].segments[0].configuration != three[1].segments[0].configuration
    )
    assert "_" not in panel.sessions.item(1, 2).text()


def test_titles_of_sessions_stand_over_the_differences_as_they_were_given(qtbot, panel, workspace):
    workspace.session.shown = gpu_session(1, 60, title="nightly on an H200")
    other = gpu_session(1, 60, seed=1, title="eager")
    other.environment["driver"] = "570.86.15"
    workspace.compared.add(other)
    settle(qtbot, panel, 2)
    table = panel.differences
    headings = [table.horizontalHeaderItem(n).text() for n in range(table.columnCount())]
    assert headings == ["Setting", "nightly on an H200", "eager"]


@pytest.mark.parametrize("created", [math.nan, math.inf, 1e30, -1e30, 0.0])
def test_equal_titles_are_told_apart_whatever_a_file_says_of_its_time(created):
    sessions = [Session(title="same", created=created), Session(title="same")]
    assert len(set(distinct([*sessions, *sessions]))) == 4
