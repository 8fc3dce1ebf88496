"""A micro-batch costs the host little beside its stage's operators, and weights are cast once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
import torch
from built import stepped
from rank_checks import CPU, needs_cores
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import models
from models.parallel.pipeline_stages import chain
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config import resolve
from workbench.runner.config.estimate import footprint
from workbench.runner.variants.variant import Variant

SCHEDULED = 12  # operators of torch's schedule for a micro-batch: buffers, messages
AMP = {"precision": "amp_bf16", "adamw": "fused"}


class Operators(TorchDispatchMode):
    """Counter of the operators that run, and of the casts of every parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.casts: Counter[int] = Counter()  # by address

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[str(func)] += 1
        if func is torch.ops.aten._to_copy.default and isinstance(args[0], nn.Parameter):
            self.casts[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


def count_operators(call: Callable[[], object]) -> Operators:
    with Operators() as operators:
        call()
    return operators


@needs_cores
@pytest.mark.parametrize("checkpointing", ["none", "full", "operators"])
def test_weights_are_cast_once_a_step_and_a_micro_batch_adds_little(small, checkpointing):
    configuration = msgspec.structs.replace(small, settings={"batch": 4, "sequence": 16})
    arms, steps = VariantCache(), []
    for count in ("2", "4"):
        toggles = {**AMP, "checkpointing": checkpointing, "micro_batches": count}
        arm = stepped(configuration, arms=arms, pipeline_parallel="2", **toggles)
        with arm.entered():
            steps.append(count_operators(arm.step))
    assert set(steps[1].casts.values()) == {1}
    more = (steps[1].calls.total() - steps[0].calls.total()) / 2
    assert steps[1].calls["c10d.send.default"] - steps[0].calls["c10d.send.default"] == 2
    assert more <= count_of_a_micro_batch(arm) + SCHEDULED


def count_of_a_micro_batch(arm: Variant) -> int:
    """Return how many operators rank 0's stage runs on one, without the casts of weights."""
    tokens, targets = (rows[:1] for rows in arm.batches.inputs + arm.batches.targets)

    def run_micro_batch() -> None:
        output = arm.compute(tokens, targets)
        torch.autograd.backward(output.x, torch.ones_like(output.x))

    with arm.entered():
        run_micro_batch()
        counts = count_operators(run_micro_batch)
        arm.weights.drop_gradients()
    return counts.calls.total() - counts.casts.total()


@pytest.mark.parametrize(("precision", "bytes_per_weight"), [("fp32", 0), ("amp_bf16", 2)])
def test_copies_of_weights_are_estimated_once_for_all_micro_batches(
    small, precision, bytes_per_weight
):
    fields = {**small.model, "n_layers": 8}

    def activations(batch: int) -> int:
        toggles = {"pipeline_parallel": "2", "micro_batches": "2", "precision": precision}
        settings = {"batch": batch, "sequence": 16}
        configuration = msgspec.structs.replace(
            small, model=fields, workload="train", settings=settings, toggles=toggles
        )
        return footprint(resolve.resolve(configuration, CPU)).activations

    family = models.FAMILIES["hydra"]
    config = family.configure("tiny", fields)
    first, _ = chain(family, config).stages(2)
    stage = family.build(config).blocks[first.blocks.start : first.blocks.stop]
    linears = [module for module in stage.modules() if isinstance(module, nn.Linear)]
    weights = sum(linear.weight.numel() for linear in linears)
    # The first stage saves two micro-batches. All but the copies grows with the rows, where these
    # are enough to make it the largest stage.
    assert 2 * activations(16) - activations(32) == bytes_per_weight * weights
