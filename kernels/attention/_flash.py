"""Our own attention in Triton: launches and the autograd function.

The algorithm is FlashAttention-2's (Dao 2023, arXiv 2307.08691): an online softmax over blocks of
keys, recomputed from the saved normalisers in the backward pass, there in two kernels, one over
blocks of keys and one over blocks of queries, so that nothing is added atomically. Few rows (as in
decoding) split their keys over programs and merge the shares (flash decoding).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels._autograd import applied, once_differentiable
from kernels._operator import Implementation, cdiv, unit_stride
from kernels._triton import (
    dot_precision,
    has_large_memory,
    missing,
    no_fp64,
    on_device,
    power_of_two,
    sm_count,
)
from kernels.attention._flash_kernels import (
    launch_delta,
    launch_dkdv,
    launch_dq,
    launch_forward,
    launch_merge,
)
from kernels.attention._masks import RECOMPUTED_ULPS

MAX_DIM = 256
MAX_DIM_FP32 = 128


def forward_tile(q: Tensor, rows: int) -> tuple[int, int, int, int]:
    """Rows, keys, warps and stages of the forward kernel."""
    return tile(q.shape[-1], q.dtype == torch.float32, has_large_memory(q), rows)


def tile(dim: int, wide: bool, large: bool, rows: int) -> tuple[int, int, int, int]:
    """The forward kernel's tile for a head dimension, FP32 (``wide``) or not, and the memory."""
    if rows <= 64:
        return max(16, power_of_two(rows)), 64 if dim <= 128 and large else 32, 4, 2
    if wide:
        return (64, 32, 4, 2) if large else (32, 32, 4, 1)
    if dim <= 64:
        return 128, 64, 4, 3
    if large:
        return (128, 128, 8, 2) if dim <= 128 else (128, 64, 8, 2)
    return (128, 64, 8, 2) if dim <= 128 else (64, 32, 4, 2)


def backward_tile(q: Tensor) -> tuple[int, int, int, int]:
    """Rows, keys, warps and stages of the backward kernels."""
    dim, wide, large = q.shape[-1], q.dtype == torch.float32, has_large_memory(q)
    if wide:
        return 32, 32, 4, 1
    if dim <= 64:
        return (128, 128, 8, 2) if large else (64, 64, 4, 2)
    if large:
        return (64, 128, 8, 2) if dim <= 128 else (32, 64, 8, 1)
    return (32, 64, 4, 1) if dim <= 128 else (32, 32, 4, 1)


def _splits(q: Tensor, k: Tensor, rows: int, m: int, n: int) -> int:
    """Over how many programs the keys of one block of rows are split."""
    programs = q.shape[0] * k.shape[1] * cdiv(rows, m)
    if rows > 64:
        return 1
    wanted = cdiv(2 * sm_count(q.device.index), programs)
    return max(1, min(wanted, 64, cdiv(k.shape[2], 2 * n)))


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        window: int | None,
        scale: float,
        kv_length: Tensor | None,
    ) -> Tensor:
        q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
        batch, heads, length, dim = q.shape
        groups, keys = k.shape[1:3]
        rows = length * (heads // groups)
        m, n, warps, stages = forward_tile(q, rows)
        splits = _splits(q, k, rows, m, n)
        out = torch.empty_like(q)
        lse = torch.empty(batch, heads, length, dtype=torch.float32, device=q.device)
        target, target_lse, strides = out, lse, (0, *out.stride()[:3])
        if splits > 1:
            shape = (splits, batch, heads, length)
            target = torch.empty(*shape, dim, dtype=torch.float32, device=q.device)
            target_lse = torch.empty(shape, dtype=torch.float32, device=q.device)
            strides = target.stride()[:4]
        lengths = 0 if kv_length is None else 1 if kv_length.numel() == 1 else 2
        with on_device(q):
            launch_forward((batch * groups * splits * cdiv(rows, m),),
                q, k, v, target, target_lse, kv_length, length, keys, window or 0, splits,
                *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
                strides[0], strides[1], strides[2], strides[3],
                GROUPS=groups, R=heads // groups, D=dim, SCALE=scale, CAUSAL=causal,
                WINDOW=window is not None, LENGTHS=lengths, SPLIT=splits > 1, M=m, N=n,
                BLOCK_D=max(16, power_of_two(dim)), PRECISION=dot_precision(),
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
            if splits > 1:
                launch_merge((batch * heads * length,),
                    target, target_lse, out, lse, batch * heads * length, splits, length, heads,
                    *out.stride()[:3],
                    D=dim, BLOCK_D=power_of_two(dim), SPLITS=power_of_two(splits), num_warps=4,
                )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse, kv_length)
        ctx.mask = causal, window, scale, lengths
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, kv_length = ctx.saved_tensors
        causal, window, scale, lengths = ctx.mask
        dout = unit_stride(dout)
        batch, heads, length, dim = q.shape
        groups, keys = k.shape[1:3]
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        delta = torch.empty_like(lse)
        n_rows, block_d = batch * heads * length, max(16, power_of_two(dim))
        m, n, warps, stages = backward_tile(q)
        options = {
            "GROUPS": groups, "R": heads // groups, "D": dim, "SCALE": scale, "CAUSAL": causal,
            "WINDOW": window is not None, "LENGTHS": lengths, "BLOCK_D": block_d,
            "PRECISION": dot_precision(), "num_warps": warps, "num_stages": stages,
        }  # fmt: skip
        with on_device(q):
            launch_delta((cdiv(n_rows, 32),),
                out, dout, delta, n_rows, length, heads,
                *out.stride()[:3], *dout.stride()[:3],
                D=dim, ROWS=32, BLOCK_D=block_d, num_warps=4,
            )  # fmt: skip
            launch_dkdv((batch * groups * cdiv(keys, n),),
                q, k, v, dout, lse, delta, dk, dv, kv_length, length, keys, window or 0,
                *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3],
                *dk.stride()[:3], *dv.stride()[:3],
                M=m, N=n, **options,
            )  # fmt: skip
            launch_dq((batch * groups * cdiv(length * (heads // groups), n),),
                q, k, v, dout, lse, delta, dq, kv_length, length, keys, window or 0,
                *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3],
                *dq.stride()[:3],
                M=n, N=m, **options,
            )  # fmt: skip
        return dq, dk, dv, None, None, None, None


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> Tensor:
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if kv_length is not None:
        kv_length = kv_length.contiguous()
    return applied(_Flash, q, k, v, causal, window, scale, kv_length)


def refuses(q: Tensor, k: Tensor, *_: Any) -> str | None:
    """Why the kernels cannot take these queries and keys."""
    most = MAX_DIM_FP32 if q.dtype == torch.float32 else MAX_DIM
    if q.shape[-1] > most:
        return f"takes head dimensions up to {most} in {q.dtype}, not {q.shape[-1]}"
    if not (q.numel() and k.numel()):
        return "takes no empty tensors"
    return no_fp64(q)


def _refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> str | None:
    if kv_length is not None and kv_length.dim() == 2:
        return "takes no kv_length for every query"
    return refuses(q, k)


BACKENDS = {
    "triton": Implementation(_call, missing, _refuses, stated_ulps=RECOMPUTED_ULPS),
}
