"""Cancel during a compile: at once, with a new runner, and the run goes on as it was."""

from __future__ import annotations

import msgspec
import pytest

from workbench.ui.controllers import run_control
from workbench.ui.status import StatusBar


@pytest.fixture
def compiling(qtbot, state, panel, monkeypatch):
    """A run that compiles for ever after a toggle, and what the window says of the runner."""
    monkeypatch.setattr(run_control, "PATIENCE_MS", 100)
    status = StatusBar(state)
    qtbot.addWidget(status)
    state.edit(msgspec.structs.replace(state.configuration, data="compiles"))
    state.start()
    segments = state.session.segments
    qtbot.waitUntil(lambda: state.runner_state == "running" and len(segments[0].steps["t_s"]) > 0)
    state.set_toggle("adamw", "fused")
    qtbot.waitUntil(lambda: len(segments) == 2 and len(segments[1].steps["t_s"]) > 0)
    state.set_toggle("compile", "max-autotune")
    qtbot.waitUntil(lambda: len(segments) == 3 and state.runner_state == "building")
    return status


def test_a_cancelled_compile_goes_on_with_the_last_working_configuration(qtbot, state, compiling):
    assert state.running.toggles["compile"] == "max-autotune"
    compiling._cancel.click()
    assert compiling.runner.text() == "Cancelling"
    assert compiling._cancel.isHidden()
    qtbot.waitUntil(lambda: len(state.session.segments) == 4 and state.runner_state == "running")
    for toggles in (state.running.toggles, state.configuration.toggles):
        assert (toggles["compile"], toggles["adamw"]) == ("off", "fused")
    assert compiling.runner.text() == "Running"
    assert not state.failures and not state.pending
    assert run_control.RESUMED in [event.text for event in state.session.events]


def test_a_cancelled_first_build_leaves_an_idle_runner(qtbot, state, panel, monkeypatch):
    monkeypatch.setattr(run_control, "PATIENCE_MS", 100)
    toggles = {**state.configuration.toggles, "compile": "max-autotune"}
    state.edit(msgspec.structs.replace(state.configuration, data="compiles", toggles=toggles))
    state.start()
    qtbot.waitUntil(lambda: state.runner_state == "building" and state.running is not None)
    state.runs.cancel()
    qtbot.waitUntil(lambda: state.runner_state == "starting")
    qtbot.waitUntil(lambda: state.runner_state == "idle")
    assert not state.failures and len(state.session.segments) == 1
    assert state.configuration.toggles["compile"] == "max-autotune"
