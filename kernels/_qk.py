"""Normalisation and rotation of query and key heads: the shared code of rope and the qk_norms.

Launches of the kernels in ``_qk_kernels``, their autograd functions, and the checks of the inputs.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels._qk_kernels import (
    launch_backward,
    launch_forward,
    qk_backward_kernel,
    qk_forward_kernel,
)
from kernels.core.autograd import applied, needs_gradient, once_differentiable
from kernels.core.column_sum import column_sums
from kernels.core.operator import (
    Case,
    Huge,
    Mistake,
    alike,
    blank,
    cdiv,
    random_tensor,
    same_device,
    unit_stride,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    head_strides,
    on_device,
    power_of_two,
    shared_bytes,
    sm_count,
)
from kernels.core.tuning import Key, Tile, Tunable, size_class


def _table_arguments(
    cos: Tensor | None, sin: Tensor | None, interleaved: bool, dim: int
) -> tuple[Tensor | None, Tensor | None, int, int, int]:
    """Return cosines and sines of equal strides, positions, stride and step of the table."""
    if cos is None or sin is None:
        return None, None, 0, 0, 1
    cos, sin = unit_stride(cos), unit_stride(sin)
    if sin.stride() != cos.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    positions, width = cos.shape
    step = 2 if interleaved and width == dim else 1
    return cos, sin, positions, cos.stride()[0], step


def _constants(
    q: Tensor, k: Tensor, cos: Tensor | None, interleaved: bool, offsets: Tensor | None, eps: float
) -> dict[str, Any]:
    """Return the constants of the kernels of both directions, except those of the tile."""
    _, heads, _, dim = q.shape
    half = dim // 2
    return {
        "OFFSETS": 0 if offsets is None else 1 if offsets.numel() == 1 else 2,
        "Q_HEADS": heads, "K_HEADS": k.shape[1], "HALF": half, "INTERLEAVED": interleaved,
        "ROPE": cos is not None, "EPS": eps, "BLOCK_D": power_of_two(half),
    }  # fmt: skip


def _heads(pairs: int, dim: int, q_heads: int, k_heads: int) -> int:
    """Return how many heads make a tile of about that many pairs."""
    heads = power_of_two(max(q_heads, k_heads, 1))
    return max(1, min(heads, pairs // power_of_two(dim // 2)))


def _forward_tiles(device: int, dim: int, q_heads: int, k_heads: int, *_: Any) -> list[Tile]:
    """Return heads and warps of tiles of about 1024 pairs, of half and of twice as many."""
    most, half, twice = (_heads(pairs, dim, q_heads, k_heads) for pairs in (1024, 512, 2048))
    return [(most, 4), (most, 2), (most, 8), (half, 2), (half, 4), (twice, 4), (twice, 8)]


def _backward_tiles(
    device: int, dim: int, q_heads: int, k_heads: int, dtype: torch.dtype, *_: Any
) -> list[Tile]:
    """Return heads, warps, programs per multiprocessor and pipeline stages of each tile.

    The first tile is from measurements on an H200: three stages, which hold two tokens' heads in
    shared memory, and eight warps per multiprocessor take 0.7 to 0.85 of the time of one stage.
    """
    heads = min(8, _heads(512, dim, q_heads, k_heads))
    warps = max(1, heads * power_of_two(dim // 2) // 128)
    per_sm = max(1, 8 // warps)
    token = (cdiv(q_heads, heads) + cdiv(k_heads, heads)) * heads * 2 * power_of_two(dim)
    stages = min(3, 1 + int(0.9 * shared_bytes(device)) // (token * dtype.itemsize))
    tiles = [
        (heads, warps, per_sm, stages),
        (heads, warps, 2 * per_sm, stages),
        (heads, max(1, warps // 2), 2 * per_sm, min(2, stages)),
        (2 * heads, 2 * warps, per_sm, min(2, stages)),
        (heads, warps, 2 * per_sm, 1),
    ]
    return list(dict.fromkeys(tiles))


_FORWARD = Tunable("qk.forward", (qk_forward_kernel,), _forward_tiles)
_BACKWARD = Tunable("qk.backward", (qk_backward_kernel,), _backward_tiles)


def _key(q: Tensor, k: Tensor, cos: Tensor | None, interleaved: bool) -> Key:
    table_layout = "no table" if cos is None else "interleaved" if interleaved else "halves"
    device, (batch, q_heads, length, dim) = q.get_device(), q.shape
    return device, dim, q_heads, k.shape[1], q.dtype, table_layout, size_class(batch * length)


@replayed
def _launch_forward(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    interleaved: bool,
    offset: int,
    offsets: Tensor | None,
    eps: float,
    backward: bool,
) -> tuple[Tensor, Tensor]:
    batch, _, length, dim = q.shape
    # empty_like keeps the order of the strides: [B, S, H, D] in memory stays so. The kernel needs a
    # last stride of 1 in the results, too.
    q, k = unit_stride(q), unit_stride(k)
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    if not (batch and length and dim):
        return q_out, k_out
    cos, sin, positions, table_stride, step = _table_arguments(cos, sin, interleaved, dim)
    key = (*_key(q, k, cos, interleaved), q_weight is not None)
    block_h, warps = _FORWARD.tile(
        key, _launch_forward, q, k, q_weight, k_weight, cos, sin, interleaved, offset, offsets, eps,
        backward,
    )  # fmt: skip
    with on_device(q):
        launch_forward((batch * length,),
            q, k, q_out, k_out, q_weight, k_weight, cos, sin,
            offsets, offset, length, positions, table_stride, *head_strides(q, k, q_out, k_out),
            TABLE_STEP=step, NORM=q_weight is not None, BACKWARD=backward, BLOCK_H=block_h,
            num_warps=warps, **_constants(q, k, cos, interleaved, offsets, eps),
        )  # fmt: skip
    return q_out, k_out


@replayed
def _launch_backward(
    dq_out: Tensor,
    dk_out: Tensor,
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    interleaved: bool,
    offset: int,
    offsets: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, _, length, dim = q.shape
    q, k = unit_stride(q), unit_stride(k)
    dq, dk = torch.empty_like(q), torch.empty_like(k)
    if not (batch and length and dim):
        return dq, dk, torch.zeros_like(q_weight), torch.zeros_like(k_weight)
    dq_out, dk_out = unit_stride(dq_out), unit_stride(dk_out)
    cos, sin, positions, table_stride, step = _table_arguments(cos, sin, interleaved, dim)
    block_h, warps, per_sm, stages = _BACKWARD.tile(
        _key(q, k, cos, interleaved), _launch_backward, dq_out, dk_out, q, k, q_weight, k_weight,
        cos, sin, interleaved, offset, offsets, eps,
    )  # fmt: skip
    n_tokens = batch * length
    programs = min(n_tokens, per_sm * sm_count(q.device.index))
    partial_sums = torch.empty(programs, 2 * dim, dtype=torch.float32, device=q.device)
    with on_device(q):
        launch_backward((programs,),
            q, k, dq_out, dk_out, dq, dk, q_weight, k_weight, partial_sums, cos, sin,
            offsets, offset, n_tokens, length, positions, table_stride,
            *head_strides(q, k, dq_out, dk_out, dq, dk),
            TABLE_STEP=step, BLOCK_H=block_h, STAGES=stages, num_warps=warps,
            **_constants(q, k, cos, interleaved, offsets, eps),
        )  # fmt: skip
        dq_weight, dk_weight = blank(q_weight), blank(k_weight)
        column_sums(partial_sums, dq_weight, dk_weight, ends=(dim,))
    return dq, dk, dq_weight, dk_weight


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        interleaved: bool,
        offset: int,
        offsets: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin, offsets)
        ctx.interleaved, ctx.offset = interleaved, offset
        return _launch_forward(q, k, None, None, cos, sin, interleaved, offset, offsets, 0.0, False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, offsets = ctx.saved_tensors
        dq, dk = _launch_forward(
            dq, dk, None, None, cos, sin, ctx.interleaved, ctx.offset, offsets, 0.0, True
        )
        return dq, dk, None, None, None, None, None


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        interleaved: bool,
        offset: int,
        offsets: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        q_weight, k_weight = unit_stride(q_weight), unit_stride(k_weight)
        ctx.save_for_backward(q, k, q_weight, k_weight, cos, sin, offsets)
        ctx.interleaved, ctx.offset, ctx.eps = interleaved, offset, eps
        return _launch_forward(
            q, k, q_weight, k_weight, cos, sin, interleaved, offset, offsets, eps, False
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq_out: Tensor, dk_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, q_weight, k_weight, cos, sin, offsets = ctx.saved_tensors
        grads = _launch_backward(
            dq_out, dk_out, q, k, q_weight, k_weight, cos, sin, ctx.interleaved, ctx.offset,
            offsets, ctx.eps,
        )  # fmt: skip
        return *grads, None, None, None, None, None, None


def rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, offset: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Rotate q and k with Triton."""
    number, tensor = _split(offset)
    return applied(_Rotate, q, k, cos, sin, interleaved, number, tensor)


