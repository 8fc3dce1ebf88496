"""The breakdown panel: words, tables and plots of a profile, zoomed into, two profiles aligned."""

from __future__ import annotations

import gc

import profile_samples
import pytest
from PySide6.QtCore import QPointF
from PySide6.QtTest import QTest

from sessions import breakdown
from sessions.model import Configuration
from workbench import protocol
from workbench.ui.collector import Collector
from workbench.ui.panels._names_share import LETTERS
from workbench.ui.panels.breakdown import HINT, BreakdownPanel


@pytest.fixture
def panel(qtbot, state):
    gc.collect()  # as in the window: no garbage of other tests' charts goes while this one paints
    collector = Collector(state)
    panel = BreakdownPanel(state)
    qtbot.addWidget(panel)
    panel.resize(900, 500)
    panel.show()
    yield panel
    collector.stop()


@pytest.fixture
def filled(show, panel):
    """The panel over a session with two profiles."""
    show(profile_samples.session(2))
    return panel


def tab(panel, title: str) -> int:
    return [panel.tabs.tabText(n) for n in range(panel.tabs.count())].index(title)


def test_where_nothing_can_be_profiled_the_reason_stands_beside_the_button(filled):
    assert not filled.start.isEnabled()
    assert filled.progress.text() == "The runner is not ready."


def test_the_newest_profile_is_shown_in_words_tables_and_plots(filled):
    newest = breakdown.profiles(filled._state.session)[-1]
    assert filled.headline.text().startswith("Launch-bound: in 18 % of the step")
    assert "Most time: matrix product" in filled.remarks.text()
    assert filled.kernels.item(0, 0).text() == "nvjet_tst_256x128_64x4"
    assert filled.modules.item(1, 0).text() == ". (model)"
    assert not filled.tabs.isTabVisible(tab(filled, "Difference"))
    assert filled._layer().whole_us == pytest.approx(breakdown.total_us(newest))
    assert filled.roles.reason is None and filled.course.reason is None


def test_in_a_narrow_panel_operators_can_still_be_told_apart(filled):
    filled.resize(560, 400)
    for table in (filled.achieved, filled.kernels, filled.kinds, filled.modules):
        filled.tabs.setCurrentWidget(table)
        letters = LETTERS * table.fontMetrics().averageCharWidth()
        QTest.qWait(20)
        assert table.columnWidth(0) >= letters, filled.tabs.tabText(filled.tabs.currentIndex())


def test_an_older_profile_is_chosen_and_stays_while_the_window_hears_more(qtbot, state, filled):
    filled.choose(1)
    first = breakdown.profiles(state.session)[0]
    assert filled._layer().whole_us == pytest.approx(breakdown.total_us(first))
    state.studiesChanged.emit()
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


def test_compiled_code_is_set_against_it_by_class_with_the_reason(state, filled):
    for study in breakdown.profiles(state.session):
        study.tables["kernels"]["module"][:] = breakdown.COMPILED
    filled.against.setCurrentIndex(1)
    filled._show_difference()
    assert not filled.aligned.isHidden()
    assert "could not be told by module" in filled.aligned.text()
    assert filled.difference.item(0, 0).text() in breakdown.KINDS


def test_a_profile_of_a_session_beside_it_can_be_set_against_it(qtbot, state, filled):
    state.compared.add(profile_samples.session(1, title="last week"))
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
    assert filled.icicle.canvas.vb.viewRange()[0][1] == pytest.approx(layer.whole_us)


def test_a_profile_arrives_live_piece_by_piece(qtbot, state, panel):
    configuration = Configuration(family="hydra", preset="small")
    told = [
        protocol.SegmentStarted(index=0, configuration=configuration, label="defaults"),
        protocol.StudyStarted(index=0, kind="profile", title="hydra small", asked={}),
        protocol.StudyRows(study=0, table="kernels", columns={
            "name": ["gemm"], "module": ["blocks.0"], "phase": ["forward"],
            "kind": ["matrix product"], "calls": [1.0], "us": [50.0],
        }),
        protocol.StudyFacts(study=0, facts={"step_us": 100.0, "busy_us": 50.0, "notes": []}),
    ]  # fmt: skip
    for message in told[:3]:
        for name in state._take(message):
            getattr(state, name).emit()
    qtbot.waitUntil(lambda: panel.which.count() == 1)
    assert panel.headline.text() == "Most time: matrix product 100 %."
    assert panel.course.reason == "The profile of this session has no memory in it."
    for name in state._take(told[3]):
        getattr(state, name).emit()
    qtbot.waitUntil(lambda: panel.headline.text().startswith("Launch-bound: in 50 %"))
