"""On two GPUs: ranks need the estimated memory, and report it without that of other arms."""

from __future__ import annotations

import gc

import pytest
import torch
from built import own_peak, stepped
from rank_checks import BF16, on_gpus

from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.estimate import footprint
from workbench.runner.distributed import world
from workbench.runner.instruments.memory import free_memory

pytestmark = on_gpus
TENSOR = {"tensor_parallel": "2"}
SEQUENCE = {**TENSOR, "sequence_parallel": "on"}
STAGES = {"pipeline_parallel": "2"}
INTERLEAVED = {**STAGES, "schedule": "interleaved"}
ZERO_BUBBLE = {**STAGES, "schedule": "zero_bubble"}
DATA = {"data_parallel": "2"}
GRADIENTS, FULL, OFFLOAD = (
    {**DATA, "sharding": sharding} for sharding in ("gradients", "full", "offload")
)
CONTEXT = {"context_parallel": "2"}
EXPERTS = {"expert_parallel": "2"}
CCGQA = {"ccgqa": True, "n_kv_heads": 4}


def configure_first_choice(name: str, fields: dict[str, object], batch: int = 4) -> Configuration:
    """Return the family's preset that users see first."""
    family = FAMILIES[name]
    preset = family.first_choice
    sequence = min(1024, family.longest(family.configure(preset, fields)))
    settings = {"batch": batch, "sequence": sequence}
    return Configuration(
        family=name, preset=preset, settings=settings, workload="train", model=fields
    )


def peak_and_estimate(configuration: Configuration, **toggles: str) -> tuple[int, int]:
    """Return the measured and the estimated bytes of the rank that needs most."""
    world.forget_variants()
    gc.collect()
    free_memory()
    torch._C._cuda_clearCublasWorkspaces()
    before, arms = torch.cuda.memory_allocated(), VariantCache()
    arm = stepped(configuration, device="cuda", steps=3, arms=arms, **toggles)
    peaks = [own_peak(arm, arms) - before, *arm.divided.peaks[1:]]
    estimate = footprint(arm.situation)
    return max(peaks), estimate.total


@pytest.mark.parametrize(
    ("family", "fields", "toggles", "divided"),
    [
        ("hydra", {}, BF16, TENSOR),
        ("hydra", {}, {}, TENSOR),
        ("hydra", {}, {"precision": "bf16", "triton": "on"}, TENSOR),
        ("hydra", {}, {**BF16, "checkpointing": "full"}, TENSOR),
        ("hydra", {}, BF16, SEQUENCE),
        ("hydra", {}, {**BF16, "checkpointing": "full"}, SEQUENCE),
        ("hydra", CCGQA, BF16, TENSOR),
        ("hydra", {"mixture_of_depths": True}, BF16, TENSOR),
        ("hydra", {}, BF16, STAGES),
        ("hydra", {}, BF16, INTERLEAVED),
        ("hydra", {}, BF16, ZERO_BUBBLE),
        ("hydra", {}, BF16, DATA),
        ("hydra", {}, BF16, GRADIENTS),
        ("hydra", {}, BF16, FULL),
        ("hydra", {}, {**BF16, "adamw": "foreach"}, OFFLOAD),
        ("hydra", {}, BF16, CONTEXT),
        ("mamba2", {}, BF16, CONTEXT),
        ("moe", {}, BF16, EXPERTS),
        ("moe", {}, BF16, TENSOR),
        ("mamba2", {}, BF16, TENSOR),
        ("mamba2", {"n_groups": 2}, BF16, TENSOR),
        ("adaattn", {}, BF16, TENSOR),
        ("mahia", {}, BF16, TENSOR),
    ],
    ids=str,
)
def test_the_rank_that_needs_most_is_estimated_within_a_twentieth(family, fields, toggles, divided):
    configuration = configure_first_choice(family, fields)
    peak, estimate = peak_and_estimate(configuration, **toggles, **divided)
    print(f"{family} {fields} {toggles} {divided}: {peak >> 20} MiB, {estimate / peak - 1:+.1%}")
    assert estimate == pytest.approx(peak, rel=0.05)


def test_memory_that_a_rank_needs_for_other_arms_is_not_reported_as_this_arms():
    configuration = configure_first_choice("hydra", {}, batch=2)

    def peak_of_rank_1(arms: VariantCache, **toggles: str) -> int:
        arm = stepped(configuration, device="cuda", steps=3, arms=arms, **toggles, **STAGES)
        return arm.divided.peaks[1]

    halves = {"precision": "bf16", "triton": "on"}
    alone = peak_of_rank_1(VariantCache(), **halves)
    world.close()
    arms = VariantCache()
    peak_of_rank_1(arms)  # weights and moments in FP32
    beside = peak_of_rank_1(arms, **halves)
    print(f"{alone >> 20} MiB alone, {beside >> 20} beside another")
    assert beside == pytest.approx(alone, rel=0.05)
