"""Presets and automatic verdicts with the real runner, over a model of two small layers."""

from __future__ import annotations

import msgspec

from workbench.ui import panel_list
from workbench.ui.controllers import verdict_prompt
from workbench.ui.state import config_edit
from workbench.ui.workspace import Workspace

TINY = {"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "max_sequence": 256}


def test_a_preset_chosen_in_a_run_is_judged_and_runs_on(qapp, qtbot, settings, monkeypatch):
    monkeypatch.setattr(verdict_prompt, "SETTLE_MS", 200)
    workspace = Workspace()
    workspace.verdict_prompt.keep_in(settings)
    workspace.presets.keep_in(settings)
    panel = panel_list.toggles(workspace)
    qtbot.addWidget(panel)
    try:
        _judge_a_preset(qtbot, workspace)
    finally:
        workspace.close()


def _judge_a_preset(qtbot, workspace) -> None:
    workspace.run.start_runner()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    chosen = config_edit.with_preset(
        workspace.configuration.catalogue, workspace.configuration.edited, "tiny"
    )
    chosen = config_edit.with_workload(workspace.configuration.catalogue, chosen, "forward")
    settings = {"batch": 1, "sequence": 16}
    workspace.configuration.edit(msgspec.structs.replace(chosen, model=TINY, settings=settings))
    latency = next(preset for preset in workspace.presets.offered if preset.name == "latency")
    workspace.verdicts.budget_s = 1.0
    workspace.verdict_prompt.set_automatic(True)
    workspace.runs.start()
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    with qtbot.waitSignal(workspace.presets.changed):
        workspace.presets.apply(latency)
    sentences = "\n".join(workspace.presets.outcome.left_out)
    assert "AdamW: Loop instead of Fused or Foreach: needs a backward pass" in sentences
    qtbot.waitUntil(lambda: workspace.verdicts.measuring)
    qtbot.waitUntil(lambda: not workspace.verdicts.busy and workspace.run.state == "running")
    newest = workspace.verdicts.newest  # a background comparison may have begun before it
    a, b = (
        workspace.session.shown.segments[index].configuration for index in newest.facts["segments"]
    )
    assert (a.toggles["precision"], b.toggles["precision"]) == ("fp32", "bf16")
    assert newest.facts["final"] and newest.facts["pairs"] >= 1
    assert all(numerics["ok"] for numerics in newest.facts["numerics"].values())
    assert workspace.run.running == b == workspace.session.shown.segments[-1].configuration
    steps = workspace.session.shown.segments[-1].steps
    qtbot.waitUntil(lambda: len(steps["t_s"]) > 5)  # and it does step
    assert not workspace.failures.recent
    workspace.run.stop()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
