"""Units: parameters in flat tensors that divide evenly by the ranks, whatever their own sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from workbench.runner.ranks.buckets import in_buckets

ALIGNED_BYTES = 128  # where parameters begin: kernels read several numbers at a time


@dataclass
class Unit:
    """Parameters of one dtype, and where each begins in flat tensors of ``ranks * length``.

    ``block``: the only one that computes with them, where they are there only while it does.
    """

    parameters: list[nn.Parameter]
    starts: list[int]
    length: int
    block: nn.Module | None
    flat: Tensor  # all weights, this and the following once they are spread
    share: Tensor  # this rank's of the weights, the gradients, the moments
    reduced: Tensor
    moments: dict[str, Tensor] = field(default_factory=dict)
    gradients: Tensor | None = None  # of all weights
    missing: set[int] = field(default_factory=set)
    done: bool = False

    @property
    def passing(self) -> bool:
        """Whether its weights come and go."""
        return self.block is not None

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's part of a flat tensor."""
        return [
            flat[start : start + each.numel()].view(each.shape)
            for start, each in zip(self.starts, self.parameters, strict=True)
        ]

    def tensors(self) -> Iterator[Tensor]:
        """What is held for it."""
        yield from (self.flat, self.share, self.reduced, *self.moments.values())
        if self.gradients is not None:
            yield self.gradients


def units_of(
    optimizer: torch.optim.Optimizer, blocks: Iterable[nn.Module], ranks: int
) -> Iterator[Unit]:
    """Units of an optimizer's parameters, in about the order in which gradients are made.

    The matrices of each of the ``blocks`` that are in no other are by themselves.
    """
    groups = (each for one in optimizer.param_groups for each in one["params"])
    distinct = {id(each): each for each in groups if each.requires_grad}
    numbered = list(enumerate(blocks))
    found: dict[int, set[int]] = {}
    for number, block in numbered:
        for each in block.parameters():
            found.setdefault(id(each), set()).add(number)
    for number, block in reversed(numbered):
        own = [
            distinct.pop(id(each))
            for each in block.parameters()
            if found[id(each)] == {number} and each.ndim > 1 and id(each) in distinct
        ]
        for kind in dict.fromkeys(each.dtype for each in own):
            yield _unit([each for each in own if each.dtype == kind], block, ranks)
    for bucket in in_buckets(reversed(distinct.values())):
        yield _unit(bucket, None, ranks)


def _unit(parameters: list[nn.Parameter], block: nn.Module | None, ranks: int) -> Unit:
    nothing = parameters[0].detach().new_empty(0)
    aligned = max(1, ALIGNED_BYTES // nothing.itemsize)
    starts, end = [], 0
    for each in parameters:
        starts.append(end)
        end += -(-each.numel() // aligned) * aligned
    length = -(-end // (aligned * ranks)) * aligned
    return Unit(parameters, starts, length, block, nothing, nothing, nothing)


def make_room(tensor: Tensor) -> None:
    """Memory for the numbers of a tensor whose storage was freed."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        storage.resize_((tensor.storage_offset() + tensor.numel()) * tensor.itemsize)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, each once."""
    storages = (each.untyped_storage() for each in tensors)
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
