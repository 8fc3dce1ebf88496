"""The build, segments and events panels, and the status bar."""

from __future__ import annotations

import msgspec
import pytest
from fake_session import session
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QLabel,
    QMenu,
    QPushButton,
    QSpinBox,
)

from sessions.model import Event, Segment
from workbench import protocol
from workbench.ui.menus.actions import ACTIONS
from workbench.ui.panels import events
from workbench.ui.panels._segment_model import AS_BASELINE
from workbench.ui.state import config_edit


def panel(window, name):
    return window.dock_area.docks[name].widget()


def field(window, name, kind):
    return panel(window, "build").findChild(kind, f"field-{name}")


def show(window, shown):
    """Let the window show a finished session."""
    window.workspace.session.show(shown)
    window.workspace._link.retire()


def test_forms_are_made_from_the_catalogue(ready):
    assert field(ready, "dim", QSpinBox).value() == 768
    assert field(ready, "rope_theta", QDoubleSpinBox).value() == 10000
    assert not field(ready, "tie", QCheckBox).isChecked()
    assert field(ready, "init", QComboBox).currentText() == "normal"
    assert field(ready, "batch", QSpinBox).value() == 8
    assert field(ready, "n_layers", QSpinBox).maximum() == 512


def test_a_preset_brings_its_fields_and_settings(qtbot, ready):
    field(ready, "dim", QSpinBox).setValue(512)
    assert ready.workspace.configuration.edited.model == {"dim": 512}
    ready.choose_preset("1b")
    assert ready.workspace.configuration.edited.model == {}
    assert field(ready, "dim", QSpinBox).value() == 2048
    assert field(ready, "sequence", QSpinBox).value() == 2048


def test_a_field_set_back_to_the_preset_is_no_override(ready):
    box = field(ready, "dim", QSpinBox)
    box.setValue(512)
    box.setValue(768)
    assert ready.workspace.configuration.edited.model == {}


def test_problems_stand_in_the_panel_and_keep_run_disabled(qtbot, ready):
    field(ready, "n_heads", QSpinBox).setValue(7)
    build = panel(ready, "build")
    qtbot.waitUntil(lambda: bool(build.findChildren(QLabel, "problem")))
    assert "7 query heads do not divide" in build.findChild(QLabel, "problem").text()
    assert not ready.actions_["run"].isEnabled()
    assert "7 query heads" in ready.actions_["run"].toolTip()
    field(ready, "n_heads", QSpinBox).setValue(12)
    qtbot.waitUntil(lambda: ready.actions_["run"].isEnabled())


@pytest.mark.parametrize("name", ["mine", "bf16/compile", "50 % of it", "Größe"])
def test_a_user_preset_returns_with_all_that_it_had(ready, name):
    field(ready, "batch", QSpinBox).setValue(3)
    ready.workspace.configuration.set_toggle("triton", "on")
    saved = ready.workspace.configuration.edited
    ready.settings.save_preset(name, saved)
    ready.choose_preset("tiny")
    ready.workspace.configuration.edit(ready.settings.presets[name])
    assert ready.workspace.configuration.edited == saved


def test_the_segments_table_condenses_what_differs(qtbot, ready):
    show(ready, session())
    model = panel(ready, "segments").model
    qtbot.waitUntil(lambda: model.rowCount() == 6)
    cells = [[model.index(row, column).data() for column in range(8)] for row in range(6)]
    assert cells[0][1] == "baseline" and cells[1][1] == "Precision: AMP BF16"
    assert cells[2][1] == "Precision: AMP BF16 · Triton kernels, all: On"
    tip = model.index(2, 1).data(Qt.ItemDataRole.ToolTipRole)
    settings = "precision=amp_bf16 · triton=on"
    hidden = "p95 ms: 27.18, Steps: 156, Peak GiB: 27.4, Median ms: 26.68"
    assert tip.splitlines() == [cells[2][1], settings, hidden]
    assert float(cells[1][5]) == pytest.approx(0.5, abs=0.02)
    assert cells[1][6] == "unpaired"
    right = Qt.AlignmentFlag.AlignRight
    assert model.index(1, 3).data(Qt.ItemDataRole.TextAlignmentRole) & right


