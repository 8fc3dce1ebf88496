"""Bundled models call a Triton kernel only with inputs that it supports on a GPU.

On a GPU the toggle of all operators is on by default, so that a refusal ends the first step.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import kernels
from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config import resolve
from workbench.runner.instruments.phases import PhaseTracker

BUNDLED = [(family.name, workload) for family in FAMILIES.values() for workload in family.workloads]


def refusals(family: str, workload: str, precision: str, batch: int) -> set[tuple[str, str]]:
    """Return operators that a step calls, each with what its Triton kernel refuses on a GPU."""
    wanted = Configuration(
        family=family,
        preset="tiny",
        workload=workload,
        settings={"batch": batch},
        toggles={"precision": precision},
    )
    cpu = torch.device("cpu")
    variant = VariantCache().get(resolve.resolve(wanted, cpu), PhaseTracker(lambda phase: None))
    refused: set[tuple[str, str]] = set()

    def watch(op: kernels.Operator, name: str, args: tuple[Any, ...]) -> Any:
        kernel = op.implementations.get("triton")
        if kernel is not None and kernel.refuses is not None:
            with FakeTensorMode():
                reason = kernel.refuses(*tree_map(on_gpu, args))
            refused.update({(op.name, reason)} if reason else ())
        return op.implementations[name].call(*args)

    with variant.entered(), kernels.watched(watch):
        variant.step()
    return refused


def on_gpu(value: Any) -> Any:
    """Return a fake tensor of the same shape, strides and dtype on a GPU."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")


@pytest.mark.sample(15)
@pytest.mark.parametrize(("precision", "batch"), [("fp32", 2), ("bf16", 20), ("amp_bf16", 16)])
@pytest.mark.parametrize(("family", "workload"), BUNDLED)
def test_no_triton_kernel_refuses_what_a_bundled_model_computes(
    family: str, workload: str, precision: str, batch: int
) -> None:
    assert refusals(family, workload, precision, batch) == set()
