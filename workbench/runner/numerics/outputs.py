"""The tensors of a step's output that can be compared: those of floating-point numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workbench.runner.structures import tensors


def measurable(output: Any) -> list[Tensor]:
    """Return the floating-point tensors of ``output``, dense; a complex one as pairs of reals.

    Whole numbers (positions, choices) are left out: there is no rounding of them to compare with.
    """
    values = [dense(tensor) for tensor in tensors(output)]
    real = [
        torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        for tensor in values
    ]
    return [tensor for tensor in real if tensor.is_floating_point() and tensor.numel()]


def dense(tensor: Tensor) -> Tensor:
    """Return a strided tensor of the numbers of a sparse or nested one."""
    if tensor.is_nested:
        return torch.cat([part.flatten() for part in tensor.unbind()])
    return tensor if tensor.layout == torch.strided else tensor.to_dense()
