"""The effect of rounding alone on a model that chooses experts, tokens or depths.

If two candidates of a router are within a rounding of each other, it may select either, and the
outputs then differ by far more than a rounding. The reference itself shows such ties: its weights
are changed at random ("nudged"). Without a changed choice, a nudge moves the outputs as far as a
variant's may be off. If it moves them ``JUMP`` times as far, a choice has changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

NUDGES = 6  # each turns a tie with a chance of a half
NUDGED_RUNS = 3  # training runs with nudged weights
JUMP = 4.0
_LARGEST = 64.0  # roundings; a nudge of more is none
Nudge = tuple[float, int]  # size and seed
NONE: Nudge = (0.0, 0)
_Moved = tuple[float, float]  # relative error of the outputs, distance of the loss


@dataclass(frozen=True)
class Nudges:
    """Nudged references of one model.

    ``moved`` returns how far a nudge moves outputs and loss. ``rounding`` is one rounding of the
    variant's precision, ``aim`` the allowed relative error of its outputs.
    """

    moved: Callable[[Nudge], _Moved]
    rounding: float
    aim: float

    @cached_property
    def nearest(self) -> float:
        """Return how far one rounding of every weight moves the outputs, without ties."""
        return min(self.moved((self.rounding, seed))[0] for seed in range(2))

    @cached_property
    def size(self) -> float:
        """Return the size of the nudge that moves the outputs as far as ``aim``; 0 if none does."""
        if not self.nearest > 0:
            return 0.0
        return self.rounding * min(self.aim / self.nearest, _LARGEST)

    @cached_property
    def reach(self) -> _Moved:
        """Return how far choices near a tie move outputs and loss; zeros without ties."""
        if not self.size:
            return 0.0, 0.0
        moves = [self.moved((self.size, seed)) for seed in range(NUDGES)]
        relative, loss = (max(moves_of_kind) for moves_of_kind in zip(*moves, strict=True))
        return (relative, loss) if is_jump(relative, self.aim) else (0.0, 0.0)


def is_jump(moved: float, aim: float) -> bool:
    """Return True if a nudge for ``aim`` has moved something so far that a choice changed."""
    return JUMP * aim < moved < math.inf


def nudged(tensor: torch.Tensor, nudge: Nudge, index: int) -> torch.Tensor:
    """Return a floating tensor, each number off by ``size`` times a normal number of its size.

    The same for the same seed; ``index`` distinguishes the weights of a model.
    """
    size, seed = nudge
    if not size or not tensor.is_floating_point():
        return tensor
    generator = torch.Generator(tensor.device).manual_seed(1_000_003 * seed + index)
    noise = torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)
    return torch.addcmul(tensor, tensor, noise, value=size)


@torch.no_grad()
def nudge_in_place(tensors: Iterable[torch.Tensor], nudge: Nudge) -> None:
    """Nudge floating tensors where they are, each by no less than its dtype can represent."""
    size, seed = nudge
    for index, tensor in enumerate(tensors):
        if tensor.is_floating_point():
            least = torch.finfo(tensor.dtype).eps
            tensor.copy_(nudged(tensor, (max(size, least), seed), index))
