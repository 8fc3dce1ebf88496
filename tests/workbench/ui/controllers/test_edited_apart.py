"""Edits during a run that has another family, workload or size."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtWidgets import QLabel, QPushButton

from workbench import protocol
from workbench.ui import panel_list
from workbench.ui.state import config_edit


@pytest.fixture
def sent(workspace, monkeypatch):
    """Return a list of the toggles that the run receives."""
    toggles = []
    send = workspace._link.send

    def record(command):
        if isinstance(command, protocol.Apply):
            toggles.append(command.toggles)
        send(command)

    monkeypatch.setattr(workspace._link, "send", record)
    return toggles


@pytest.fixture
def build(qtbot, workspace):
    """The form alone, once the fake runner is idle."""
    panel = panel_list.build(workspace)
    qtbot.addWidget(panel)
    panel.show()
    workspace.run.start_runner()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    qtbot.waitUntil(lambda: workspace.configuration.availability is not None)
    return panel


def run(qtbot, workspace):
    """The configuration that runs, once it does."""
    workspace.runs.start()
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    return workspace.run.running


def other_workload(workspace):
    """The configuration being edited under another workload."""
    family = config_edit.family_of(
        workspace.configuration.catalogue, workspace.configuration.edited.family
    )
    name = next(
        workload
        for workload in family.workloads
        if workload != workspace.configuration.edited.workload
    )
    return config_edit.with_workload(
        workspace.configuration.catalogue, workspace.configuration.edited, name
    )


def shown_texts(panel, name):
    """The lines of this kind below the form."""
    return [label.text() for label in panel.findChildren(QLabel, name)]


def press(panel, text):
    """Press the button below the form that is called so."""
    (button,) = (button for button in panel.findChildren(QPushButton) if button.text() == text)
    button.click()


def test_a_toggle_that_is_chosen_for_another_workload_is_no_change_of_the_run(
    qtbot, workspace, build, sent
):
    running = run(qtbot, workspace)
    workspace.configuration.edit(other_workload(workspace))
    workspace.configuration.set_toggle("adamw", "fused")
    assert sent == [] and workspace.configuration.pending == {}
    assert shown_texts(build, "left") == ["These changes apply to the next run: workload, toggles."]
    press(build, "Revert")
    assert (
        workspace.configuration.edited == running
        and shown_texts(build, "left") == []
        and sent == []
    )


def test_back_at_what_runs_the_toggles_are_those_of_the_run_again(qtbot, workspace, build, sent):
    running = run(qtbot, workspace)
    workspace.configuration.edit(other_workload(workspace))
    workspace.configuration.set_toggle("adamw", "fused")
    workspace.configuration.edit(
        config_edit.with_workload(
            workspace.configuration.catalogue, workspace.configuration.edited, running.workload
        )
    )
    assert sent == [{"adamw": "fused"}]
    qtbot.waitUntil(lambda: workspace.run.running.toggles["adamw"] == "fused")
    assert workspace.configuration.pending == {}


def test_a_setting_that_the_run_does_not_have_is_told_and_its_toggles_stay_live(
    qtbot, workspace, build, sent
):
    run(qtbot, workspace)
    workspace.configuration.edit(
        config_edit.with_setting(workspace.configuration.edited, "batch", 77)
    )
    assert shown_texts(build, "left") == ["These changes apply to the next run: batch."]
    workspace.configuration.set_toggle("adamw", "fused")
    assert sent == [{"adamw": "fused"}]


def test_restart_now_starts_what_the_run_does_not_have(qtbot, workspace, build):
    run(qtbot, workspace)
    workspace.configuration.edit(
        config_edit.with_setting(workspace.configuration.edited, "batch", 77)
    )
    qtbot.waitUntil(
        lambda: workspace.configuration.availability.configuration == workspace.configuration.edited
    )
    press(build, "Restart now")
    qtbot.waitUntil(
        lambda: workspace.run.state == "running" and workspace.run.running.settings["batch"] == 77
    )
    assert shown_texts(build, "left") == [] and not workspace.failures.recent


def test_going_there_and_back_before_the_run_has_followed_ends_where_one_chose_last(
    qtbot, workspace, build, sent
):
    run(qtbot, workspace)
    before = workspace.configuration.edited.toggles["adamw"]
    workspace.configuration.set_toggle("adamw", "fused")
    workspace.configuration.set_toggle("adamw", before)
    assert sent == [{"adamw": "fused"}, {"adamw": before}]


def test_all_that_keeps_it_from_starting_is_told_by_title_and_one_click_switches_it_off(
    qtbot, workspace, build
):
    availability = workspace.configuration.availability
    toggles = [
        toggle for toggle in workspace.configuration.catalogue.toggles if len(toggle.options) > 1
    ][:2]
    chosen = {toggle.name: toggle.options[1].name for toggle in toggles}
    workspace.configuration.edit(config_edit.with_toggles(workspace.configuration.edited, chosen))
    why = protocol.Blocked("this family has none", "Choose another.", absent=True)
    workspace.configuration.availability = msgspec.structs.replace(
        availability,
        configuration=workspace.configuration.edited,
        blocked={name: {option: why} for name, option in chosen.items()},
        problems=["toggle x=y cannot be used: this family has none. Choose another."],
    )
    workspace.configuration.availabilityChanged.emit()
    assert shown_texts(build, "problem") == [
        f"{toggle.title}: {toggle.options[1].title} cannot be used: this family has none. "
        "Choose another."
        for toggle in toggles
    ]
    assert workspace.configuration.problem() == shown_texts(build, "problem")[0]
    press(build, "Switch them off")
    assert all(
        workspace.configuration.edited.toggles[toggle.name] == toggle.options[0].name
        for toggle in toggles
    )


def test_undo_leaves_a_family_the_workloads_that_it_has(workspace, build):
    catalogue = workspace.configuration.catalogue
    family = config_edit.family_of(catalogue, workspace.configuration.edited.family)
    first, second = family.workloads[:2]
    workspace.configuration.choose(
        {"workload": first if workspace.configuration.edited.workload != first else second}, "Fix"
    )
    gone = workspace.configuration.undo.command(0)._before["workload"]
    left = [name for name in family.workloads if name != gone]
    catalogue.families.append(msgspec.structs.replace(family, name="plain", workloads=left))
    workspace.configuration.edit(
        config_edit.with_family(catalogue, workspace.configuration.edited, "plain")
    )
    workspace.configuration.undo.undo()
    assert workspace.configuration.edited.workload in left
