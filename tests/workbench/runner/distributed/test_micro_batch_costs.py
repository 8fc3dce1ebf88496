"""A micro-batch costs the host little beside its stage's operators, and weights are cast once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
import torch
from built import stepped
from test_ranks import needs_cores
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import models
from workbench.runner.config import resolve
from workbench.runner.variants.variant import Arm, Arms

SCHEDULED = 12  # operators of torch's schedule for a micro-batch: buffers, messages
AMP = {"precision": "amp_bf16", "adamw": "fused"}


class Operators(TorchDispatchMode):
    """Counts the operators that run, and for each parameter how often it is cast."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.casts: Counter[int] = Counter()  # by address

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[str(func)] += 1
        if func is torch.ops.aten._to_copy.default and isinstance(args[0], nn.Parameter):
            self.casts[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


def counted(call: Callable[[], object]) -> Operators:
    with Operators() as found:
        call()
    return found


@needs_cores
@pytest.mark.parametrize("checkpointing", ["none", "full", "operators"])
def test_weights_are_cast_once_a_step_and_a_micro_batch_adds_little(small, checkpointing):
    asked = msgspec.structs.replace(small, settings={"batch": 4, "sequence": 16})
    arms, steps = Arms(), []
    for count in ("2", "4"):
        toggles = {**AMP, "checkpointing": checkpointing, "micro_batches": count}
        arm = stepped(asked, arms=arms, pipeline_parallel="2", **toggles)
        with arm.entered():
            steps.append(counted(arm.step))
    assert set(steps[1].casts.values()) == {1}
    more = (steps[1].calls.total() - steps[0].calls.total()) / 2
    assert steps[1].calls["c10d.send.default"] - steps[0].calls["c10d.send.default"] == 2
    assert more <= of_the_stage(arm) + SCHEDULED


def of_the_stage(arm: Arm) -> int:
    """Return the operators of one micro-batch of rank 0's stage, without the casts of weights."""
    tokens, targets = (each[:1] for each in arm.batches.inputs + arm.batches.targets)

    def one() -> None:
        output = arm.compute(tokens, targets)
        torch.autograd.backward(output.x, torch.ones_like(output.x))

    with arm.entered():
        one()
        counts = counted(one)
        arm.weights.drop_gradients()
    return counts.calls.total() - counts.casts.total()


@pytest.mark.parametrize(("precision", "bytes_each"), [("fp32", 0), ("amp_bf16", 2)])
def test_copies_of_weights_are_estimated_once_for_all_micro_batches_held(
    small, precision, bytes_each
):
    fields = {**small.model, "n_layers": 8}

    def activations(batch: int) -> int:
        toggles = {"pipeline_parallel": "2", "micro_batches": "2", "precision": precision}
        settings = {"batch": batch, "sequence": 16}
        asked = msgspec.structs.replace(
            small, model=fields, workload="train", settings=settings, toggles=toggles
        )
        return resolve.footprint(resolve.resolve(asked, torch.device("cpu"))).activations

    family = models.FAMILIES["hydra"]
    stage = family.build(family.configure("tiny", fields)).blocks[:4]
    numbers = sum(each.weight.numel() for each in stage.modules() if isinstance(each, nn.Linear))
    # The first stage, with two micro-batches: but for the copies as many bytes for twice the rows.
    assert 2 * activations(2) - activations(4) == bytes_each * numbers
