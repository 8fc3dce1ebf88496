"""Launches of the adaptive kernels and their autograd function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels import hardware
from kernels.adaptive_attention._kernels import (
    adaptive_attention_dkdv_kernel,
    adaptive_attention_dq_kernel,
    adaptive_attention_forward_kernel,
    launch_dkdv,
    launch_dq,
    launch_forward,
    launch_narrow,
)
from kernels.attention._flash import (
    MANY_ROWS,
    backward_tiles,
    constants,
    delta_of,
    forward_tiles,
    key_of,
    refuses,
)
from kernels.attention._order import heads_together
from kernels.core.autograd import applied, needs_gradient, once_differentiable
from kernels.core.operator import Implementation, by_tokens, cdiv, traced_as_constant, unit_stride
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    LARGE_BYTES,
    head_strides,
    missing,
    on_device,
    power_of_two,
    shared_bytes,
)
from kernels.core.tuning import Tile, Tunable

_FP8_UNITS = hardware.needs("FP8", (8, 9))


@traced_as_constant
def _lacks_fp8() -> str:
    return _FP8_UNITS("cuda") or ""


def _smaller(tiles: list[Tile], device: int) -> list[Tile]:
    """Return attention's tiles, or smaller ones: branches need more shared memory than one loop."""
    if shared_bytes(device) >= LARGE_BYTES:
        return tiles
    return [(m, max(16, n // 2), warps, 1) for m, n, warps, _ in tiles]


def _forward_tiles(device: int, *key: Any) -> list[Tile]:
    return _smaller(forward_tiles(device, *key), device)


def _backward_tiles(device: int, *key: Any) -> list[Tile]:
    return _smaller(backward_tiles(device, *key), device)


_FORWARD = Tunable(
    "adaptive_attention.forward", (adaptive_attention_forward_kernel,), _forward_tiles, dots=True
)
_DKDV = Tunable(
    "adaptive_attention.dkdv", (adaptive_attention_dkdv_kernel,), _backward_tiles, dots=True
)
_DQ = Tunable("adaptive_attention.dq", (adaptive_attention_dq_kernel,), _backward_tiles, dots=True)


def _narrowed(
    x: Tensor, bits: Tensor, threshold: int, block_d: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``x`` rounded where the head wants it, with multiples and units; see the kernel."""
    batch, heads, tokens, dim = x.shape
    near = torch.empty_like(x)
    dtype = torch.float8_e4m3fn if threshold == 8 else torch.float16
    low = torch.empty(batch, heads, tokens, dim, dtype=dtype, device=x.device)
    unit = torch.empty(batch, heads, tokens, dtype=torch.float32, device=x.device)
    n_rows = batch * heads * tokens
    launch_narrow((cdiv(n_rows, 32),),
        x, near, low, unit, bits, n_rows, tokens, *head_strides(x, near),
        HEADS=heads, R=heads // bits.shape[0], D=dim, BITS=threshold, ROWS=32, BLOCK_D=block_d,
        num_warps=4,
    )  # fmt: skip
    return near, low, unit


def _forward(
    q: Tensor,
    q_low: Tensor | None,
    q_unit: Tensor | None,
    k: Tensor,
    k_low: Tensor | None,
    k_unit: Tensor | None,
    v: Tensor,
    rank: Tensor | None,
    bits: Tensor | None,
    threshold: int,
    options: dict[str, Any],
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    (batch, groups, keys, _), (heads, length) = k.shape, q.shape[1:3]
    rows = length * (heads // groups)
    out = by_tokens(q)
    lse = None
    if keep:
        lse = torch.empty(batch, heads, length, dtype=torch.float32, device=q.device)
    m, n, warps, stages = _FORWARD.tile(
        key_of(q, rows, options["CAUSAL"], options["WIDTHS"], threshold if bits is not None else 0),
        _forward, q, q_low, q_unit, k, k_low, k_unit, v, rank, bits, threshold, options,
        keep,
    )  # fmt: skip
    together = heads_together(k, balanced=options["CAUSAL"], tiles=cdiv(rows, m))
    launch_forward((batch * groups * cdiv(rows, m),),
        q, q_low, q_unit, k, k_low, k_unit, v, out, lse, rank, bits, length, keys,
        *head_strides(q, k, v, out),
        BITS=threshold if bits is not None else 0, KEEP=keep, M=m, N=n,
        num_warps=warps, num_stages=stages, **options | {"TOGETHER": together},
    )  # fmt: skip
    return out, lse


def _dkdv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    lse: Tensor,
    delta: Tensor,
    rank: Tensor | None,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    m, n, warps, stages = _DKDV.tile(
        key_of(q, MANY_ROWS, options["CAUSAL"], options["WIDTHS"]),
        _dkdv, q, k, v, dout, lse, delta, rank, options,
    )  # fmt: skip
    batch, groups, keys, _ = k.shape
    launch_dkdv((batch * groups * cdiv(keys, n),),
        q, k, v, dout, lse, delta, dk, dv, rank, q.shape[2], keys,
        *head_strides(q, k, v, dout, dk, dv),
        M=m, N=n, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
    return dk, dv


def _dq(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    lse: Tensor,
    delta: Tensor,
    rank: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    dq = torch.empty_like(q)
    m, n, warps, stages = _DQ.tile(
        key_of(q, MANY_ROWS, options["CAUSAL"], options["WIDTHS"]),
        _dq, q, k, v, dout, lse, delta, rank, options,
    )  # fmt: skip
    (batch, groups, keys, _), length = k.shape, q.shape[2]
    launch_dq((batch * groups * cdiv(length * options["R"], n),),
        q, k, v, dout, lse, delta, dq, rank, length, keys, *head_strides(q, k, v, dout, dq),
        M=n, N=m, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
    return dq


def _options(
    q: Tensor, k: Tensor, rank: Tensor | None, causal: bool, scale: float, threshold: int
) -> dict[str, Any]:
    """Return the constants of every direction."""
    # FP8 units multiply at least 32 columns, others 16.
    least = 32 if threshold == 8 else 16
    block_d = max(least, power_of_two(q.shape[3]))
    widths = 1
    while rank is not None and widths < 3 and block_d >> widths >= least:
        widths += 1
    options = constants(q, k, causal, scale, block_d)
    return options | {"RANKED": rank is not None, "WIDTHS": widths}


@replayed
def _rounded_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rank: Tensor | None,
    bits: Tensor | None,
    causal: bool,
    scale: float,
    threshold: int,
    keep: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Return the output, its ``lse`` with ``keep``, and the rounded q and k."""
    options = _options(q, k, rank, causal, scale, threshold)
    q_low = q_unit = k_low = k_unit = None
    with on_device(q):
        if bits is not None:
            q, q_low, q_unit = _narrowed(q, bits, threshold, options["BLOCK_D"])
            k, k_low, k_unit = _narrowed(k, bits, threshold, options["BLOCK_D"])
        out, lse = _forward(
            q, q_low, q_unit, k, k_low, k_unit, v, rank, bits, threshold, options, keep
        )
    return out, lse, q, k


@replayed
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    rank: Tensor | None,
    causal: bool,
    scale: float,
    threshold: int,
) -> tuple[Tensor, Tensor, Tensor]:
    options = _options(q, k, rank, causal, scale, threshold)
    dout = unit_stride(dout)
    with on_device(q):
        delta = delta_of(out, dout, lse, options["BLOCK_D"])
        dk, dv = _dkdv(q, k, v, dout, lse, delta, rank, options)
        dq = _dq(q, k, v, dout, lse, delta, rank, options)
    return dq, dk, dv


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
        keep: bool,
    ) -> Tensor:
        q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
        out, lse, q, k = _rounded_forward(q, k, v, rank, bits, causal, scale, threshold, keep)
        ctx.save_for_backward(q, k, v, out, lse, rank)
        ctx.options = causal, scale, threshold
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _backward(dout, *ctx.saved_tensors, *ctx.options)
        return *gradients, None, None, None, None, None, None


def _threshold(q: Tensor, allow_fp8: bool) -> int:
    """Return up to how many bits heads are narrowed; 0 if the inputs are as narrow."""
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
    keep = needs_gradient(q, k, v)
    return applied(_Adaptive, q, k, v, rank, bits, causal, scale, threshold, keep)


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
            return "supports FP8 only for inputs in float16 and bfloat16, not in float32"
        if q.is_cuda and (lacks := _lacks_fp8()):
            return lacks
    if scale == 0:
        return "does not support a scale of 0, which its kernels replace by the scale of the rank"
    return refuses(q, k)


TRITON = Implementation(_call, missing, _refuses, replayed=True)
