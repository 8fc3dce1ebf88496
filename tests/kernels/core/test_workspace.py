"""Workspace of the experts: right numbers, in memory that is allocated once, for inference only."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import kernels
from kernels import Case, Mistake, Workspace

CPU = torch.device("cpu")
OP = kernels.OPS["moe_experts"]
CASES = [case for case in OP.cases if not case.bench]
LARGE = Case("", {"rows": 64, "dim": 32, "width": 48, "experts": 4, "k": 2})


class Allocations(TorchDispatchMode):
    """Storages of at least this many bytes that operations returned, by address."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least
        self.given: dict[int, torch.UntypedStorage] = {}  # alive, so that no address is reused

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().nbytes() >= self.least:
                self.given[leaf.untyped_storage().data_ptr()] = leaf.untyped_storage()
        return out


def called(inputs, workspace=None):
    with torch.no_grad():
        return kernels.moe_experts(*inputs.values(), impl="torch", workspace=workspace)


def storages(workspace):
    return {flat.data_ptr() for buffers in workspace._flat.values() for flat in buffers}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_computed_in_a_workspace_is_as_right_as_without(case, dtype):
    inputs = OP.inputs(case, CPU, dtype, 0)
    wide = {n: t if t is None or n == "index" else t.double() for n, t in inputs.items()}
    with torch.no_grad():
        exact = OP.reference(**wide)
    plain, reused = (
        float((called(inputs, given).double() - exact).norm()) for given in (None, Workspace())
    )
    assert reused <= 2 * plain + torch.finfo(dtype).eps * float(exact.norm())


def test_a_second_call_allocates_nothing_and_reads_nothing_of_the_first():
    workspace, inputs = Workspace(), OP.inputs(LARGE, CPU, torch.float32, 0)
    first = called(inputs, workspace)
    copy, made, address = first.clone(), workspace.allocations, first.data_ptr()
    for flats in workspace._flat.values():
        for flat in flats:
            flat.fill_(float("nan") if flat.is_floating_point() else 2**30)
    least = 64 * 32 * 4  # the output; smaller ones are counts
    with Allocations(least) as seen:
        second = called(inputs, workspace)
    own = {x.untyped_storage().data_ptr() for x in inputs.values() if x is not None}
    assert torch.equal(second, copy) and second.data_ptr() == address
    assert workspace.allocations == made and seen.given.keys() <= storages(workspace) | own
    with Allocations(least) as seen:
        called(inputs)
    assert len(seen.given.keys() - own) > 4, "without one it would have been seen"


def test_fewer_tokens_fit_and_more_are_given_new_memory_beside_the_old():
    workspace = Workspace()
    many, few = (
        OP.inputs(Case("", {**LARGE.sizes, "rows": rows}), CPU, torch.float32, 1)
        for rows in (64, 9)
    )
    called(few, workspace)
    made, known = workspace.allocations, storages(workspace)
    called(many, workspace)
    assert made < workspace.allocations <= 2 * made
    assert known < storages(workspace), "a captured graph may still write to the old"
    grown = workspace.allocations
    assert torch.equal(called(few, workspace), called(few)) and workspace.allocations == grown


def test_what_a_backward_pass_needs_is_refused_a_workspace():
    inputs = OP.inputs(LARGE, CPU, torch.float32, 0)
    inputs["down_EDF"].requires_grad_()
    with pytest.raises(Mistake, match="would overwrite values in the workspace that a backward"):
        kernels.moe_experts(*inputs.values(), workspace=Workspace())
    assert called(inputs, Workspace()).shape == inputs["x"].shape


def test_memory_of_inference_mode_is_not_written_to_outside_of_it():
    workspace, inputs = Workspace(), OP.inputs(LARGE, CPU, torch.float32, 0)
    with torch.inference_mode():
        inside = called(inputs, workspace).clone()
    assert torch.equal(called(inputs, workspace), inside)
