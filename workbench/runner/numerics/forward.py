"""What an arm gives for its current batch beside its steps; ranks that divide it take part."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from workbench.runner.variants.compiles import eager

if TYPE_CHECKING:
    from workbench.runner.variants.variant import Arm

OUTPUTS, LOSS = "outputs", "loss"


def outputs(arm: Arm) -> Any:
    """What its model gives, uncompiled; the arm is entered."""
    with _by_all(arm, OUTPUTS), eager(), torch.no_grad():
        if arm.divided is not None:
            return arm.divided.outputs(arm)
        return arm.autocast(arm.model)(*arm.batches.inputs)


def loss(arm: Arm) -> torch.Tensor:
    """The loss as its steps compute it, of a workload that trains; the arm is entered."""
    with _by_all(arm, LOSS):
        if arm.divided is not None:
            return arm.divided.loss(arm)
        return arm.compute(*arm.batches.inputs, *arm.batches.targets)


def evaluate(what: str, arm: Arm) -> None:
    """Take part in what rank 0 evaluates."""
    outputs(arm) if what == OUTPUTS else loss(arm)


def _by_all(arm: Arm, what: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext() if arm.divided is None else arm.divided.evaluating(what, arm)
