"""Cancel during a compile: at once, with a new runner, and the run goes on as it was."""

from __future__ import annotations

import msgspec
import pytest

from workbench.ui.controllers import run_control
from workbench.ui.status import StatusBar


@pytest.fixture
def compiling(qtbot, workspace, panel, impatient):
    """A run that compiles for ever after a toggle, and what the window says of the runner."""
    status = StatusBar(
        workspace.session,
        workspace.run,
        workspace.configuration,
        workspace.run_control,
        workspace.theme,
    )
    qtbot.addWidget(status)
    workspace.configuration.edit(
        msgspec.structs.replace(workspace.configuration.edited, data="compiles")
    )
    workspace.runs.start()
    segments = workspace.session.shown.segments
    qtbot.waitUntil(lambda: workspace.run.state == "running" and len(segments[0].steps["t_s"]) > 0)
    workspace.configuration.set_toggle("adamw", "fused")
    qtbot.waitUntil(lambda: len(segments) == 2 and len(segments[1].steps["t_s"]) > 0)
    workspace.configuration.set_toggle("compile", "max-autotune")
    qtbot.waitUntil(lambda: len(segments) == 3 and workspace.run.state == "building")
    return status


def test_a_cancelled_compile_goes_on_with_the_last_working_configuration(
    qtbot, workspace, compiling
):
    assert workspace.run.running.toggles["compile"] == "max-autotune"
    compiling._cancel.click()
    assert compiling.runner.text() == "Cancelling"
    assert compiling._cancel.isHidden()
    qtbot.waitUntil(
        lambda: len(workspace.session.shown.segments) == 4 and workspace.run.state == "running"
    )
    for toggles in (workspace.run.running.toggles, workspace.configuration.edited.toggles):
        assert (toggles["compile"], toggles["adamw"]) == ("off", "fused")
    assert compiling.runner.text() == "Running"
    assert not workspace.failures.recent and not workspace.configuration.pending
    assert run_control.RESUMED in [event.text for event in workspace.session.shown.events]


def test_a_cancelled_first_build_leaves_an_idle_runner(qtbot, workspace, panel, impatient):
    toggles = {**workspace.configuration.edited.toggles, "compile": "max-autotune"}
    workspace.configuration.edit(
        msgspec.structs.replace(workspace.configuration.edited, data="compiles", toggles=toggles)
    )
    workspace.runs.start()
    qtbot.waitUntil(lambda: workspace.run.state == "building" and workspace.run.running is not None)
    states: list[str] = []
    workspace.run.stateChanged.connect(lambda: states.append(workspace.run.state))
    workspace.run_control.cancel()
    qtbot.waitUntil(lambda: "starting" in states and workspace.run.state == "idle")
    assert not workspace.failures.recent and len(workspace.session.shown.segments) == 1
    assert workspace.configuration.edited.toggles["compile"] == "max-autotune"
