"""Toggles that only a GPU can prove: memory that moves or is taken another way, cuDNN, captures."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest
import torch
from built import blocked, collect_evidence, stepped

from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.numerics import comparison
from workbench.runner.profiling import instrumented
from workbench.runner.training import optimizers

pytestmark = pytest.mark.gpu

IMAGES = Path(__file__).parents[3] / "examples" / "own_model.py"
MIB = 1 << 20


@pytest.fixture
def wide(small):
    """Activations of some MiB."""
    return msgspec.structs.replace(
        small, model={}, preset="tiny", settings={"batch": 16, "sequence": 256}
    )


def on_gpu(configuration, workload="train", **toggles):
    return stepped(configuration, workload, device="cuda", steps=3, **toggles)


def held_for_backward(arm) -> int:
    """Bytes that are allocated more once the loss is computed."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with arm.entered():
        loss = arm.compute(*arm.batches.inputs, *arm.batches.targets)
        allocated = torch.cuda.memory_allocated() - before
        loss.backward()
    return allocated


def all_effective(arm) -> dict[str, str]:
    evidence = collect_evidence(arm)
    assert all(status == "effective" for status, _ in evidence.values()), evidence
    return {toggle: text for toggle, (_, text) in evidence.items()}


@pytest.mark.parametrize("mode", ["off", "default"])
def test_offloaded_activations_leave_the_gpu_and_the_loss_as_it_was(wide, mode):
    plain = held_for_backward(on_gpu(wide, compile=mode))
    arm = on_gpu(wide, compile=mode, activation_offload="on")
    all_effective(arm)
    moved = arm.compute.moved_bytes
    assert moved > 8 * MIB
    assert held_for_backward(arm) < plain - moved // 2
    batch = (*arm.batches.inputs, *arm.batches.targets)
    with arm.entered():
        torch.testing.assert_close(arm.compute(*batch), arm.model.loss(*batch), rtol=1e-4, atol=0)


def test_offloading_and_captured_steps_exclude_each_other(wide):
    blocked_options = blocked(wide, device="cuda", adamw="fused", cuda_graphs="on")
    assert blocked_options["activation_offload"]["on"].set == {"cuda_graphs": "off"}


def expandable() -> int:
    segments = torch.cuda.memory_snapshot()
    return sum(segment["total_size"] for segment in segments if segment["is_expandable"])


def test_segments_grow_while_the_arm_is_in_force_and_no_longer(wide):
    torch.cuda.empty_cache()
    arm = on_gpu(wide, allocator="expandable")
    with arm.entered():
        arm.step()
        all_effective(arm)
        inside = expandable()
    assert inside > 8 * MIB
    torch.cuda.empty_cache()
    setting = expandable()
    other = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert expandable() == setting, "the setting was left behind"
    del other


def test_convolutions_through_cudnn_are_found():
    own = Configuration(
        family="own", preset="file", model={"source": str(IMAGES)}, settings={"batch": 8}
    )
    status, text = collect_evidence(on_gpu(own, cudnn_benchmark="on"))["cudnn_benchmark"]
    assert status == "effective" and "2 Cudnn" in text
    assert not torch.backends.cudnn.benchmark


def test_forbidding_the_backend_that_torch_chooses_makes_it_choose_another(wide):
    toggles = {"attention": "sdpa", "precision": "amp_bf16"}
    arm = on_gpu(wide, "forward", **toggles)
    with arm.entered(), instrumented.AttentionChoices(contextlib.nullcontext) as seen:
        instrumented.call(arm)
    ((chosen, _),) = seen.chosen
    switch = {"flash": "sdp_flash", "efficient": "sdp_mem_efficient", "cudnn": "sdp_cudnn"}[chosen]
    evidence = collect_evidence(
        on_gpu(wide, "forward", **toggles, sdp_math="forbidden", **{switch: "forbidden"})
    )
    assert evidence[switch][0] == "effective" and f"allowed: {chosen}" in evidence[switch][1]
    assert evidence["sdp_math"][0] == "no effect"


@pytest.mark.parametrize(
    "toggles",
    [
        {"checkpointing": "operators", "cuda_graphs": "on"},
        {"checkpointing": "operators", "compile": "default"},
        {"compile": "default", "compile_scope": "blocks", "cuda_graphs": "on"},
    ],
    ids=["operators captured", "operators compiled", "blocks compiled and captured"],
)
def test_they_work_compiled_and_captured(wide, toggles):
    all_effective(on_gpu(wide, adamw="fused", precision="amp_bf16", **toggles))


def test_blocks_are_not_compiled_alone_where_each_would_be_a_graph(wide):
    why = blocked(wide, device="cuda", compile="max-autotune")["compile_scope"]
    assert why["blocks"].set == {"compile": "max-autotune-no-cudagraphs"}


@pytest.mark.parametrize("library", optimizers.EIGHT_BIT)
def test_8_bit_moments_take_their_steps_on_the_gpu(wide, library):
    pytest.importorskip(library)
    all_effective(on_gpu(wide, adamw=f"8bit_{library}"))


@pytest.mark.parametrize("compiled", ["off", "default"])
def test_a_step_is_captured_where_inductor_has_captured_one_of_the_same_weights(wide, compiled):
    arms = VariantCache()
    before = on_gpu(wide, compile="reduce-overhead", adamw="fused", arms=arms)
    numbers = comparison.check(before, before.situation)  # a loss without a backward pass, too
    assert numbers.ok, numbers.text
    arm = on_gpu(wide, compile=compiled, cuda_graphs="on", adamw="fused", arms=arms)
    assert arms.count == 2
    assert all_effective(arm)["cuda_graphs"]


@pytest.mark.parametrize("triton", ["off", "auto"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_captured_steps_and_those_that_inductor_captured_take_turns(family, triton):
    requested, arms = Configuration(family=family, preset="tiny"), VariantCache()
    shared = {"precision": "amp_bf16", "adamw": "fused", "triton": triton, "arms": arms}
    modes = ({"compile": "default", "cuda_graphs": "on"}, {"compile": "reduce-overhead"})
    for _ in range(3):
        for mode in modes:
            arm = on_gpu(requested, **shared, **mode)
    torch.cuda.synchronize()
    numbers = comparison.check(arm, arm.situation)
    assert numbers.ok, numbers.text


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_captured_after_the_evidence_of_checkpointing(family):
    requested, arms = Configuration(family=family, preset="tiny"), VariantCache()
    arm = on_gpu(requested, checkpointing="full", arms=arms)
    collect_evidence(arm)
    captured = on_gpu(requested, adamw="fused", cuda_graphs="on", arms=arms)
    all_effective(captured)
