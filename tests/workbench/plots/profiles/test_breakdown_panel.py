"""The breakdown panel: words, tables and plots of a profile, zoomed into, two profiles aligned."""

from __future__ import annotations

import gc

import numpy as np
import profile_samples
import pytest
from PySide6.QtCore import QPointF
from PySide6.QtGui import QColor

from sessions.model import Configuration
from sessions.studies import breakdown
from workbench import protocol
from workbench.charts.style import paper_style
from workbench.plots.breakdown import Icicle, cells
from workbench.theming import stylesheet
from workbench.theming.theme import DARK, LIGHT, PRINT
from workbench.ui import panel_list
from workbench.ui.panels._names_share import LETTERS
from workbench.ui.panels.breakdown import HINT
from workbench.ui.process.gc_timer import GcTimer


@pytest.fixture
def panel(qtbot, workspace):
    gc.collect()  # as in the window: no garbage of other tests' charts goes while this one paints
    timer = GcTimer(workspace)
    panel = panel_list.breakdown(workspace)
    qtbot.addWidget(panel)
    panel.resize(900, 500)
    panel.show()
    yield panel
    timer.stop()


@pytest.fixture
def filled(show, panel):
    """Return the panel over a session with two profiles."""
    show(profile_samples.session(2))
    return panel


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours, as WCAG 2 defines it."""
    light = []
    for color in map(QColor, (first, second)):
        levels = np.array([color.redF(), color.greenF(), color.blueF()])
        linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
        light.append(float(linear @ (0.2126, 0.7152, 0.0722)) + 0.05)
    return max(light) / min(light)


def tab(panel, title: str) -> int:
    return [panel.tabs.tabText(n) for n in range(panel.tabs.count())].index(title)


def test_where_nothing_can_be_profiled_the_reason_stands_beside_the_button(filled):
    assert not filled.start.isEnabled()
    assert filled.progress.text() == "The runner is not ready."


def test_the_newest_profile_is_shown_in_words_tables_and_plots(filled):
    newest = breakdown.profiles(filled._session.shown)[-1]
    assert filled.headline.text().startswith("Launch-bound: in 18 % of the step")
    assert "Most time: matrix product" in filled.remarks.text()
    assert filled.kernels.item(0, 0).text() == "nvjet_tst_256x128_64x4"
    assert filled.modules.item(1, 0).text() == ". (model)"
    assert not filled.tabs.isTabVisible(tab(filled, "Difference"))
    assert filled._layer().step_us == pytest.approx(breakdown.total_us(newest))
    assert filled.roles.reason is None and filled.course.reason is None


def test_in_a_narrow_panel_operators_can_still_be_told_apart(qtbot, filled):
    filled.resize(560, 400)
    for table in (filled.achieved, filled.kernels, filled.kinds, filled.modules):
        filled.tabs.setCurrentWidget(table)
        letters = LETTERS * table.fontMetrics().averageCharWidth()
        qtbot.wait(20)
        qtbot.waitUntil(lambda table=table, px=letters: table.columnWidth(0) >= px)


def test_an_older_profile_is_chosen_and_stays_while_the_window_hears_more(qtbot, workspace, filled):
    filled.choose(1)
    first = breakdown.profiles(workspace.session.shown)[0]
    assert filled._layer().step_us == pytest.approx(breakdown.total_us(first))
    workspace.session.studiesChanged.emit()
    qtbot.wait(150)
    assert filled._shown is first and filled.which.currentData() == 1


def test_another_profile_is_set_against_it_by_module(filled):
    filled.against.setCurrentIndex(1)
    filled._show_difference()
    assert filled.tabs.isTabVisible(tab(filled, "Difference"))
    assert filled.difference.item(0, 0).text() == "(model)"
    assert filled.difference.item(0, 3).text().startswith("-")
    assert filled.roles_apart.item(0, 0).text() == "parameters and buffers"
    assert float(filled.roles_apart.item(0, 3).text()) == 0
    assert filled.aligned.isHidden()


def test_an_open_choice_and_a_selected_row_stay_while_the_run_goes_on(qtbot, workspace, filled):
    filled.against.setCurrentIndex(1)
    filled._show_difference()
    filled.tabs.setCurrentIndex(tab(filled, "Difference"))
    filled.difference.selectRow(1)
    filled.against.showPopup()
    choices = filled.against.view()
    choices.setCurrentIndex(filled.against.model().index(0, 0))  # as the mouse over it does
    workspace.run.stateChanged.emit()
    qtbot.wait(150)
    assert choices.isVisible() and choices.currentIndex().row() == 0
    assert [index.row() for index in filled.difference.selectionModel().selectedRows()] == [1]
    assert filled.against.currentIndex() == 1


def test_compiled_code_is_set_against_it_by_class_with_the_reason(workspace, filled):
    for study in breakdown.profiles(workspace.session.shown):
        study.tables["kernels"]["module"][:] = breakdown.COMPILED
    filled.against.setCurrentIndex(1)
    filled._show_difference()
    assert not filled.aligned.isHidden()
    assert "could not be assigned to modules" in filled.aligned.text()
    assert filled.difference.item(0, 0).text() in breakdown.KINDS


def test_a_profile_of_a_session_beside_it_can_be_set_against_it(qtbot, workspace, filled):
    workspace.compared.add(profile_samples.session(1, title="last week"))
    qtbot.waitUntil(lambda: filled.against.count() == 3)
    assert filled.against.itemText(2).startswith("last week: hydra base train")


def test_pointing_tells_numbers_and_a_click_looks_into_a_module(filled):
    layer = filled._layer()
    block = next(cell for cell in layer.cells if cell.path == "blocks.5" and not cell.kind)
    middle = QPointF((block.start_us + block.stop_us) / 2, -block.depth - 0.5)
    filled.icicle.pointed.emit(middle)
    assert filled.readout.text().startswith("blocks.5: 1.7")
    filled.icicle.pointed.emit(None)
    assert filled.readout.text() == HINT
    filled.icicle.clicked.emit(middle)
    low, high = filled.icicle.canvas.vb.viewRange()[0]
    assert (low, high) == (pytest.approx(block.start_us), pytest.approx(block.stop_us))
    filled.icicle.reset()
    assert filled.icicle.canvas.vb.viewRange()[0][1] == pytest.approx(layer.step_us)


def test_a_profile_arrives_live_piece_by_piece(qtbot, workspace, panel):
    configuration = Configuration(family="hydra", preset="small")
    messages = [
        protocol.SegmentStarted(index=0, configuration=configuration, label="defaults"),
        protocol.StudyStarted(index=0, kind="profile", title="hydra small", request={}),
        protocol.StudyRows(study=0, table="kernels", columns={
            "name": ["gemm"], "module": ["blocks.0"], "phase": ["forward"],
            "kind": ["matrix product"], "calls": [1.0], "us": [50.0],
        }),
        protocol.StudyFacts(study=0, facts={"step_us": 100.0, "busy_us": 50.0, "notes": []}),
    ]  # fmt: skip
    for message in messages[:3]:
        for changed in workspace.router.route(message):
            changed.emit()
    qtbot.waitUntil(lambda: panel.which.count() == 1)
    assert panel.headline.text() == "Most time: matrix product 100 %."
    assert panel.course.reason == "The profile of this session has no memory data."
    for changed in workspace.router.route(messages[3]):
        changed.emit()
    qtbot.waitUntil(lambda: panel.headline.text().startswith("Launch-bound: in 50 %"))


@pytest.mark.parametrize("theme", [DARK, LIGHT, PRINT], ids=lambda theme: theme.name)
def test_no_two_operator_classes_have_the_same_colour_and_words_in_them_are_read(qapp, theme):
    """Matrix products had the colour of what is left over, normalisation that of indexing."""
    fill = Icicle(cells(profile_samples.session(1).studies[0]), paper_style(theme))._fill
    colours = {kind: fill(kind) for kind in breakdown.KINDS}
    assert len({colour.name() for colour in colours.values()}) == len(colours)
    for kind, colour in colours.items():
        assert contrast(theme.text, colour.name()) >= 3, kind
        assert contrast(fill("").name(), colour.name()) >= 1.15, f"{kind} is no module"


def test_what_pointing_tells_stays_off_the_edge_whatever_the_theme_and_its_room(qapp, filled):
    """A theme that came while the sentence had no room took its margins."""
    label = filled.readout
    label.resize(100, 3)
    for theme in (LIGHT, DARK):
        filled.setStyleSheet(stylesheet.sheet(theme))
    filled.resize(901, 500)
    filled.grab()
    assert label.mapTo(filled, label.contentsRect().topLeft()).x() >= 12
