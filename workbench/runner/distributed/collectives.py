"""Collectives inside a model whose layers are sharded across ranks, and their gradients.

Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3: a layer's input is passed on unchanged
and the parts of its gradient are summed; the parts of its output are summed and the gradient is
passed on. Korthikanti et al. (arXiv 2205.05198), section 4.2, also split the residual stream
between the layers along the sequence: a layer's input is all-gathered and its output is
reduce-scattered, and the reverse for gradients.

Each operator names the axis of the device mesh whose ranks it communicates with. The collectives
are those of ``torch.distributed``. They are wrapped into custom operators of torch, which a
compiler calls unchanged: calls are counted when they run, however they were traced. Inside such an
operator, torch's functional collectives have no advantage, and took the host about 0.4 ms each
beside a stack sampler (two H200s, HYDRA *base*, about 100 in a step with sequence parallelism).
Ranks communicate only inside steps that all of them make. A computation on a single rank (a probe,
a trace, a tuning) uses its own part instead of the others'.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from models.parallel.tensor_parallel_plan import Region

TENSOR, CONTEXT, EXPERT = "tensor", "context", "expert"  # axes of the mesh
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"
BROADCAST, ALL_TO_ALL = "broadcast", "all-to-all"
_LARGE_BYTES = 1 << 20  # larger tensors are sent separately


@dataclass
class Traffic:
    """Communication of one step along an axis: calls by kind, and bytes of their full tensors.

    ``tokens``: how many of a sequence this rank has between the layers; 0: all.
    """

    group: dist.ProcessGroup | None = None
    calls: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    tokens: int = 0
    recent: list[Tensor] = field(default_factory=list)

    def add(self, kind: str, full: Tensor, *other_tensors: Tensor) -> None:
        """Count one call.

        Until the next step its tensors stay on a CPU: gloo's threads let go of them after they are
        done, and memory that another thread frees would seem to be left behind.
        """
        self.calls[kind] += 1
        self.bytes += full.nbytes
        if full.device.type == "cpu":
            self.recent += (full, *other_tensors)


_traffic: dict[str, Traffic] = {}
_ALONE = Traffic()
_temporary: list[Tensor] = []  # tensors of the last step; ``Traffic.add`` says why


def hold(*tensors: Tensor) -> None:
    """Hold temporary tensors that a collective has used, until the next step, on a CPU."""
    _temporary.extend(tensor for tensor in tensors if tensor.device.type == "cpu")


@contextlib.contextmanager
def communicating(groups: Mapping[str, dist.ProcessGroup]) -> Iterator[dict[str, Traffic]]:
    """Communicate inside with the groups of these axes, as every rank does in a step."""
    global _traffic
    _temporary.clear()
    before, _traffic = _traffic, {axis: Traffic(group) for axis, group in groups.items()}
    try:
        yield _traffic
    finally:
        _traffic = before


def _along(axis: str) -> Traffic:
    """Return the communication along an axis; without a group if this rank computes alone."""
    return _traffic.get(axis, _ALONE)


def all_gather_bytes(
    payload: bytes, device: torch.device, group: dist.ProcessGroup | None
) -> list[bytes]:
    """Return the payload of every rank, in the order of the ranks.

    The bytes travel as a tensor: ``all_gather_object`` would unpickle what another process sends.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    sizes = torch.zeros(ranks, dtype=torch.int64, device=device)
    sizes[rank] = len(payload)
    dist.all_reduce(sizes, group=group)
    padded = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=device)
    padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    gathered = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(gathered, padded, group=group)
    rows = zip(gathered, sizes.tolist(), strict=True)
    return [bytes(row[:size].cpu().numpy()) for row, size in rows]


def sum_over_ranks(x: Tensor, axis: str = TENSOR, *, after: Tensor | None = None) -> Tensor:
    """Return the sum of the ranks' ``x``, in a new tensor.

    Here and below, ``after`` is the result of an earlier collective. It is not read: a compiler
    that sees it as an input cannot run this collective before that one.
    """
    traffic, total = _along(axis), x.clone(memory_format=torch.contiguous_format)
    if traffic.group is None:
        return total
    dist.all_reduce(total, group=traffic.group)
    traffic.add(ALL_REDUCE, total)
    return total