def normalise(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    interleaved: bool = False,
    offset: int | Tensor = 0,
) -> tuple[Tensor, Tensor]:
    """Normalise q and k with Triton and, given a table, rotate them."""
    number, tensor = _split(offset)
    return applied(_Normalise, q, k, q_weight, k_weight, cos, sin, interleaved, number, tensor, eps)


def is_fused_by_compiler(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, *_: Any) -> bool:
    """Return False where norms get gradients, for which Inductor makes several kernels.

    On an H200, a compiled training step of AdaAttn *base* takes 18.9 ms with this kernel, and 19.7
    with Inductor's.
    """
    return not needs_gradient(q, k, q_weight, k_weight)


def _split(offset: int | Tensor) -> tuple[int, Tensor | None]:
    return (0, offset.contiguous()) if isinstance(offset, Tensor) else (offset, None)


def random_heads(
    case: Case, device: torch.device, dtype: torch.dtype, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw random q and k, laid out [B, S, H, D] in memory as a projection leaves them."""
    size = case.sizes
    q, k = (
        random_tensor(
            size["batch"],
            size["length"],
            size[heads],
            size["dim"],
            device=device,
            dtype=dtype,
            seed=seed + i,
        ).transpose(1, 2)
        for i, heads in enumerate(("heads", "kv_heads"))
    )
    return q, k


def sizes(
    batch: int, length: int, heads: int, kv_heads: int, dim: int, **more_sizes: Any
) -> dict[str, Any]:
    """Return the sizes of a case over heads, by name."""
    named = {"batch": batch, "length": length, "heads": heads, "kv_heads": kv_heads, "dim": dim}
    return named | more_sizes


HUGE = (Huge(sizes(66, 4096, 64, 1, 128)),)


def random_sizes(random: Random, **more_sizes: Any) -> dict[str, Any]:
    """Draw small sizes of every kind, for the tests."""
    return sizes(
        random.randint(1, 3),
        random.randint(1, 20),
        random.randint(1, 9),
        random.randint(1, 9),
        2 * random.randint(1, 40),
        **more_sizes,
    )


def validate_heads(op: str, q: Tensor, k: Tensor) -> None:
    """Raise ``Mistake`` unless q and k are [B, H, S, D] and agree in all but the heads."""
    alike(op, "q k", q, k)
    of_q, of_k = q.shape, k.shape
    if (
        len(of_q) != 4
        or len(of_k) != 4
        or q.dtype != k.dtype
        or (of_q[0], of_q[2], of_q[3]) != (of_k[0], of_k[2], of_k[3])
    ):
        raise Mistake(
            f"{op}: q and k must be [batch, heads, sequence, dim] and agree in all but the heads, "
            f"but are {tuple(q.shape)} {q.dtype} and {tuple(k.shape)} {k.dtype}"
        )


def validate_weights(op: str, q: Tensor, q_weight: Tensor, k_weight: Tensor) -> None:
    """Raise ``Mistake`` unless the weights are [D] and of one dtype."""
    alike(op, "q q_weight k_weight", q, q_weight, k_weight)
    shapes = (q_weight.shape, k_weight.shape)
    if shapes != (q.shape[3:], q.shape[3:]) or q_weight.dtype != k_weight.dtype:
        raise Mistake(
            f"{op}: q_weight and k_weight must be [{q.shape[3]}] of one dtype, but are "
            f"{tuple(q_weight.shape)} {q_weight.dtype} and {tuple(k_weight.shape)} {k_weight.dtype}"
        )


def validate_table(op: str, q: Tensor, cos: Tensor, sin: Tensor, offset: int | Tensor) -> None:
    """Raise ``Mistake`` unless the table fits the heads, holds the positions, and is constant."""
    alike(op, "q cos sin", q, cos, sin)
    _, _, length, dim = q.shape
    table = cos.shape
    if dim % 2:
        raise Mistake(f"{op}: the head dimension must be even, but is {dim}")
    if len(table) != 2 or table != sin.shape or table[1] not in (dim, dim // 2):
        raise Mistake(
            f"{op}: cos and sin must both be [positions, {dim // 2} or {dim}] for a head dimension "
            f"of {dim}, but are {tuple(cos.shape)} and {tuple(sin.shape)}"
        )
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        raise Mistake(
            f"{op}: cos and sin get no gradient, but one of them requires it; detach them"
        )
    if isinstance(offset, Tensor):
        same_device(op, q, offset=offset)
        if offset.dtype not in (torch.int64, torch.int32) or offset.shape not in ((), q.shape[:1]):
            raise Mistake(
                f"{op}: a tensor offset must be an integer, [] or [{q.shape[0]}], but is "
                f"{tuple(offset.shape)} {offset.dtype}"
            )
    elif offset < 0 or offset + length > table[0]:
        raise Mistake(
            f"{op}: positions {offset} to {offset + length - 1} are not in the table's "
            f"range, 0 to {table[0] - 1}"
        )
