"""The checks on a GPU: what really waits, what the allocator counts, what is captured."""

from __future__ import annotations

import msgspec
import pytest
import torch

from sessions.studies import checklist
from workbench import protocol
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.experiments import checks
from workbench.runner.instruments.phases import PhaseTracker

pytestmark = pytest.mark.gpu


@pytest.fixture
def build(small):
    arms = VariantCache()

    def build(workload="forward", **toggles):
        configuration = msgspec.structs.replace(small, workload=workload, toggles=toggles)
        situation = resolve(configuration, torch.device("cuda"))
        arm = arms.get(situation, PhaseTracker(lambda phase: None))
        with arm.entered(), arm.watched():
            checks.step(arm, 3)
        return arm

    return build


@pytest.mark.parametrize("workload", ["forward", "train"])
@pytest.mark.parametrize("adamw", ["loop", "fused"])
def test_steps_that_wait_for_nothing_pass(build, workload, adamw):
    result = checks.no_syncs(build(workload, adamw=adamw))
    assert (result.status, result.lines) == ("pass", []), result


@pytest.mark.parametrize("compiled", ["off", "default"])
def test_a_wait_is_found_once_with_its_line_compiled_or_not(build, compiled):
    arm = build(compile=compiled)
    arm.model.register_forward_hook(lambda module, inputs, output: output * output.mean().item())
    with arm.entered():
        checks.step(arm, 2)
    result = checks.no_syncs(arm)
    assert result.status == "fail" and len(result.lines) == 1, result
    assert "output.mean().item()" in result.lines[0]


def test_scaling_the_loss_waits_and_the_fused_step_does_not(build):
    assert checks.no_syncs(build("train", precision="amp_fp16", adamw="loop")).status == "fail"
    assert checks.no_syncs(build("train", precision="amp_fp16", adamw="fused")).status == "pass"


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_a_leak_is_found_to_the_byte_and_steady_steps_pass(build, graphs):
    assert checks.steady_memory(build(cuda_graphs=graphs), 8).status == "pass"
    arm, leaked = build("train", adamw="fused"), []
    step = arm.step
    arm.step = lambda: leaked.append(torch.zeros(4096, device="cuda")) or step()
    result = checks.steady_memory(arm, 8)
    assert result.status == "fail" and "each step leaks 16,384 bytes: " in result.evidence


def test_a_captured_training_step_in_bf16_passes_the_checklist(runner, small):
    toggles = {"precision": "amp_bf16", "adamw": "fused", "cuda_graphs": "on"}
    configuration = msgspec.structs.replace(small, workload="train", toggles=toggles)
    runner.send(protocol.Validate(configuration=configuration, steps=8, budget_s=5.0, batches=[2]))
    assert runner.finish().reason == "done", runner.describe()
    checks_done = checklist.rows(checklist.newest(runner.session))
    assert [row.status for row in checks_done] == ["pass"] * 6, checks_done
    assert checks_done[2].evidence.startswith("captured in the first step")
