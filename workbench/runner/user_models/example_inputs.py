"""Inputs of a user's model that are drawn like the example which it came with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from workbench.runner.failures import Mistake
from workbench.runner.structures import map_tensors, tensors


def with_example(returned: Any) -> Any:
    """Return a module with the example that it carries as Lightning's do; others as they are."""
    example = getattr(returned, "example_input_array", None)
    is_alone = isinstance(returned, nn.Module) and tensors(example)
    return (returned, example) if is_alone else returned


def is_example(value: Any) -> bool:
    """Return True for tensors in a structure that is not itself a function or a source of them."""
    is_source = callable(value) or isinstance(value, Iterator | DataLoader | Dataset)
    return not is_source and bool(tensors(value))


def inputs_like(example: Any) -> Callable[[int], Any]:
    """Return a function that draws inputs like an example, for a number of sequences.

    They have its layout in memory. Raises ``Mistake`` for tensors that are not dense.
    """
    for tensor in tensors(example):
        if tensor.layout != torch.strided or tensor.is_nested:
            raise Mistake(
                f"own: the example holds a tensor of layout {tensor.layout}; only dense tensors "
                "(torch.strided) can be drawn like an example; return make_inputs(batch) instead"
            )

    return lambda batch: map_tensors(example, lambda tensor: _draw_like(tensor, batch))


def _draw_like(value: Tensor, batch: int) -> Tensor:
    if value.dim() == 0:
        return value
    shape = (batch, *value.shape[1:])
    order = _memory_order(value)
    dimensions = [shape[dimension] for dimension in order]
    if value.dtype.is_floating_point or value.is_complex():
        drawn = torch.randn(dimensions, dtype=value.dtype)
    else:
        numbers = value.to(torch.int64) if value.numel() else torch.zeros(1, dtype=torch.int64)
        drawn = torch.randint(int(numbers.min()), int(numbers.max()) + 1, dimensions)
    drawn = drawn.to(value.dtype).permute([order.index(axis) for axis in range(value.dim())])
    return drawn.requires_grad_(value.requires_grad)


def _memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions of a tensor, from the outermost to the innermost in memory."""
    strides = tensor.stride()
    if 0 in strides:  # expanded
        return list(range(tensor.dim()))
    return sorted(range(tensor.dim()), key=strides.__getitem__, reverse=True)
