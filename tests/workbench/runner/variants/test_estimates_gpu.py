"""On a GPU: steps need about the memory that was estimated before anything was built."""

import gc

import pytest
import torch
from built import own_peak, stepped

from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.estimate import footprint
from workbench.runner.instruments.memory import free_memory

DEFAULTS = [
    (name, workload)
    for name, family in FAMILIES.items()
    for workload in ("forward", "train", "decode")
    if workload in family.workloads
]
HALF = {"precision": "bf16", "triton": "on"}


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "workload"), DEFAULTS)
def test_the_peak_of_steps_is_estimated_within_a_tenth(name, workload):
    # What tests before have left is not this arm's; cuBLAS's workspaces, which it shares, are.
    gc.collect()
    free_memory()
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_allocated()
    requested, arms = Configuration(family=name, preset=FAMILIES[name].first_choice), VariantCache()
    arm = stepped(requested, workload, device="cuda", steps=3, arms=arms, **HALF)
    peak = own_peak(arm, arms) - before
    estimate = footprint(arm.situation).total
    print(f"{name} {workload}: {peak >> 20} MiB, estimated {estimate >> 20}")
    assert estimate == pytest.approx(peak, rel=0.1)
