"""Where ranks that divide layers meet: operators over all of them, and their gradients.

Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3: a layer's input is passed on as it is,
and the parts of its gradient are summed; the parts of its result are summed, and the gradient is
passed on. Korthikanti et al. (arXiv 2205.05198), section 4.2, divide the stream between the layers
along the sequence too: a layer's input is gathered, and of the sums of its result each rank takes
its own tokens; for the gradients the other way round.

Ranks meet within steps that all of them make, and nowhere else: what one of them computes by itself
(a probe, a trace, a tuning) takes its own part for the others'. Operators are of torch's own kind,
which a compiler calls as they are: so they are counted when they run, however they were traced.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from models.parallel.tensor_parallel_plan import Region
from workbench.runner.ranks.group import rank

SUM, GATHER, SCATTERED, SENT = "sum", "gather", "scattered sum", "broadcast"
_MANY_BYTES = 1 << 20  # of a tensor that is sent by itself
_LET_GO_S = 0.1


@dataclass
class Traffic:
    """What ranks have told each other: how often, and the bytes of the whole that each time took.

    ``tokens``: of a sequence, those that this rank has between the layers; 0: all.
    """

    calls: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    tokens: int = 0

    def add(self, kind: str, whole: Tensor) -> None:
        """Count one call."""
        self.calls[kind] += 1
        self.bytes += whole.nbytes


_traffic: Traffic | None = None


@contextlib.contextmanager
def meeting() -> Iterator[Traffic]:
    """Meet in all of it, as every rank does that computes the same."""
    global _traffic
    before, _traffic = _traffic, Traffic()
    try:
        yield _traffic
    finally:
        _traffic = before


@contextlib.contextmanager
def let_go(*tensors: Tensor) -> Iterator[None]:
    """Around a collective that is waited for: on a CPU until its thread holds them no more.

    That thread lets go of them after it has told that it is done. Were it the last, it would free
    them, and what other threads free is counted as left behind.
    """
    on_cpu = [each for each in tensors if each.device.type == "cpu"]
    before = _holders(on_cpu)
    yield
    deadline_s = time.monotonic() + _LET_GO_S
    while any(map(operator.gt, _holders(on_cpu), before)) and time.monotonic() < deadline_s:
        time.sleep(0)


def _holders(tensors: list[Tensor]) -> list[int]:
    """Of each: by Python, of what Python has, and by other tensors of its memory."""
    storages = [each.untyped_storage()._cdata for each in tensors]
    return [
        sys.getrefcount(each) + each._use_count() + torch._C._storage_Use_Count(storage)
        for each, storage in zip(tensors, storages, strict=True)
    ]


def told(kind: str, whole: Tensor) -> None:
    """Count what was told outside of the operators here; nothing where ranks do not meet."""
    if _traffic is not None:
        _traffic.add(kind, whole)


def all_gather_bytes(payload: bytes, device: torch.device) -> list[bytes]:
    """Return the payload of every rank, in the order of the ranks.

    The bytes travel as a tensor: ``all_gather_object`` would unpickle what another process sends.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sizes = torch.zeros(ranks, dtype=torch.int64, device=device)
    sizes[rank] = len(payload)
    dist.all_reduce(sizes)
    padded = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=device)
    padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    gathered = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(gathered, padded)
    rows = zip(gathered, sizes.tolist(), strict=True)
    return [bytes(row[:size].cpu().numpy()) for row, size in rows]


def sum_over_ranks(x: Tensor) -> Tensor:
    """The sum of all ranks' ``x``, in a tensor of its own."""
    total = x.clone(memory_format=torch.contiguous_format)
    if _traffic is not None:
        with let_go(total):
            dist.all_reduce(total)
        _traffic.add(SUM, total)
    return total


def gather_tokens(x: Tensor, ranks: int) -> Tensor:
    """The tokens of all ranks, in their order: (B, S / ranks, E) -> (B, S, E)."""
    if _traffic is None:
        return torch.cat([x] * ranks, 1)
    found = x.new_empty((ranks * x.shape[0], *x.shape[1:]))  # one rank's after the other
    x = x.contiguous()
    with let_go(found, x):
        dist.all_gather_into_tensor(found, x)
    _traffic.add(GATHER, found)
    return found.unflatten(0, (ranks, -1)).transpose(0, 1).flatten(1, 2)


def scatter_sum(x: Tensor, ranks: int) -> Tensor:
    """This rank's tokens of the sum of all ranks' ``x``: (B, S, E) -> (B, S / ranks, E)."""
    if _traffic is None:
        return own_tokens(x, ranks)
    parts = x.unflatten(1, (ranks, -1)).transpose(0, 1).flatten(0, 1).contiguous()
    found = parts.new_empty((x.shape[0], *parts.shape[1:]))
    with let_go(found, parts):
        dist.reduce_scatter_tensor(found, parts)
    _traffic.add(SCATTERED, parts)
    return found


