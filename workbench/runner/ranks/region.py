"""Where ranks that divide layers meet: sums over all of them, of activations and of gradients.

Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3, call them f and g: a layer's input is
passed on as it is, and the parts of its gradient are summed; the parts of its result are summed,
and the gradient is passed on. Ranks meet within steps that all of them make, and nowhere else: what
one of them computes by itself (a probe, a trace, a tuning) takes its own part for the sum.

The sum is an operator of torch's own kind, which a compiler calls as it is: so it is counted when
it happens, and neither when nor whether it was traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from models._division import Region


@dataclass
class Traffic:
    """What ranks have told each other: sums, and the bytes that each of them brought."""

    sums: int = 0
    bytes: int = 0


_traffic: Traffic | None = None


@contextlib.contextmanager
def meeting() -> Iterator[Traffic]:
    """Sum over all ranks, each of which is to be within here and to compute the same."""
    global _traffic
    before, _traffic = _traffic, Traffic()
    try:
        yield _traffic
    finally:
        _traffic = before


def _sum(x: Tensor) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    if _traffic is not None:
        dist.all_reduce(total)
        _traffic.sums += 1
        _traffic.bytes += total.nbytes
    return total


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# ``torch.library.custom_op`` would import Dynamo at the first call: seconds.
_LIBRARY = torch.library.Library("workbench", "FRAGMENT")
_LIBRARY.define("sum_over_ranks(Tensor x) -> Tensor")
_LIBRARY.impl("sum_over_ranks", _sum, "CompositeExplicitAutograd")
torch.library.register_fake("workbench::sum_over_ranks", _like, lib=_LIBRARY)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.ops.workbench.sum_over_ranks(gradient)


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return torch.ops.workbench.sum_over_ranks(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class AcrossRanks(Region):
    """The region of layers whose shares lie on the ranks of the process group."""

    def enter(self, x: Tensor) -> Tensor:
        """``x``; its gradient is the sum of what the ranks have of it."""
        return _Enter.apply(x)  # type: ignore[no-any-return]

    def leave(self, y: Tensor) -> Tensor:
        """The sum of all ranks' ``y``."""
        return _Leave.apply(y)  # type: ignore[no-any-return]


ACROSS = AcrossRanks()
