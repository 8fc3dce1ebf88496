"""Presets on a GPU: what is chosen runs, and takes effect."""

from __future__ import annotations

import msgspec
import pytest

from workbench.runner.config import presets

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("name", "workload"), [("latency", "forward"), ("throughput", "train"), ("low-memory", "train")]
)
def test_a_preset_runs_and_takes_effect(runner, small, name, workload):
    (preset,) = (preset for preset in presets.all_presets() if preset.name == name)
    requested = msgspec.structs.replace(small, workload=workload, toggles=preset.toggles)
    runner.start(requested, steps=30)
    assert runner.finish().reason == "done", runner.describe()
    segment = runner.session.segments[-1]
    evidence = {evidence.toggle: evidence for evidence in segment.evidence}
    wanted = {
        "latency": ("precision", "triton", "cuda_graphs"),
        "throughput": ("precision", "compile", "cuda_graphs", "adamw", "fused_loss", "triton"),
        "low-memory": ("precision", "checkpointing", "compile"),
    }
    for toggle in wanted[name]:
        assert evidence[toggle].status == "effective", evidence[toggle]