def gather_tokens(
    x: Tensor, ranks: int, axis: str = TENSOR, *, after: Tensor | None = None
) -> Tensor:
    """Return the tokens of all ranks, in their order: (B, S / ranks, E) -> (B, S, E)."""
    traffic = _along(axis)
    if traffic.group is None:
        return torch.cat([x] * ranks, 1)
    x = x.contiguous()
    gathered = x.new_empty((ranks, *x.shape))
    dist.all_gather_into_tensor(gathered.view(-1, *x.shape[1:]), x, group=traffic.group)
    traffic.add(ALL_GATHER, gathered, x)
    # With one token per rank, ``reshape`` returns a view: compiled code expects no strides.
    tokens = gathered.transpose(0, 1).reshape(x.shape[0], -1, *x.shape[2:])
    return tokens.contiguous()


def scatter_sum(
    x: Tensor, ranks: int, axis: str = TENSOR, *, after: Tensor | None = None
) -> Tensor:
    """Return this rank's tokens of the sum of the ranks' ``x``: (B, S, E) -> (B, S / ranks, E)."""
    traffic = _along(axis)
    if traffic.group is None:
        return own_tokens(x, ranks, axis)
    batch, _, *trailing_sizes = x.shape
    parts = x.reshape(batch, ranks, -1, *trailing_sizes).transpose(0, 1).contiguous()
    total = torch.empty_like(parts[0])
    dist.reduce_scatter_tensor(total, parts.view(-1, *total.shape[1:]), group=traffic.group)
    traffic.add(REDUCE_SCATTER, parts, total)
    return total


def own_tokens(x: Tensor, ranks: int, axis: str = TENSOR) -> Tensor:
    """Return this rank's tokens: (B, S, E) -> (B, S / ranks, E)."""
    traffic = _along(axis)
    number = 0 if traffic.group is None else dist.get_rank(traffic.group)
    tokens = x.chunk(ranks, 1)[number].clone(memory_format=torch.contiguous_format)
    if traffic is not _ALONE:
        traffic.tokens = tokens.shape[1]
    return tokens


def ranks_before(like: Tensor, ranks: int, rank: int) -> Tensor:
    """Return 1 for each rank before ``rank``, else 0, (ranks,), in the dtype of ``like``.

    The tensor hides these numbers from a compiler. A compiler that sees a rank multiply received
    values by zero may remove that rank's call, and the other ranks would wait (torch 2.11).
    """
    return (torch.arange(ranks, device=like.device) < rank).to(like.dtype)


def is_communicating(axis: str) -> bool:
    """Return True in steps that ranks make together, along this axis."""
    return _along(axis).group is not None


def all_to_all(rows: Tensor, received: list[int], sent: list[int], axis: str) -> Tensor:
    """Send the first ``sent[0]`` rows to the first rank, and so on; return the received rows.

    Rank i sends ``received[i]`` rows; the result has them in the order of the ranks.
    """
    traffic, rows = _along(axis), rows.contiguous()
    exchanged = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(exchanged, rows, received, sent, group=traffic.group)
    traffic.add(ALL_TO_ALL, rows, exchanged)
    return exchanged


def broadcast_all(tensors: list[Tensor], source: int, group: dist.ProcessGroup) -> None:
    """Replace the tensors, in place, by those of rank ``source``."""

    def send(x: Tensor) -> None:
        dist.broadcast(x, src=source, group=group)
        if TENSOR in _traffic:
            _traffic[TENSOR].add(BROADCAST, x)

    _in_few_calls(tensors, send)


def sum_all(tensors: list[Tensor], axis: str = TENSOR) -> None:
    """Replace the tensors, in place, by their sums over the ranks."""
    traffic = _along(axis)

    def add(x: Tensor) -> None:
        dist.all_reduce(x, group=traffic.group)
        traffic.add(ALL_REDUCE, x)

    if traffic.group is not None:
        _in_few_calls(tensors, add)


def _in_few_calls(tensors: list[Tensor], communicate: Callable[[Tensor], None]) -> None:
    """Communicate large tensors in place, and small ones together."""
    large = [t for t in tensors if t.nbytes >= _LARGE_BYTES and t.is_contiguous()]
    small = [t for t in tensors if t.nbytes < _LARGE_BYTES or not t.is_contiguous()]
    for tensor in large:
        communicate(tensor)
    if small:
        packed = torch.cat([t.flatten() for t in small])
        communicate(packed)
        parts = packed.split([t.numel() for t in small])
        torch._foreach_copy_(small, [p.view_as(t) for p, t in zip(parts, small, strict=True)])


def _like(x: Tensor, axis: str = TENSOR, *, after: Tensor | None = None) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_gather(x: Tensor, ranks: int, axis: str, *, after: Tensor | None = None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] * ranks, *x.shape[2:])