@pytest.mark.parametrize("part", ["family", "workload"])
def test_a_configuration_of_what_the_runner_lacks_is_not_taken(qtbot, ready, part):
    shown = session()
    other = msgspec.structs.replace(shown.segments[0].configuration, **{part: "kernels"})
    shown.segments[0].configuration = other
    show(ready, shown)
    before = ready.workspace.configuration.edited
    segments = panel(ready, "segments")
    segments._use(shown.segments[0])
    assert ready.workspace.configuration.edited == before
    qtbot.waitUntil(lambda: segments.model.rowCount() == 6)
    taken = {}
    for row in (0, 1):
        segments._show_menu(segments.table.visualRect(segments.model.index(row, 0)).center())
        direct = Qt.FindChildOption.FindDirectChildrenOnly
        menu = segments.findChildren(QMenu, options=direct)[-1]
        (use,) = (action for action in menu.actions() if action.text().startswith("Use its"))
        taken[row] = use.isEnabled(), use.text()
        menu.close()
    assert taken[1] == (True, "Use its configuration")
    assert taken[0][0] is False and f"no {part} 'kernels'" in taken[0][1]
    ready.settings.save_preset("other", other)
    (menu,) = (menu for menu in ready.findChildren(QMenu) if menu.title() == "Saved configurations")
    menu.aboutToShow.emit()
    saved = menu.actions()[0]
    assert not saved.isEnabled() and saved.toolTip() == f"The runner has no {part} 'kernels'."


def test_values_of_another_type_than_their_field_s_are_not_taken(ready):
    shown = session()
    own = shown.segments[0].configuration
    odd = msgspec.structs.replace(
        own, settings={"batch": "x", "sequence": True}, model={"dim": "wide", "n_layers": 3}
    )
    shown.segments[0].configuration = odd
    show(ready, shown)
    panel(ready, "segments")._use(shown.segments[0])
    edited = ready.workspace.configuration.edited
    assert edited.settings == {} and edited.model == {"n_layers": 3}
    assert edited.workload == own.workload


@pytest.mark.parametrize("part", ["family", "workload"])
def test_another_runner_that_lacks_what_is_edited_offers_its_own(ready, part):
    configuration = ready.workspace.configuration
    other = {part: "kernels"}
    configuration.edited = msgspec.structs.replace(configuration.edited, **other)
    configuration.set_catalogue(configuration.catalogue)
    assert configuration.edited == config_edit.first(configuration.catalogue)


def test_a_double_click_makes_a_segment_the_baseline(qtbot, ready):
    show(ready, session())
    segments = panel(ready, "segments")
    qtbot.waitUntil(lambda: segments.model.rowCount() == 6)
    segments.table.doubleClicked.emit(segments.model.index(1, 0))
    assert ready.workspace.session.baseline == 1
    qtbot.waitUntil(lambda: segments.model.index(1, 1).data() == "baseline")
    assert segments.model.index(0, 1).data() not in ("baseline", AS_BASELINE)


def test_the_table_is_copied_as_csv_and_markdown(qtbot, ready):
    show(ready, session())
    segments = panel(ready, "segments")
    qtbot.waitUntil(lambda: segments.model.rowCount() == 6)
    segments.copy_csv()
    assert QGuiApplication.clipboard().text().count("\n") == 7
    segments.copy_markdown()
    assert "| ---" in QGuiApplication.clipboard().text()


def test_selection_is_shared_through_the_state(qtbot, ready):
    show(ready, session())
    segments = panel(ready, "segments")
    qtbot.waitUntil(lambda: segments.model.rowCount() == 6)
    ready.workspace.session.select(3)
    assert segments.table.currentIndex().row() == 3
    segments.table.selectRow(4)
    assert ready.workspace.session.selection == 4


def test_sentences_of_the_runner_begin_with_a_capital_and_notes_are_as_written(ready):
    sentence = "toggle AdamW cannot be used"
    ready.workspace.failures.report(protocol.Failure(kind="mistake", sentence=sentence))
    assert ready.failures.banners[0].sentence.text() == "Toggle AdamW cannot be used"
    made = session()
    made.events = [Event(0.0, "error", sentence), Event(1.0, "note", "mamba is next")]
    show(ready, made)
    model = panel(ready, "events")._model
    texts = [model.index(row, 2).data() for row in range(model.rowCount())]
    assert "Toggle AdamW cannot be used" in texts and "mamba is next" in texts


