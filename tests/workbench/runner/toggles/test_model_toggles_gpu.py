"""The model's toggles with the kernels that only a GPU has: for 8 bits, and fused ones."""

from __future__ import annotations

import gc

import msgspec
import pytest
import torch
from built_arms import configuration, evidence_of, stepped

from kernels import hardware
from workbench.runner.config.availability import blocked_options
from workbench.runner.config.resolve import resolve
from workbench.runner.numerics import comparison

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)
HALF = {"precision": "amp_bf16"}


def judged(requested, toggle, status="effective"):
    """The evidence and the numerical check of an option that nothing blocks on this GPU."""
    situation = resolve(requested, GPU)
    why = blocked_options(situation).get(toggle, {}).get(requested.toggles[toggle])
    assert why is None, why
    arm = stepped(requested, device=GPU)
    evidence = evidence_of(arm, toggle)
    assert evidence.status == status, evidence.text
    checked = comparison.check(arm, situation)
    assert checked.ok and checked.reference, checked.text
    return arm


@pytest.mark.parametrize("graphs", ["off", "on"])
@pytest.mark.parametrize(
    ("scheme", "kernel", "capability"),
    [
        ("int8_weight_only", "dequantize", (7, 0)),
        ("int8_dynamic", "int_mm", (7, 5)),
        ("fp8_tensor", "scaled_mm", (8, 9)),
        ("fp8_row", "scaled_mm", (9, 0)),
    ],
)
def test_each_scheme_runs_in_its_own_kernel_and_is_right(scheme, kernel, capability, graphs):
    if hardware.of(GPU).capability < capability:
        pytest.skip(f"{scheme} needs compute capability {capability}")
    toggles = HALF | {"quantization": scheme, "cuda_graphs": graphs}
    arm = judged(configuration("hydra", batch=2, sequence=64, toggles=toggles), "quantization")
    assert set(arm.record.usage["quantized_matmul"]) == {kernel}


def test_the_memory_held_falls_by_what_codes_save():
    allocated, weights = {}, {}
    for option in ("none", "int8_weight_only") * 2:  # at first libraries take workspaces
        gc.collect()
        before = torch.cuda.memory_allocated()
        requested = configuration("hydra", toggles=HALF | {"quantization": option})
        arm = stepped(msgspec.structs.replace(requested, preset="small"), device=GPU)
        gc.collect()
        allocated[option] = torch.cuda.memory_allocated() - before
        weights[option] = arm.ledger["weights_bytes"]
        del arm
    saved = weights["none"] - weights["int8_weight_only"]
    assert saved > 8 << 20
    assert allocated["none"] - allocated["int8_weight_only"] == pytest.approx(saved, rel=0.02)


def test_fp8_of_single_precision_inputs_is_blocked_with_half_precision():
    if hardware.of(GPU).capability < (9, 0):
        pytest.skip("FP8 needs compute capability 9.0")
    blocked = blocked_options(resolve(configuration("hydra"), GPU))["quantization"]
    assert "not float32" in blocked["fp8_row"].reason
    assert blocked["fp8_row"].set == {"precision": "amp_bf16"}
    assert "int8_dynamic" not in blocked


@pytest.mark.parametrize(
    ("family", "workload", "toggle", "option"),
    [
        ("mamba2", "train", "fused_add_norm", "triton"),
        ("hydra", "train", "fused_add_norm", "triton"),
        ("adaattn", "forward", "fused_add_norm", "triton"),
        ("moe", "train", "fused_loss", "triton"),
        ("moe", "train", "fused_loss", "triton_small"),
        ("moe", "train", "triton_moe_experts", "triton"),
        ("mamba2", "decode", "triton_ssd_step", "triton"),
        ("hydra", "decode", "triton_linear", "triton"),
        ("hydra", "decode", "fused_linear", "triton"),
        ("mamba2", "decode", "fused_linear", "torch"),
        ("adaattn", "decode", "fused_cache", "triton"),
        ("mamba2", "decode", "fused_cache", "triton"),
        ("hydra", "forward", "fused_linear", "triton"),
        ("hydra", "forward", "fused_heads", "triton"),
        ("adaattn", "forward", "fused_heads", "triton"),
        ("hydra", "forward", "window", "32"),
    ],
)
def test_fused_kernels_run_and_are_right(family, workload, toggle, option):
    # On a GPU "auto" chooses these too.
    is_default = toggle in ("triton_moe_experts", "triton_ssd_step", "triton_linear")
    status = "as default" if is_default else "effective"
    needs_weights = toggle in ("fused_linear", "fused_cache", "fused_heads")
    precision = {"precision": "bf16"} if needs_weights else HALF
    toggles = precision | {toggle: option}
    judged(configuration(family, workload, sequence=64, toggles=toggles), toggle, status)
