"""Inputs of a user's model that are drawn like the example which it came with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from workbench.runner.structures import of_type, tensors


def with_example(returned: Any) -> Any:
    """Return a module with the example that it carries as Lightning's do; others as they are."""
    example = getattr(returned, "example_input_array", None)
    is_alone = isinstance(returned, nn.Module) and tensors(example)
    return (returned, example) if is_alone else returned


def inputs_like(example: Any) -> Callable[[int], Any]:
    """Return a function that draws inputs shaped like an example, for a number of sequences."""

    def draw(value: Any, batch: int) -> Any:
        if isinstance(value, tuple | list):
            return of_type(value, [draw(part, batch) for part in value])
        if isinstance(value, dict):
            return {name: draw(part, batch) for name, part in value.items()}
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        shape = (batch, *value.shape[1:])
        if value.dtype.is_floating_point or value.is_complex():
            return torch.randn(shape, dtype=value.dtype)
        low, high = int(value.min()), int(value.max())
        return torch.randint(low, high + 1, shape).to(value.dtype)

    return lambda batch: draw(example, batch)
