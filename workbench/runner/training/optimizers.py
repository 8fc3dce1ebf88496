"""AdamW whose moments are held in 8 bits, from the libraries that have one.

Blocks of 256 numbers share a scale, and 8 bits index a table of values that are dense near zero
(Dettmers et al., arXiv 2110.02861). Tensors of fewer than 4,096 numbers keep FP32 moments. The
libraries take seconds to import, so that only making an optimizer does.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

EIGHT_BIT = ("torchao", "bitsandbytes")
EIGHT_BIT_BYTES = 2 * (1 + 4 / 256)  # both moments of a parameter, with block scales


@dataclass(frozen=True)
class Moments:
    """The state of an optimizer: bytes, and how many parameters' moments are stored in 8 bits."""

    bytes: int
    numbers: int  # number of elements of all parameters
    tensors: int
    eight_bit: int  # number of tensors with 8-bit moments


def installed(library: str) -> bool:
    """Return True if the library can be imported."""
    return importlib.util.find_spec(library) is not None


def eight_bit_adamw(
    library: str, groups: list[dict[str, Any]], **settings: Any
) -> torch.optim.Optimizer:
    """Build 8-bit AdamW of one of ``EIGHT_BIT`` over AdamW's groups; ``settings`` are AdamW's."""
    if library == "torchao":
        from torchao.optim import AdamW8bit

        return AdamW8bit(groups, **settings)
    from bitsandbytes.optim import AdamW8bit as BlockwiseAdamW

    return BlockwiseAdamW(groups, **settings)


def moments(optimizer: torch.optim.Optimizer) -> Moments:
    """Return what an optimizer stores once it has made a step."""
    storages: dict[int, int] = {}
    numbers = tensors = eight_bit = 0
    for parameter, state in optimizer.state.items():
        plain = [part for value in state.values() for part in parts(value)]
        storages |= {part.untyped_storage().data_ptr(): part.nbytes for part in plain}
        numbers, tensors = numbers + parameter.numel(), tensors + 1
        eight_bit += any(part.dtype == torch.uint8 for part in plain)
    return Moments(sum(storages.values()), numbers, tensors, eight_bit)


def parts(value: Any) -> Iterator[Tensor]:
    """Yield the plain tensors of a state's entry; nothing for an entry that is no tensor."""
    if not isinstance(value, Tensor):
        return
    if not is_traceable_wrapper_subclass(value):
        yield value
        return
    for name in value.__tensor_flatten__()[0]:
        yield from parts(getattr(value, name))
