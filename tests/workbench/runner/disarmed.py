"""Variants of which one toggle was asked for and not applied, and what its evidence says."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.batches import SYNTHETIC
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.toggles import all_toggles

IMAGES = Path(__file__).parents[2] / "examples" / "own_model.py"
PLAIN = IMAGES.with_name("own_plain.py")  # with a part for every toggle that replaces modules
# Families and workloads that call what a toggle acts on, where that is not HYDRA's training.
WHERE = {
    "adaptive_precision": ("adaattn", "forward"),
    "adaptive_rank": ("adaattn", "forward"),
    "attention_every": ("mamba2", "forward"),
    "cudnn_benchmark": ("own", "train"),
    "diffusion_steps": ("mahia", "forward"),
    "dynamic_depth": ("mahia", "forward"),
    "fused_cache": ("hydra", "decode"),
    "fused_heads": ("hydra", "forward"),
    "fused_linear": ("hydra", "decode"),
    "in_place": ("moe", "forward"),
    "kernel_fourier_mix": ("mahia", "train"),
    "kernel_low_rank": ("adaattn", "train"),
    "low_rank": ("adaattn", "forward"),
    "moe_buffers": ("moe", "forward"),
    "reuse_buffers": ("moe", "forward"),
    "ssd_chunk": ("mamba2", "train"),
    "triton_adaptive_attention": ("adaattn", "train"),
    "triton_causal_conv1d": ("mamba2", "train"),
    "triton_gated_rms_norm": ("mamba2", "train"),
    "triton_graph_diffusion": ("mahia", "train"),
    "triton_linear": ("hydra", "decode"),
    "triton_moe_experts": ("moe", "train"),
    "triton_moe_gating": ("moe", "train"),
    "triton_qk_norm_rope": ("adaattn", "train"),
    "triton_ssd_scan": ("mamba2", "train"),
    "triton_ssd_step": ("mamba2", "decode"),
    "triton_token_router": ("mahia", "train"),
    "triton_token_scatter": ("mahia", "train"),
    "use_fourier": ("mahia", "forward"),
}
WHERE |= {name: ("own", "train") for name, toggle in all_toggles().items() if toggle.brings}
DEFAULT = ("hydra", "train")
# What a toggle needs of others to be usable.
BESIDE = {name: {"precision": "bf16"} for name in ("fused_linear", "triton_linear")}
DATA = {"data_loading": __file__}
CHOICES = [
    (name, option) for name, toggle in all_toggles().items() for option in list(toggle.options)[1:]
]


@functools.cache
def usual_place(name: str) -> tuple[str, str]:
    """Return family and workload for a toggle: the row above, or the first that can use it."""
    if name in WHERE:
        return WHERE[name]
    places = [(family.name, workload) for family in FAMILIES.values()
              for workload in family.workloads]  # fmt: skip
    options = list(all_toggles()[name].options)[1:]
    for family, workload in (DEFAULT, *places):
        wanted = Configuration(family=family, preset="tiny", workload=workload)
        blocked = resolve.availability(wanted, torch.device("cpu")).blocked.get(name, {})
        if not blocked.keys() >= set(options):
            return family, workload
    return DEFAULT


def configuration(name: str, option: str) -> Configuration:
    """Return a tiny model that calls what the toggle acts on."""
    family, workload = usual_place(name)
    settings = {"batch": 2} if family == "own" else {"batch": 1, "sequence": 16}
    settings |= {"new_tokens": 4} if workload == "decode" else {}
    return Configuration(
        family=family,
        preset="file" if family == "own" else "tiny",
        model={"source": str(PLAIN if all_toggles()[name].brings else IMAGES)}
        if family == "own"
        else {},
        workload=workload,
        settings=settings,
        toggles={"triton": "off", name: option} | BESIDE.get(name, {}),
        data=DATA.get(name, SYNTHETIC),
    )


@contextmanager
def without_apply(name: str) -> Iterator[None]:
    """Let a toggle change neither the build nor the model's fields."""
    toggles = all_toggles()
    toggle = toggles[name]
    configure = None if toggle.configure is None else lambda option, config: {}
    toggles[name] = dataclasses.replace(
        toggle, apply=lambda option, build: None, configure=configure
    )
    try:
        yield
    finally:
        toggles[name] = toggle


def disarmed(name: str, option: str, device: str) -> tuple[str, str]:
    """Return the toggle's finding of an arm that it did not change: status and text."""
    with without_apply(name):
        situation = resolve.resolve(configuration(name, option), torch.device(device))
        arm = VariantCache().get(situation, PhaseTracker(lambda phase: None))
        with arm.entered():
            with arm.watched():
                arm.step()
            arm.step()
        (evidence,) = [item for item in arm.find_evidence() if item.toggle == name]
    return evidence.status, evidence.text
