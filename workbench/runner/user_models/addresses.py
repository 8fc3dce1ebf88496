"""Addresses of tensors, which an assignment to ``.data`` changes: recorded and restored.

Equal values at another address are not enough. A captured graph reads the old address, and would
read freed memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def record_addresses(tensors: Iterable[Tensor]) -> Callable[[], None]:
    """Return a function that lets all tensors use their present memory again.

    It does not restore the values in that memory, which stays allocated until then.
    """
    aliases = [(tensor, tensor.detach()) for tensor in tensors if _has_address(tensor)]

    def restore() -> None:
        for tensor, alias in aliases:
            if _address(tensor) != _address(alias):
                tensor.data = alias

    return restore


def addresses_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    """Return the address of each tensor whose memory an assignment to ``.data`` can replace."""
    return {name: _address(tensor) for name, tensor in tensors.items() if _has_address(tensor)}


def _has_address(tensor: Tensor) -> bool:
    """Return True if the memory of a tensor can be replaced by an assignment to ``.data``."""
    return (
        tensor.device.type != "meta"
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and not tensor.is_inference()
        and not is_traceable_wrapper_subclass(tensor)
    )


def _address(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
