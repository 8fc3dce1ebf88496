"""Tests of the segments' table: groups of studies, the baseline, verdicts between any two rows."""

import dataclasses

import fake_session
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMenu

from sessions.model import Event, Order, Phase, PhaseSpan, Study
from workbench.ui.panels._segment_model import Group


def with_a_study():
    """The plausible sitting, as if its segments 1 to 3 were a sweep's."""
    session = fake_session.session()
    session.studies = [Study("sweep", "batch 1 to 8", session.segments[1].start_s)]
    session.orders = [
        Order(start_s=0.0, command={"type": kind}, segments=first, studies=studies)
        for first, studies, kind in ((0, 0, "start"), (1, 0, "sweep"), (4, 1, "start"))
    ]
    return session


@pytest.fixture
def segments(qtbot, ready):
    ready.workspace.session.show(with_a_study())
    panel = ready.dock_area.docks["segments"].widget()
    qtbot.waitUntil(lambda: panel.model.rowCount() > 0)
    return panel


def test_the_segments_of_a_study_are_one_row_until_it_is_expanded(qtbot, segments):
    model = segments.model
    assert [row if isinstance(row, int) else "group" for row in model.rows] == [0, "group", 4, 5]
    group = model.rows[1]
    assert isinstance(group, Group) and list(group.segments) == [1, 2, 3]
    assert model.index(1, 1).data() == "Sweep: batch 1 to 8 (3 segments)"
    alone = Group(0, "Profile", range(1), expanded=False)
    assert alone.cells(2)[1] == "Profile (1 segment)"
    spans = [segments.table.columnSpan(row, 1) for row in range(4)]
    assert spans == [1, model.columnCount() - 1, 1, 1], "its title uses the complete row"
    click(qtbot, segments, 1)
    assert [row for row in model.rows if isinstance(row, int)] == [0, 1, 2, 3, 4, 5]
    assert segments.table.columnSpan(2, 1) == 1
    assert model.index(2, 0).data() == "1", "the first of the study's own rows"
    click(qtbot, segments, 1)
    assert model.rowCount() == 4
    segments.table.setFocus()
    segments.table.setCurrentIndex(model.index(1, 1))
    qtbot.keyClick(segments.table, Qt.Key.Key_Space)
    assert model.rowCount() == 7


def click(qtbot, panel, row):
    middle = panel.table.visualRect(panel.model.index(row, 1)).center()
    qtbot.mouseClick(panel.table.viewport(), Qt.MouseButton.LeftButton, pos=middle)


def test_a_row_is_selected_by_its_segment_however_the_table_is_grouped(qtbot, ready, segments):
    click(qtbot, segments, 3)
    assert ready.workspace.session.selection == 5
    ready.workspace.session.select(2)
    assert segments.table.currentIndex().row() == 1, "the group that hides it"
    segments.model.toggle_group(1)
    ready.workspace.session.select(4)
    assert segments.table.currentIndex().row() == segments.model.row_of(4) == 5


def test_any_two_rows_can_get_a_verdict(qtbot, ready, segments, monkeypatch):
    judged = []
    monkeypatch.setattr(ready.workspace.verdicts, "judge_pair", lambda *pair: judged.append(pair))
    segments._show_menu(segments.table.visualRect(segments.model.index(2, 1)).center())
    (menu,) = (
        menu for menu in segments.findChildren(QMenu) if menu.title() == "Verdict against this"
    )
    texts = [action.text().partition(" ")[0] for action in menu.actions()]
    assert texts == ["#5", "#0"]
    menu.actions()[0].trigger()
    rows = ready.workspace.session.shown.segments
    assert judged == [(rows[4].configuration, rows[5].configuration)]
    menu.parent().close()


def test_the_first_segment_with_steady_steps_becomes_the_baseline(ready):
    session = fake_session.session()
    session.segments[0].phases = [PhaseSpan(Phase.BUILD, 0.0, 1.0)]
    model = ready.workspace.session
    model.show(session)
    assert model.baseline == 1
    model.set_baseline(3)
    model.settle_baseline()
    assert model.baseline == 3, "a person's choice stays"


def test_a_study_s_segment_is_the_baseline_only_until_the_user_has_run_one(ready):
    session, model = fake_session.session(), ready.workspace.session
    session.studies = [Study("claims", "claims: hydra", 0.0)]
    session.orders = [Order(start_s=0.0, command={"type": "start"}, claims=0)]
    own = session.segments[4:]
    del session.segments[4:]
    model.show(session)
    assert model.baseline == 0 and not model.baseline_settled
    session.orders.append(Order(start_s=own[0].start_s, command={"type": "start"}, segments=4))
    session.segments += own
    model.settle_baseline()
    assert model.baseline == 4 and model.baseline_settled


def test_segments_of_claims_are_a_group_with_the_title_of_the_claims(qtbot, ready):
    session = with_a_study()
    session.studies = [Study("claims", "claims: hydra", session.segments[1].start_s)]
    session.orders[1] = Order(start_s=0.0, command={"type": "start"}, segments=1, claims=0)
    ready.workspace.session.show(session)
    model = ready.dock_area.docks["segments"].widget().model
    qtbot.waitUntil(lambda: model.rowCount() == 4)
    assert model.index(1, 1).data() == "Claims: hydra (3 segments)"


def test_events_list_runs_verdicts_and_studies_beside_the_events(ready):
    session = with_a_study()
    session.events.append(Event(session.segments[4].start_s, "note", "a note"))
    ready.workspace.session.show(session)
    panel = ready.dock_area.docks["events"].widget()
    kinds = {entry.kind for entry in panel._model.entries}
    assert {"run", "study", "note", "toggle"} <= kinds
    times = [entry.t_s for entry in panel._model.entries]
    assert times == sorted(times)
    panel._filtered.set_kind("measured")
    shown = {panel._filtered.index(row, 1).data() for row in range(panel._filtered.rowCount())}
    assert shown == {"run", "study"}


def test_the_events_near_a_step_are_selected(ready):
    session = with_a_study()
    session.events.append(Event(session.segments[4].start_s + 0.3, "note", "a note"))
    ready.workspace.session.show(session)
    panel = ready.dock_area.docks["events"].widget()
    panel._filtered.set_kind("problem")
    ready.workspace.session.eventsWanted.emit(session.segments[4].start_s + 0.31)
    row = panel._filtered.mapToSource(panel.table.currentIndex()).row()
    assert panel._model.entries[row].text == "a note"


def test_the_segment_that_began_last_is_scrolled_to(qtbot, ready):
    shown = ready.workspace.session
    panel = ready.dock_area.docks["segments"].widget()
    for segment in fake_session.session().segments * 3:
        segments = shown.recorder.session.segments
        segments.append(dataclasses.replace(segment, index=len(segments)))
        shown.segmentsChanged.emit()
        last = len(segments) - 1
        qtbot.waitUntil(lambda last=last: panel.model.rowCount() > last and panel.current)
        bottom = panel.table.rowViewportPosition(last) + panel.table.rowHeight(last)
        assert bottom <= panel.table.viewport().height(), last