def test_events_are_filtered_by_kind_and_text_and_a_click_shows_the_moment(qtbot, ready):
    shown = session()
    show(ready, shown)
    events = panel(ready, "events")
    assert events._filtered.rowCount() == 5
    events._picker.chosen.emit("problem")
    assert events._filtered.rowCount() == 0
    assert not events.table.isVisibleTo(events)
    (shows_all,) = events._found.currentWidget().findChildren(QPushButton)
    shows_all.click()
    assert events._filtered.rowCount() == 5 and events.table.isVisibleTo(events)
    events._filtered.set_kind("toggle")
    events._search.setText("adamw")
    assert events._filtered.rowCount() == 1
    with qtbot.waitSignal(ready.workspace.session.focusRequested) as signal:
        events.table.clicked.emit(events._filtered.index(0, 2))
    assert signal.args == [shown.events[2].t_s]
    assert not ready.workspace.session.follow


def test_a_live_event_is_added_without_reading_the_others_again(qtbot, ready):
    events = panel(ready, "events")
    with qtbot.waitSignal(events._model.rowsInserted):
        ready.workspace.session.add_note("first")
    assert events._model.rowCount() == 1


def test_the_status_bar_says_in_words_what_happens(qtbot, ready):
    assert ready.status.runner.text() == "Idle"
    ready.workspace.runs.start()
    qtbot.waitUntil(lambda: ready.status.runner.text() == "Running")
    qtbot.waitUntil(lambda: "steps/s" in ready.status._facts["rate"].text())
    assert "GiB allocated" in ready.status._facts["memory"].text()
    assert ready.status._facts["file"].text() == "Not saved, journaled"
    assert ready.status._facts["device"].text() == "NVIDIA H200"


def test_the_status_bar_says_nothing_twice(ready):
    status, line = ready.status, ready.status._progress_text
    for state, text, shown in (
        ("starting", "Starting the runner", "Starting the runner"),
        ("building", "Building", ""),
        ("running", "Alternating A and B", "· Alternating A and B"),
    ):
        ready.workspace.router.route(protocol.State(state=state, text=text))
        ready.workspace.run.stateChanged.emit()
        assert line._whole == shown
        assert status.runner.isVisible() == (not shown.startswith("Starting"))


def test_the_status_bar_has_numbers_of_what_runs_only_and_not_of_an_opened_file(qtbot, ready):
    ready.workspace.runs.start()
    qtbot.waitUntil(lambda: ready.status.runner.text() == "Running")
    opened = session()
    opened.segments[-1].steps["allocated"][-1] = 512.4 * 2**20
    ready.workspace.session.show(opened)
    rate, memory = (ready.status._facts[name] for name in ("rate", "memory"))
    qtbot.waitUntil(lambda: "steps/s" in rate.text())
    assert "GiB allocated" in memory.text()
    ready.workspace.run.stop()
    qtbot.waitUntil(lambda: ready.workspace.run.state == "idle")
    assert not rate.text() and not memory.text()


def test_the_status_bar_does_not_say_building_beside_the_progress_of_steps(ready):
    line, route = ready.status._progress_text, ready.workspace.router.route
    route(protocol.State(state="running", text="Alternating A and B"))
    route(protocol.Progress(task="compare", text="2 pairs", fraction=0.1))
    route(protocol.State(state="building", text="Building A and B again"))
    ready.workspace.run.stateChanged.emit()
    assert line._whole == "Building A and B again"
    route(protocol.Progress(task="compile", text="", fraction=None))
    ready.workspace.run.stateChanged.emit()
    assert line._whole == "· Compiling"


def test_a_stop_is_shown_before_the_runner_answers_and_can_be_forced(qtbot, ready, monkeypatch):
    ready.workspace.runs.start()
    qtbot.waitUntil(lambda: ready.status.runner.text() == "Running")
    commands = []
    monkeypatch.setattr(ready.workspace.run._link, "send", commands.append)
    ready.workspace.run.stop()
    assert isinstance(commands[0], protocol.Stop)
    assert ready.status.runner.text() == "Stopping" and ready.status._cancel.isVisible()


