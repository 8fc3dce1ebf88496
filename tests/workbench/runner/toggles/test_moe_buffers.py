"""Pre-allocated MoE buffers as a toggle: one for all layers, right, blocked where they harm."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from built_arms import CPU, blocked, configuration, evidence_of, stepped

from models.layers.mixture import MixtureOfExperts, StreamBuffer
from workbench.runner.config.resolve import resolve
from workbench.runner.numerics import comparison
from workbench.runner.toggles import all_toggles

ON = {"moe_buffers": "on"}


def workspaces(arm):
    return [m.workspace for m in arm.model.modules() if isinstance(m, MixtureOfExperts)]


@pytest.mark.parametrize("workload", ["forward", "prefill", "decode"])
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_all_layers_compute_in_one_workspace_and_their_numbers_are_right(workload, precision):
    requested = configuration("moe", workload, toggles=ON | {"precision": precision})
    arm = stepped(requested)
    shared = set(workspaces(arm))
    assert len(shared) == 1 and None not in shared
    evidence = evidence_of(arm, "moe_buffers")
    assert evidence.status == "effective", evidence.text
    (workspace,) = shared
    assert f"3 layers placed {workspace.requests:,} tensors" in evidence.text
    judged = comparison.check(arm, resolve(requested, CPU))
    assert judged.ok, judged.text


def test_steps_after_the_first_take_no_new_memory_and_give_the_same_as_without():
    arms = [stepped(configuration("moe", toggles=toggles)) for toggles in ({}, ON)]
    (workspace,) = set(workspaces(arms[1]))
    allocations, outputs = workspace.allocations, []
    for arm in arms:
        with arm.entered(), torch.no_grad():
            outputs.append(arm.step().clone())
    assert workspace.allocations == allocations
    torch.testing.assert_close(*outputs)
    assert set(workspaces(arms[0])) == {None}


def test_adding_in_place_to_what_lies_in_the_workspace_is_right():
    requested = configuration("moe", toggles=ON | {"in_place": "on"})
    judged = comparison.check(stepped(requested), resolve(requested, CPU))
    assert judged.ok, judged.text


def test_a_wrong_addition_in_the_buffer_is_not_repeated_by_the_reference(monkeypatch):
    total = StreamBuffer.total
    monkeypatch.setattr(StreamBuffer, "total", lambda self, x, y: total(self, x, y.flip(-1)))
    requested = configuration("moe", toggles={"reuse_buffers": "on"})
    judged = comparison.check(stepped(requested), resolve(requested, CPU))
    assert judged.ok is False, judged.text


def test_scales_of_quantized_layers_are_checked_beside_a_buffer_for_inference():
    toggles = {"reuse_buffers": "on", "quantization": "fp8_tensor"}
    requested = configuration("moe", toggles=toggles)
    judged = comparison.check(stepped(requested), resolve(requested, CPU))
    assert judged.ok, judged.text


def test_training_and_models_without_experts_have_it_blocked_with_the_reason():
    why = blocked(configuration("moe", "train"), "moe_buffers", "on")
    assert why.reason == "overwrites tensors that the backward pass needs"
    assert why.set == {"workload": "forward"}
    assert blocked(configuration("hydra"), "moe_buffers", "on") is not None
    assert blocked(configuration("moe"), "moe_buffers", "on") is None


def test_a_workspace_that_nothing_was_computed_in_is_no_effect():
    arm = stepped(configuration("moe", toggles=ON))
    for module in arm.model.modules():
        if isinstance(module, MixtureOfExperts):
            module.workspace.requests = module.workspace.allocations = 0
    assert evidence_of(arm, "moe_buffers").status == "no effect"


@pytest.mark.parametrize("toggles", [{"triton": "auto"}, {"triton_moe_experts": "auto"}])
def test_measured_experts_are_not_called_experts_by_pytorch(toggles):
    situation = resolve(configuration("moe", toggles=toggles), CPU)
    on_gpu = dataclasses.replace(situation, device=torch.device("cuda"))
    why = all_toggles()["moe_buffers"].blocked("on", on_gpu)
    assert why.reason == (
        "the fastest implementation of MoE experts may allocate new memory in each call"
    )
    assert why.set == {"triton_moe_experts": "triton"}
