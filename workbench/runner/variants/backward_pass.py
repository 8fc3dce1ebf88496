"""Steps that are the backward pass of a training step alone.

The forward pass runs before each step and is not timed; no optimizer step follows. Checkpointed
activations are recomputed in the backward pass, so their time is included.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Trait
from workbench.runner.training.trainer import forget_graph
from workbench.runner.variants.variant import Variant
from workbench.runner.workloads import Step

Pace = tuple[Callable[[], bool], Step]  # an untimed call before each step, and the step


def backward_pass(variant: Variant) -> Pace:
    """Return the untimed call and the step of a variant's backward pass; raises ``Mistake``."""
    trainer = variant.trainer
    if trainer is None:
        raise Mistake("timed: only a training step has a backward pass; choose workload train")
    if variant.divided is not None or variant.situation.has(Trait.CAPTURED):
        raise Mistake(
            "timed: the backward pass cannot be timed separately if ranks exchange gradients in "
            "it, or if a CUDA graph replays the complete step"
        )
    batch = variant.batches.inputs + variant.batches.targets
    losses: list[torch.Tensor] = []

    def ready() -> bool:
        variant.ready()
        losses[:] = [variant.compute(*batch)]
        return True  # this time does not belong to the step

    def step() -> torch.Tensor:
        loss = losses.pop()
        trainer.backward(loss if trainer.scaler is None else trainer.scaler.scale(loss))
        trainer.optimizer.zero_grad(set_to_none=True)
        forget_graph(loss)
        return loss.detach()

    return ready, step
