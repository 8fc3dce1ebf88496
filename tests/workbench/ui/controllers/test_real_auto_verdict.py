"""Presets and automatic verdicts with the real runner, over a model of two small layers."""

from __future__ import annotations

import msgspec

from workbench.ui.controllers import config_edit, verdict_prompt
from workbench.ui.panels.toggles import TogglesPanel
from workbench.ui.state import AppState

TINY = {"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "max_sequence": 256}


def test_a_preset_chosen_in_a_run_is_judged_and_runs_on(qapp, qtbot, settings, monkeypatch):
    monkeypatch.setattr(verdict_prompt, "SETTLE_MS", 200)
    state = AppState()
    state.offers.keep_in(settings)
    state.presets.keep_in(settings)
    panel = TogglesPanel(state)
    qtbot.addWidget(panel)
    try:
        _judge_a_preset(qtbot, state)
    finally:
        state.close()


def _judge_a_preset(qtbot, state) -> None:
    state.start_runner()
    qtbot.waitUntil(lambda: state.runner_state == "idle", timeout=150_000)
    chosen = config_edit.with_preset(state.catalogue, state.configuration, "tiny")
    chosen = config_edit.with_workload(state.catalogue, chosen, "forward")
    settings = {"batch": 1, "sequence": 16}
    state.edit(msgspec.structs.replace(chosen, model=TINY, settings=settings))
    latency = next(one for one in state.presets.offered if one.name == "latency")
    state.verdicts.budget_s = 1.0
    state.offers.set_automatic(True)
    state.start()
    qtbot.waitUntil(lambda: state.runner_state == "running", timeout=60_000)
    with qtbot.waitSignal(state.presets.changed, timeout=60_000):
        state.presets.apply(latency)
    told = "\n".join(state.presets.told.left_out)
    assert "AdamW: Loop, and not Fused or Foreach: acts on the backward pass" in told
    qtbot.waitUntil(lambda: state.verdicts.measuring, timeout=60_000)
    qtbot.waitUntil(
        lambda: not state.verdicts.busy and state.runner_state == "running", timeout=60_000
    )
    found = state.verdicts.newest  # a background comparison may have begun before it
    a, b = (state.session.segments[place].configuration for place in found.facts["segments"])
    assert (a.toggles["precision"], b.toggles["precision"]) == ("fp32", "bf16")
    assert found.facts["final"] and found.facts["pairs"] >= 1
    assert all(numerics["ok"] for numerics in found.facts["numerics"].values())
    assert state.running == b == state.session.segments[-1].configuration
    steps = state.session.segments[-1].steps
    qtbot.waitUntil(lambda: len(steps["t_s"]) > 5, timeout=60_000)  # and it does step
    assert not state.failures
    state.stop()
    qtbot.waitUntil(lambda: state.runner_state == "idle", timeout=60_000)