def own_tokens(x: Tensor, ranks: int) -> Tensor:
    """This rank's tokens: (B, S, E) -> (B, S / ranks, E)."""
    found = x.chunk(ranks, 1)[rank()].clone(memory_format=torch.contiguous_format)
    if _traffic is not None:
        _traffic.tokens = found.shape[1]
    return found


def send_all(tensors: list[Tensor]) -> None:
    """Make them rank 0's, in place; small ones travel together. All are of one dtype."""
    small = [each for each in tensors if each.nbytes < _MANY_BYTES]
    packed = torch.cat([each.flatten() for each in small]) if small else None
    sent = [each.contiguous() for each in tensors if each.nbytes >= _MANY_BYTES]
    for one in [*sent, *([] if packed is None else [packed])]:
        dist.broadcast(one, src=0)
        if _traffic is not None:
            _traffic.add(SENT, one)
    arrived = [] if packed is None else list(packed.split([each.numel() for each in small]))
    large = [each for each in tensors if each.nbytes >= _MANY_BYTES]
    for tensor, one in zip([*large, *small], [*sent, *arrived], strict=True):
        if tensor.data_ptr() != one.data_ptr():
            tensor.copy_(one.view_as(tensor))


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _more(x: Tensor, ranks: int) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] * ranks, *x.shape[2:])


def _fewer(x: Tensor, ranks: int) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // ranks, *x.shape[2:])


# ``torch.library.custom_op`` would import Dynamo at the first call: seconds.
_LIBRARY = torch.library.Library("workbench", "FRAGMENT")
for _schema, _operator, _fake in (
    ("sum_over_ranks(Tensor x) -> Tensor", sum_over_ranks, _like),
    ("gather_tokens(Tensor x, int ranks) -> Tensor", gather_tokens, _more),
    ("scatter_sum(Tensor x, int ranks) -> Tensor", scatter_sum, _fewer),
    ("own_tokens(Tensor x, int ranks) -> Tensor", own_tokens, _fewer),
):
    _LIBRARY.define(_schema)
    _LIBRARY.impl(_operator.__name__, _operator, "CompositeExplicitAutograd")
    torch.library.register_fake(f"workbench::{_operator.__name__}", _fake, lib=_LIBRARY)
_OPS = torch.ops.workbench


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _OPS.sum_over_ranks(gradient)


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return _OPS.sum_over_ranks(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _Tokens(torch.autograd.Function):
    """One of the operators on tokens by its name, and another for its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int, forth: str, back: str) -> Tensor:
        ctx.ranks, ctx.back = ranks, back
        return getattr(_OPS, forth)(x, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return getattr(_OPS, ctx.back)(gradient, ctx.ranks), None, None, None


def _narrowed(x: Tensor) -> Tensor:
    """In what autocast multiplies, where it is on: half of the bytes to tell."""
    device = x.device.type
    if x.dtype is not torch.float32 or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


class AcrossRanks(Region):
    """The region of layers whose shares lie on the ranks of the process group."""

    def enter(self, x: Tensor, product: bool = False) -> Tensor:
        """``x``; its gradient is the sum of what the ranks have of it."""
        return _Enter.apply(_narrowed(x) if product else x)  # type: ignore[no-any-return]

    def leave(self, y: Tensor) -> Tensor:
        """The sum of all ranks' ``y``."""
        return _Leave.apply(y)  # type: ignore[no-any-return]

    def common(self, x: Tensor) -> Tensor:
        """``x``; its gradient is the sum of what the ranks have of it."""
        return _Enter.apply(x)  # type: ignore[no-any-return]

    def total(self, x: Tensor) -> Tensor:
        """The sum of all ranks' ``x``, and so of its gradient."""
        return _Enter.apply(_Leave.apply(x))  # type: ignore[no-any-return]


class AlongSequence(AcrossRanks):
    """The same, where each rank has a part of the sequence between the layers."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def enter(self, x: Tensor, product: bool = False) -> Tensor:
        """All ranks' tokens."""
        return self._moved(_narrowed(x) if product else x, "gather_tokens", "scatter_sum")

    def leave(self, y: Tensor) -> Tensor:
        """This rank's tokens of the sum of all ranks' ``y``."""
        return self._moved(y, "scatter_sum", "gather_tokens")

    def split(self, x: Tensor) -> Tensor:
        """This rank's tokens of what every rank has."""
        return self._moved(x, "own_tokens", "gather_tokens")

    def join(self, x: Tensor) -> Tensor:
        """All ranks' tokens, of whose gradient every rank has the whole."""
        return self._moved(x, "gather_tokens", "own_tokens")

    def _moved(self, x: Tensor, forth: str, back: str) -> Tensor:
        return _Tokens.apply(x, self._ranks, forth, back)  # type: ignore[no-any-return]
