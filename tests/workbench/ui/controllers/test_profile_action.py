"""Profiles as the window asks for them: the action, the button, and why not."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel

from workbench import protocol


def texts(panel) -> str:
    return "\n".join(label.text() for label in panel.findChildren(QLabel))


def test_the_empty_panel_and_the_action_ask_for_a_profile_of_what_is_chosen(
    qtbot, ready, monkeypatch
):
    workspace = ready.workspace
    ready.dock_area.bring("breakdown")
    panel = ready.breakdown
    assert panel.empty.isVisibleTo(panel)
    assert "some steps of the configuration run under the profiler" in texts(panel)
    commands = []
    monkeypatch.setattr(
        workspace.measurements, "perform", lambda command, *_: commands.append(command)
    )
    panel.first.click()
    ready.actions_["profile"].trigger()
    workspace.breakdowns.profile("/tmp/trace.json.gz")
    assert [command.configurations for command in commands] == [
        [workspace.configuration.edited]
    ] * 3
    assert [command.traces for command in commands] == [[], [], ["/tmp/trace.json.gz"]]
    workspace.run.replaying = True
    workspace.run.stateChanged.emit()
    qtbot.waitUntil(lambda: not panel.first.isEnabled())
    assert "This is a replay" in workspace.breakdowns.why_not()
    assert "This is a replay" in ready.actions_["profile"].toolTip()
    workspace.run.replaying = False


def test_the_empty_panel_says_that_steps_are_being_profiled(qtbot, ready, monkeypatch):
    workspace = ready.workspace
    ready.dock_area.bring("breakdown")
    panel = ready.breakdown
    monkeypatch.setattr(workspace.measurements, "is_pending", lambda kind: kind is protocol.Profile)
    workspace.run.stateChanged.emit()
    qtbot.waitUntil(lambda: not panel.first.isEnabled())
    assert "Steps are being profiled." in texts(panel) and "No profile yet" not in texts(panel)
