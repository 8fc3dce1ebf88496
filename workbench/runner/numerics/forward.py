"""Outputs and loss of an arm's current batch outside of its steps; all ranks take part."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from workbench.runner.profiling.eager import eager

if TYPE_CHECKING:
    from workbench.runner.variants.variant import Arm

OUTPUTS, LOSS = "outputs", "loss"


def outputs(arm: Arm) -> Any:
    """Return the outputs of its model, uncompiled; the arm is entered."""
    with _by_all(arm, OUTPUTS), eager(), torch.no_grad():
        if arm.divided is not None:
            return arm.divided.outputs(arm)
        return arm.autocast(arm.model)(*arm.batches.inputs)


def loss(arm: Arm) -> torch.Tensor:
    """Return the loss as its steps compute it, of a workload that trains; the arm is entered."""
    with _by_all(arm, LOSS):
        if arm.divided is not None:
            return arm.divided.loss(arm)
        return arm.compute(*arm.batches.inputs, *arm.batches.targets)


def evaluate(what: str, arm: Arm) -> None:
    """Take part in what rank 0 evaluates."""
    outputs(arm) if what == OUTPUTS else loss(arm)


def _by_all(arm: Arm, what: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext() if arm.divided is None else arm.divided.evaluating(what, arm)
