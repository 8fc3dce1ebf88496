"""On two GPUs: each rank needs about what is estimated, and tells it without other arms' memory."""

from __future__ import annotations

import gc

import pytest
import torch
from built import own_peak, stepped
from test_ranks_gpu import BF16, ended, pytestmark  # noqa: F401 - a fixture, and marks

from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.config import resolve
from workbench.runner.distributed import world
from workbench.runner.instruments.memory import free_memory
from workbench.runner.variants.variant import Arms

TENSOR = {"tensor_parallel": "2"}
SEQUENCE = {**TENSOR, "sequence_parallel": "on"}
STAGES = {"pipeline_parallel": "2"}
CCGQA = {"ccgqa": True, "n_kv_heads": 4}


def asked(family: str, fields: dict[str, object], batch: int = 4) -> Configuration:
    found = FAMILIES[family]
    sequence = min(1024, found.longest(found.configure(found.first_choice, fields)))
    settings = {"batch": batch, "sequence": sequence}
    return Configuration(
        family=family, preset=found.first_choice, settings=settings, workload="train", model=fields
    )


def peak_and_estimate(one: Configuration, **toggles: str) -> tuple[int, int]:
    """Bytes of the rank that needs most."""
    world.forget_variants()
    gc.collect()
    free_memory()
    torch._C._cuda_clearCublasWorkspaces()
    before, arms = torch.cuda.memory_allocated(), Arms()
    arm = stepped(one, device="cuda", steps=3, arms=arms, **toggles)
    peaks = [own_peak(arm, arms) - before, *arm.divided.peaks[1:]]
    footprint = resolve.footprint(arm.situation)
    return max(peaks), footprint.total


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
        ("moe", {}, BF16, TENSOR),
        ("mamba2", {}, BF16, TENSOR),
        ("mamba2", {"n_groups": 2}, BF16, TENSOR),
        ("adaattn", {}, BF16, TENSOR),
        ("mahia", {}, BF16, TENSOR),
    ],
    ids=str,
)
def test_the_rank_that_needs_most_is_estimated_within_a_twentieth(family, fields, toggles, divided):
    peak, estimate = peak_and_estimate(asked(family, fields), **toggles, **divided)
    print(f"{family} {fields} {toggles} {divided}: {peak >> 20} MiB, {estimate / peak - 1:+.1%}")
    assert estimate == pytest.approx(peak, rel=0.05)


def test_what_a_rank_holds_for_other_arms_is_not_told_as_this_arms():
    one, arms = asked("hydra", {}, batch=2), Arms()
    halves = {"precision": "bf16", "triton": "on"}
    alone = stepped(one, device="cuda", steps=3, arms=arms, **halves, **STAGES).divided.peaks[1]
    world.close()
    arms = Arms()
    stepped(one, device="cuda", steps=3, arms=arms, **STAGES)  # weights and moments in FP32
    beside = stepped(one, device="cuda", steps=3, arms=arms, **halves, **STAGES).divided.peaks[1]
    print(f"{alone >> 20} MiB alone, {beside >> 20} beside another")
    assert beside == pytest.approx(alone, rel=0.05)
