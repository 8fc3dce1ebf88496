"""Outputs and loss of a variant's current batch outside of its steps; all ranks take part."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from workbench.runner.profiling.eager import eager
from workbench.runner.structures import map_tensors

if TYPE_CHECKING:
    from workbench.runner.variants.variant import Variant

OUTPUTS, LOSS = "outputs", "loss"


def outputs(variant: Variant) -> Any:
    """Return the outputs of its model, uncompiled and detached; the variant is entered."""
    records = variant.probe.needs_gradients
    with _by_all(variant, OUTPUTS), eager(), torch.set_grad_enabled(records):
        if variant.divided is not None:
            return variant.divided.outputs(variant)
        values = variant.autocast(variant.model)(*variant.batches.inputs)
        return map_tensors(values, torch.Tensor.detach)


def loss(variant: Variant) -> torch.Tensor:
    """Return the loss as training steps compute it; the variant is entered."""
    with _by_all(variant, LOSS):
        if variant.divided is not None:
            return variant.divided.loss(variant)
        return variant.compute(*variant.batches.inputs, *variant.batches.targets)


def evaluate(quantity: str, variant: Variant) -> None:
    """Take part in an evaluation of rank 0."""
    outputs(variant) if quantity == OUTPUTS else loss(variant)


def _by_all(variant: Variant, quantity: str) -> AbstractContextManager[None]:
    return (
        contextlib.nullcontext()
        if variant.divided is None
        else variant.divided.evaluating(quantity, variant)
    )
