"""Averages gradients over all ranks while the backward pass still makes them.

As in Li et al., "PyTorch Distributed" (VLDB 2020): gradients are gathered in flat buckets, in the
reverse order of the parameters, and a bucket is summed over the ranks as soon as its last gradient
is there. The loss was divided by the number of ranks, so that a sum is the mean.

Hooks are on the parameters only while the arm is entered: other arms share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

FIRST_BYTES = 1 << 20  # small, so that the first sum begins early
BYTES = 25 << 20


@dataclass
class _Bucket:
    parameters: list[nn.Parameter]
    flat: Tensor
    views: list[Tensor]
    missing: set[int] = field(default_factory=set)


class Buckets:
    """The gradients of ``parameters``, in flat tensors of one dtype each."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        distinct = {id(each): each for each in parameters if each.requires_grad}
        self._buckets = [_bucket(group) for group in in_buckets(reversed(distinct.values()))]
        self._of = {id(each): bucket for bucket in self._buckets for each in bucket.parameters}
        self._hooks: list[RemovableHandle] = []
        self._works: list[dist.Work] = []
        self._active = False
        self.early = 0  # sums of the last step that began while the backward pass still ran

    @property
    def bytes(self) -> int:
        """Bytes that a step sums."""
        return sum(bucket.flat.nbytes for bucket in self._buckets)

    @property
    def count(self) -> int:
        """Sums of a step."""
        return len(self._buckets)

    def tensors(self) -> Iterator[Tensor]:
        """What is held for them."""
        return (bucket.flat for bucket in self._buckets)

    def attach(self) -> None:
        """Follow the gradients of these parameters from now on."""
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._arrived)
            for bucket in self._buckets
            for parameter in bucket.parameters
        ]

    def detach(self) -> None:
        """Leave the parameters alone."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._active = [], False

    def backward(self, loss: Tensor) -> None:
        """The backward pass; every gradient is the sum over all ranks when it is done."""
        self._works = []
        for bucket in self._buckets:
            bucket.missing = set(map(id, bucket.parameters))
        self._active = True
        loss.backward()
        self._active = False
        self.early = len(self._works)
        for bucket in self._buckets[self.early :]:
            for parameter in bucket.parameters:
                if parameter.grad is None:  # on this rank, and perhaps not on others
                    parameter.grad = torch.zeros_like(parameter)
            self._sum(bucket)
        for work in self._works:
            work.wait()

    def _arrived(self, parameter: Tensor) -> None:
        if not self._active:
            return
        self._of[id(parameter)].missing.discard(id(parameter))
        # In their order, which has to be the same on every rank.
        while len(self._works) < len(self._buckets):
            bucket = self._buckets[len(self._works)]
            if bucket.missing:
                break
            self._sum(bucket)

    def _sum(self, bucket: _Bucket) -> None:
        with torch.no_grad():
            gradients = [each.grad for each in bucket.parameters if each.grad is not None]
            torch._foreach_copy_(bucket.views, gradients)
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = view
        work = dist.all_reduce(bucket.flat, async_op=True)
        assert work is not None
        self._works.append(work)


def in_buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Of one dtype, of at most so many bytes, or of one tensor that has more."""
    group: list[nn.Parameter] = []
    size, most = 0, FIRST_BYTES
    for each in parameters:
        if group and (size + each.nbytes > most or each.dtype != group[0].dtype):
            yield group
            group, size, most = [], 0, BYTES
        group.append(each)
        size += each.nbytes
    if group:
        yield group


def _bucket(parameters: list[nn.Parameter]) -> _Bucket:
    flat = parameters[0].new_empty(sum(each.numel() for each in parameters))
    parts = flat.split([each.numel() for each in parameters])
    views = [part.view(each.shape) for part, each in zip(parts, parameters, strict=True)]
    return _Bucket(parameters, flat.detach(), [view.detach() for view in views])
