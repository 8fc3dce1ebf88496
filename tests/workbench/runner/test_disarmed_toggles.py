"""No toggle claims an effect that it did not have: each is built with its application taken out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from sessions.model import Configuration
from workbench.runner import resolve
from workbench.runner.arm import Arms
from workbench.runner.phases import PhaseTracker
from workbench.runner.toggles import all_toggles

IMAGES = Path(__file__).parents[2] / "examples" / "own_model.py"
# Of what acts through the fields of the configuration, test_field_toggles.py tells.
APPLIED = {name: toggle for name, toggle in all_toggles().items() if toggle.configure is None}
# Families and workloads that call what a toggle acts on, where that is not HYDRA's training.
WHERE = {
    "cudnn_benchmark": ("own", "train"),
    "kernel_fourier_mix": ("mahia", "train"),
    "kernel_low_rank": ("adaattn", "train"),
    "moe_buffers": ("moe", "forward"),
    "ssd_chunk": ("mamba2", "train"),
    "triton_adaptive_attention": ("adaattn", "train"),
    "triton_causal_conv1d": ("mamba2", "train"),
    "triton_gated_rms_norm": ("mamba2", "train"),
    "triton_graph_diffusion": ("mahia", "train"),
    "triton_moe_experts": ("moe", "train"),
    "triton_moe_gating": ("moe", "train"),
    "triton_qk_norm_rope": ("adaattn", "train"),
    "triton_ssd_scan": ("mamba2", "train"),
    "triton_ssd_step": ("mamba2", "decode"),
    "triton_token_router": ("mahia", "train"),
    "triton_token_scatter": ("mahia", "train"),
}
# Off means the same: plain PyTorch runs where nothing else is asked for.
CHOICES = [
    (name, option)
    for name, toggle in APPLIED.items()
    for option in list(toggle.options)[1:]
    if (name, option) != (name, "torch") or name == "fused_add_norm"
]


def disarmed(monkeypatch, name: str, option: str, device: str) -> tuple[str, str]:
    """What the toggle says of an arm that it did not change."""
    toggle = dataclasses.replace(APPLIED[name], apply=lambda option, build: None)
    monkeypatch.setitem(all_toggles(), name, toggle)
    family, workload = WHERE.get(name, ("hydra", "train"))
    settings = {"batch": 2} if family == "own" else {"batch": 1, "sequence": 16}
    settings |= {"new_tokens": 4} if workload == "decode" else {}
    asked = Configuration(
        family=family,
        preset="file" if family == "own" else "tiny",
        model={"source": str(IMAGES)} if family == "own" else {},
        workload=workload,
        settings=settings,
        toggles={"triton": "off", name: option},
    )
    situation = resolve.resolve(asked, torch.device(device))
    arm = Arms().get(situation, PhaseTracker(lambda phase: None))
    with arm.entered():
        with arm.watched():
            arm.step()
        arm.step()
    (found,) = [one for one in arm.find_evidence() if one.toggle == name]
    return found.status, found.text


@pytest.mark.parametrize(("name", "option"), CHOICES, ids=lambda value: value)
def test_a_toggle_that_changes_nothing_shows_no_effect(name, option, monkeypatch):
    status, text = disarmed(monkeypatch, name, option, "cpu")
    assert status == "no effect", text
    assert text


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("allocator", "expandable"),
        ("compile", "max-autotune"),
        ("compile", "reduce-overhead"),
        ("cuda_graphs", "on"),
        ("cudnn_benchmark", "on"),
        ("precision", "tf32"),
        ("triton", "on"),
    ],
)
def test_on_a_gpu_too_a_toggle_that_changes_nothing_shows_no_effect(name, option, monkeypatch):
    status, text = disarmed(monkeypatch, name, option, "cuda")
    assert status == "no effect", text