def test_a_runner_that_ended_leaves_no_memory_in_the_status_bar(qtbot, ready):
    ready.workspace.runs.start()
    memory = ready.status._facts["memory"]
    qtbot.waitUntil(lambda: "allocated" in memory.text())
    ready.workspace.run.set_state("dead", "ended")
    assert not memory.text()


def test_progress_of_a_long_operation_is_shown_with_cancel(qtbot, ready):
    ready.workspace.router.route(protocol.State(state="building", text="Building"))
    ready.workspace.router.route(protocol.Progress(task="Compile", fraction=0.25, text="3 of 12"))
    ready.workspace.run.stateChanged.emit()
    qtbot.waitUntil(lambda: ready.status._progress_text.text() == "· Compile: 3 of 12")
    assert ready.status._progress.value() == 250
    assert ready.status._cancel.isVisible()
    assert ready.actions_["cancel"].isEnabled()
    ready.workspace.router.route(protocol.Progress(task="optimizing", text="1; compile=default"))
    ready.workspace.run.stateChanged.emit()
    text = "· Optimizing: 1; torch.compile: Default"
    qtbot.waitUntil(lambda: ready.status._progress_text.text() == text)


def test_a_configuration_from_another_runner_is_settled(ready):
    foreign = msgspec.structs.replace(
        ready.workspace.configuration.edited,
        toggles={"precision": "fp4", "gone": "on", "triton": "on"},
    )
    settled = config_edit.adopt(ready.workspace.configuration.catalogue, foreign)
    assert set(settled.toggles) == {
        toggle.name for toggle in ready.workspace.configuration.catalogue.toggles
    }
    assert settled.toggles["precision"] == "fp32" and settled.toggles["triton"] == "on"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(59.94, "0:59.9"), (59.97, "1:00.0"), (3599.96, "1:00:00.0"), (3723.44, "1:02:03.4")],
)
def test_a_clock_has_no_sixtieth_second(seconds, expected):
    assert events.clock(seconds) == expected


def test_a_changed_model_has_its_parameters_counted_once_it_was_built(qtbot, ready):
    """While it ran, the panel still said that they are counted when it is built."""
    workspace = ready.workspace
    field(ready, "dim", QSpinBox).setValue(512)
    size = panel(ready, "build")._size
    assert size.text() == "Parameters are counted when it is built."
    built = Segment(0, workspace.configuration.edited, "first", 0.0, ledger={"parameters": 25_312})
    workspace.session.shown.segments.append(built)
    workspace.session.segmentsChanged.emit()
    assert size.text() == "25,312 parameters, as last built"
    field(ready, "dim", QSpinBox).setValue(640)
    assert size.text() == "Parameters are counted when it is built."


def test_the_newest_event_stays_in_sight_when_the_panel_is_made_larger_and_smaller(qtbot, ready):
    log = panel(ready, "events")
    ready.dock_area.bring("events")
    for number in range(12):
        ready.workspace.session.shown.events.append(Event(float(number), "note", f"note {number}"))
    ready.workspace.session.eventsChanged.emit()
    bar = log.table.verticalScrollBar()
    qtbot.waitUntil(lambda: 0 < bar.maximum() == bar.value())
    ready.resize(1280, 2600)
    qtbot.waitUntil(lambda: bar.maximum() == 0)  # all of them are seen
    ready.resize(1280, 800)
    qtbot.waitUntil(lambda: bar.maximum() > 0)
    assert bar.value() == bar.maximum()
    bar.setValue(3)  # who reads further up is left there
    ready.workspace.session.shown.events.append(Event(61.0, "note", "one more"))
    ready.workspace.session.eventsChanged.emit()
    assert bar.value() == 3


def test_a_menu_shows_what_is_switched_on_and_no_icon_in_a_colour_of_its_own_background(ready):
    """An icon hides the check mark; Run's is drawn for its blue button, and was not to be seen."""
    for action in ACTIONS:
        made = ready.actions_[action.id]
        if action.checked is not None:
            assert made.isCheckable() and not made.isIconVisibleInMenu(), action.id
    assert not ready.actions_["run"].isIconVisibleInMenu()
    assert ready.actions_["stop"].isIconVisibleInMenu()
