"""Steps that are the backward pass of a training step alone.

The forward pass runs before each step and is not timed; no optimizer step follows. Checkpointed
activations are computed again in the backward pass, so that they count.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Trait
from workbench.runner.training.trainer import forget_graph
from workbench.runner.variants.variant import Arm
from workbench.runner.workloads import Step

Pace = tuple[Callable[[], bool], Step]  # what is called before each step, and the step


def backward_pass(arm: Arm) -> Pace:
    """Return the untimed call and the step of an arm's backward pass; raises ``Mistake``."""
    trainer = arm.trainer
    if trainer is None:
        raise Mistake("timed: only a training step has a backward pass; choose workload train")
    if arm.divided is not None or arm.situation.has(Trait.CAPTURED):
        raise Mistake(
            "timed: the backward pass cannot be timed by itself where ranks exchange gradients in "
            "it, or where a CUDA graph replays it with the rest of the step"
        )
    batch = arm.batches.inputs + arm.batches.targets
    losses: list[torch.Tensor] = []

    def ready() -> bool:
        arm.ready()
        losses[:] = [arm.compute(*batch)]
        return True  # this time does not belong to the step

    def step() -> torch.Tensor:
        loss = losses.pop()
        trainer.backward(loss if trainer.scaler is None else trainer.scaler.scale(loss))
        trainer.optimizer.zero_grad(set_to_none=True)
        forget_graph(loss)
        return loss.detach()

    return ready, step
