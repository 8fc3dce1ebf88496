"""Launches of the adaptive kernels and their autograd function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels import hardware
from kernels._autograd import applied, once_differentiable
from kernels._operator import Implementation, cdiv, unit_stride
from kernels._triton import (
    dot_precision,
    has_large_memory,
    missing,
    on_device,
    power_of_two,
)
from kernels.adaptive_attention._kernels import (
    launch_dkdv,
    launch_dq,
    launch_forward,
    launch_narrow,
)
from kernels.attention._flash import (
    backward_tile,
    forward_tile,
    refuses,
)
from kernels.attention._flash_kernels import launch_delta

_FP8_UNITS = hardware.needs("FP8", (8, 9))


def _fitting(tile: tuple[int, int, int, int], q: Tensor) -> tuple[int, int, int, int]:
    """Attention's tile, or a smaller one: branches take more shared memory than one loop."""
    m, n, warps, _ = tile
    return tile if has_large_memory(q) else (m, max(16, n // 2), warps, 1)


def _narrowed(
    x: Tensor, bits: Tensor, threshold: int, block_d: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``x`` as rounded where the head asks for it, and its multiples and units; see the kernel."""
    batch, heads, tokens, dim = x.shape
    near = torch.empty_like(x)
    dtype = torch.float8_e4m3fn if threshold == 8 else torch.float16
    low = torch.empty(batch, heads, tokens, dim, dtype=dtype, device=x.device)
    unit = torch.empty(batch, heads, tokens, dtype=torch.float32, device=x.device)
    n_rows = batch * heads * tokens
    launch_narrow((cdiv(n_rows, 32),),
        x, near, low, unit, bits, n_rows, tokens, *x.stride()[:3],
        *near.stride()[:3],
        HEADS=heads, R=heads // bits.shape[0], D=dim, BITS=threshold, ROWS=32, BLOCK_D=block_d,
        num_warps=4,
    )  # fmt: skip
    return near, low, unit


class _Adaptive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rank: Tensor | None,
        bits: Tensor | None,
        causal: bool,
        scale: float,
        threshold: int,
    ) -> Tensor:
        q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
        batch, heads, length, dim = q.shape
        groups, keys = k.shape[1:3]
        rows = length * (heads // groups)
        # FP8 units take products of at least 32 columns, others of 16.
        least = 32 if threshold == 8 else 16
        block_d = max(least, power_of_two(dim))
        widths = 1
        while rank is not None and widths < 3 and block_d >> widths >= least:
            widths += 1
        ctx.options = {
            "GROUPS": groups, "R": heads // groups, "D": dim, "SCALE": scale, "CAUSAL": causal,
            "RANKED": rank is not None, "WIDTHS": widths, "BLOCK_D": block_d,
            "PRECISION": dot_precision(),
        }  # fmt: skip
        out = torch.empty_like(q)
        lse = torch.empty(batch, heads, length, dtype=torch.float32, device=q.device)
        m, n, warps, stages = _fitting(forward_tile(q, rows), q)
        q_low = q_unit = k_low = k_unit = None
        with on_device(q):
            if bits is not None:
                q, q_low, q_unit = _narrowed(q, bits, threshold, block_d)
                k, k_low, k_unit = _narrowed(k, bits, threshold, block_d)
            launch_forward((batch * groups * cdiv(rows, m),),
                q, q_low, q_unit, k, k_low, k_unit, v, out, lse, rank, bits, length, keys,
                *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
                BITS=threshold if bits is not None else 0, M=m, N=n,
                num_warps=warps, num_stages=stages, **ctx.options,
            )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse, rank)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, rank = ctx.saved_tensors
        dout = unit_stride(dout)
        batch, heads, length, dim = q.shape
        groups, keys = k.shape[1:3]
        # What lies past a head's rank has no gradient, and the kernels do not write it.
        new = torch.empty_like if rank is None else torch.zeros_like
        dq, dk, dv = new(q), new(k), torch.empty_like(v)
        delta = torch.empty_like(lse)
        n_rows = batch * heads * length
        m, n, warps, stages = _fitting(backward_tile(q), q)
        strides = (
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3],
        )  # fmt: skip
        options = ctx.options | {"num_warps": warps, "num_stages": stages}
        with on_device(q):
            launch_delta((cdiv(n_rows, 32),),
                out, dout, delta, n_rows, length, heads,
                *out.stride()[:3], *dout.stride()[:3],
                D=dim, ROWS=32, BLOCK_D=options["BLOCK_D"], num_warps=4,
            )  # fmt: skip
            launch_dkdv((batch * groups * cdiv(keys, n),),
                q, k, v, dout, lse, delta, dk, dv, rank, length, keys, *strides,
                *dk.stride()[:3], *dv.stride()[:3],
                M=m, N=n, **options,
            )  # fmt: skip
            launch_dq((batch * groups * cdiv(length * (heads // groups), n),),
                q, k, v, dout, lse, delta, dq, rank, length, keys, *strides,
                *dq.stride()[:3],
                M=n, N=m, **options,
            )  # fmt: skip
        return dq, dk, dv, None, None, None, None, None


def _threshold(q: Tensor, allow_fp8: bool) -> int:
    """Up to how many bits of precision heads are narrowed; 0 if the inputs are as narrow."""
    if allow_fp8:
        return 8
    return 16 if q.element_size() > 2 else 0


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rank: Tensor | None,
    bits: Tensor | None,
    causal: bool,
    scale: float | None,
    allow_fp8: bool,
) -> Tensor:
    if scale is None:
        scale = q.shape[-1] ** -0.5 if rank is None else 0.0
    threshold = _threshold(q, allow_fp8)
    rank = None if rank is None else rank.contiguous()
    bits = None if bits is None or threshold == 0 else bits.contiguous()
    return applied(_Adaptive, q, k, v, rank, bits, causal, scale, threshold)


def _refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rank: Tensor | None,
    bits: Tensor | None,
    causal: bool,
    scale: float | None,
    allow_fp8: bool,
) -> str | None:
    if allow_fp8 and bits is not None:
        if q.dtype == torch.float32:
            return "has FP8 beside float16 and bfloat16, not beside float32"
        if q.is_cuda and not torch.compiler.is_compiling():
            lacks = _FP8_UNITS("cuda")
            if lacks is not None:
                return lacks
    return refuses(q, k)


TRITON = Implementation(_call, missing, _refuses)
