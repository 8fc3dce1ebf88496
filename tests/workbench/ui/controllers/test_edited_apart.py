"""What is edited while a run goes on that is of another family, workload or size."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtWidgets import QLabel, QPushButton

from workbench import protocol
from workbench.ui.controllers import config_edit, pending_changes
from workbench.ui.panels.build import BuildPanel


@pytest.fixture
def sent(state, monkeypatch):
    """The toggles that the run was told to take."""
    told = []
    send = state._link.send

    def hear(command):
        if isinstance(command, protocol.Apply):
            told.append(command.toggles)
        send(command)

    monkeypatch.setattr(state._link, "send", hear)
    return told


@pytest.fixture
def build(qtbot, state):
    """The form alone, once the fake runner is idle."""
    panel = BuildPanel(state)
    qtbot.addWidget(panel)
    panel.show()
    state.start_runner()
    qtbot.waitUntil(lambda: state.runner_state == "idle", timeout=10_000)
    qtbot.waitUntil(lambda: state.availability is not None, timeout=5_000)
    return panel


def run(qtbot, state):
    """The configuration that runs, once it does."""
    state.start()
    qtbot.waitUntil(lambda: state.runner_state == "running", timeout=5_000)
    return state.running


def other_workload(state):
    """The configuration being edited under another workload."""
    family = config_edit.family_of(state.catalogue, state.configuration.family)
    name = next(one for one in family.workloads if one != state.configuration.workload)
    return config_edit.with_workload(state.catalogue, state.configuration, name)


def said(panel, name):
    """The lines of this kind below the form."""
    return [one.text() for one in panel.findChildren(QLabel, name)]


def press(panel, text):
    """Press the button below the form that is called so."""
    (button,) = (one for one in panel.findChildren(QPushButton) if one.text() == text)
    button.click()


def test_a_toggle_that_is_chosen_for_another_workload_is_no_change_of_the_run(
    qtbot, state, build, sent
):
    running = run(qtbot, state)
    state.edit(other_workload(state))
    state.set_toggle("adamw", "fused")
    assert sent == [] and state.pending == {}
    assert said(build, "left") == ["These changes apply to the next run: workload, toggles."]
    press(build, "Revert")
    assert state.configuration == running and said(build, "left") == [] and sent == []


def test_back_at_what_runs_the_toggles_are_those_of_the_run_again(qtbot, state, build, sent):
    running = run(qtbot, state)
    state.edit(other_workload(state))
    state.set_toggle("adamw", "fused")
    state.edit(config_edit.with_workload(state.catalogue, state.configuration, running.workload))
    assert sent == [{"adamw": "fused"}]
    qtbot.waitUntil(lambda: state.running.toggles["adamw"] == "fused", timeout=5_000)
    assert state.pending == {}


def test_a_setting_that_the_run_does_not_have_is_told_and_its_toggles_stay_live(
    qtbot, state, build, sent
):
    run(qtbot, state)
    state.edit(config_edit.with_setting(state.configuration, "batch", 77))
    assert said(build, "left") == ["These changes apply to the next run: batch."]
    state.set_toggle("adamw", "fused")
    assert sent == [{"adamw": "fused"}]


def test_restart_now_starts_what_the_run_does_not_have(qtbot, state, build):
    run(qtbot, state)
    state.edit(config_edit.with_setting(state.configuration, "batch", 77))
    qtbot.waitUntil(lambda: state.availability.configuration == state.configuration)
    press(build, "Restart now")
    qtbot.waitUntil(
        lambda: state.runner_state == "running" and state.running.settings["batch"] == 77
    )
    assert said(build, "left") == [] and not state.failures


def test_going_there_and_back_before_the_run_has_followed_ends_where_one_chose_last(
    qtbot, state, build, sent
):
    run(qtbot, state)
    before = state.configuration.toggles["adamw"]
    state.set_toggle("adamw", "fused")
    state.set_toggle("adamw", before)
    assert sent == [{"adamw": "fused"}, {"adamw": before}]


def test_all_that_keeps_it_from_starting_is_told_by_title_and_one_click_switches_it_off(
    qtbot, state, build
):
    availability = state.availability
    toggles = [one for one in state.catalogue.toggles if len(one.options) > 1][:2]
    chosen = {one.name: one.options[1].name for one in toggles}
    state.edit(config_edit.with_toggles(state.configuration, chosen))
    why = protocol.Blocked("this family has none", "Choose another.", absent=True)
    state.availability = msgspec.structs.replace(
        availability,
        configuration=state.configuration,
        blocked={name: {option: why} for name, option in chosen.items()},
        problems=["toggle x=y cannot be used: this family has none. Choose another."],
    )
    state.availabilityChanged.emit()
    assert said(build, "problem") == [
        f"{one.title}: {one.options[1].title} cannot be used: this family has none. Choose another."
        for one in toggles
    ]
    assert pending_changes.problem(state) == said(build, "problem")[0]
    press(build, "Switch them off")
    assert all(state.configuration.toggles[one.name] == one.options[0].name for one in toggles)


def test_undo_leaves_a_family_the_workloads_that_it_has(state, build):
    catalogue = state.catalogue
    family = config_edit.family_of(catalogue, state.configuration.family)
    one, other = family.workloads[:2]
    state.choose({"workload": one if state.configuration.workload != one else other}, "Fix")
    gone = state.undo.command(0)._before["workload"]
    left = [name for name in family.workloads if name != gone]
    catalogue.families.append(msgspec.structs.replace(family, name="plain", workloads=left))
    state.edit(config_edit.with_family(catalogue, state.configuration, "plain"))
    state.undo.undo()
    assert state.configuration.workload in left