def _fake_scatter(x: Tensor, ranks: int, axis: str, *, after: Tensor | None = None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // ranks, *x.shape[2:])


def _fake_ranks(like: Tensor, ranks: int, rank: int) -> Tensor:
    return like.new_empty(ranks)


# ``torch.library.custom_op`` would import Dynamo at the first call: seconds.
_LIBRARY = torch.library.Library("workbench", "FRAGMENT")
_AFTER = "*, Tensor? after=None"
for _schema, _operator, _fake in (
    (f"Tensor x, str axis='tensor', {_AFTER}", sum_over_ranks, _like),
    (f"Tensor x, int ranks, str axis, {_AFTER}", gather_tokens, _fake_gather),
    (f"Tensor x, int ranks, str axis, {_AFTER}", scatter_sum, _fake_scatter),
    ("Tensor x, int ranks, str axis", own_tokens, _fake_scatter),
    ("Tensor like, int ranks, int rank", ranks_before, _fake_ranks),
):
    _LIBRARY.define(f"{_operator.__name__}({_schema}) -> Tensor")
    _LIBRARY.impl(_operator.__name__, _operator, "CompositeExplicitAutograd")
    torch.library.register_fake(f"workbench::{_operator.__name__}", _fake, lib=_LIBRARY)
_OPS = torch.ops.workbench


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: str) -> Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _OPS.sum_over_ranks(gradient, ctx.axis), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, axis: str) -> Tensor:
        return _OPS.sum_over_ranks(y, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Tokens(torch.autograd.Function):
    """Apply one of the operators on tokens by its name, and another one to its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int, axis: str, forth: str, back: str) -> Tensor:
        ctx.ranks, ctx.axis, ctx.back = ranks, axis, back
        return getattr(_OPS, forth)(x, ranks, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return getattr(_OPS, ctx.back)(gradient, ctx.ranks, ctx.axis), None, None, None, None


def total_over_ranks(x: Tensor, axis: str) -> Tensor:
    """Return the sum of the ranks' ``x``; its gradient is summed, too."""
    return _Enter.apply(_Leave.apply(x, axis), axis)  # type: ignore[no-any-return]


def all_tokens(x: Tensor, ranks: int, axis: str) -> Tensor:
    """Return the tokens of all ranks; each rank has a part of their gradient."""
    return _Tokens.apply(x, ranks, axis, "gather_tokens", "scatter_sum")  # type: ignore[no-any-return]


def _narrowed(x: Tensor) -> Tensor:
    """Return ``x`` in the dtype that autocast multiplies in, if it is on: half of the bytes."""
    device = x.device.type
    if x.dtype is not torch.float32 or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


class AcrossRanks(Region):
    """Region of layers whose shards are on the ranks of a tensor group."""

    def enter(self, x: Tensor, product: bool = False) -> Tensor:
        """Return ``x``; its gradient is the sum of the ranks' parts."""
        return _Enter.apply(_narrowed(x) if product else x, TENSOR)  # type: ignore[no-any-return]

    def leave(self, y: Tensor) -> Tensor:
        """Return the sum of the ranks' ``y``."""
        return _Leave.apply(y, TENSOR)  # type: ignore[no-any-return]

    def common(self, x: Tensor) -> Tensor:
        """Return ``x``; its gradient is the sum of the ranks' parts."""
        return _Enter.apply(x, TENSOR)  # type: ignore[no-any-return]

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of the ranks' ``x``; its gradient is summed, too."""
        return total_over_ranks(x, TENSOR)


class AlongSequence(AcrossRanks):
    """The same, where each rank has a part of the sequence between the layers."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def enter(self, x: Tensor, product: bool = False) -> Tensor:
        """Return the tokens of all ranks."""
        return self._moved(_narrowed(x) if product else x, "gather_tokens", "scatter_sum")

    def leave(self, y: Tensor) -> Tensor:
        """Return this rank's tokens of the sum of the ranks' ``y``."""
        return self._moved(y, "scatter_sum", "gather_tokens")

    def split(self, x: Tensor) -> Tensor:
        """Return this rank's tokens of a tensor that every rank has."""
        if not x.is_floating_point():
            return _OPS.own_tokens(x, self._ranks, TENSOR)  # type: ignore[no-any-return]
        return self._moved(x, "own_tokens", "gather_tokens")

    def join(self, x: Tensor) -> Tensor:
        """Return the tokens of all ranks; each of them has the complete gradient."""
        return self._moved(x, "gather_tokens", "own_tokens")

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean over the ranks; each rank has the gradient of its own part."""
        total: Tensor = _Leave.apply(x, TENSOR)
        return total / self._ranks

    def _moved(self, x: Tensor, forth: str, back: str) -> Tensor:
        return _Tokens.apply(x, self._ranks, TENSOR, forth, back)  # type: ignore[no-any-return]
