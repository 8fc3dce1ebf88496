"""Launches of the scan's kernels, and its autograd function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels._operator import unit_stride
from kernels._triton import column_sum, on_device, power_of_two, sm_count, triton
from kernels.ssd_scan._kernels import back_kernel, join_kernel, scan_kernel

Plain = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
CHUNK = 64  # of the kernels; results do not depend on it


def _segments(x: Tensor, n_states: int) -> tuple[int, int, int]:
    """Chunk, chunks of a segment, and segments: enough for two programs a multiprocessor."""
    batch, length, heads, dim = x.shape
    # Products of FP32 are not for the matrix units: large ones take more registers than there are.
    longest = 16 if x.dtype == torch.float32 and dim * n_states > 1024 else CHUNK
    chunk = max(16, min(longest, power_of_two(length)))
    n_chunks = triton.cdiv(length, chunk)
    wanted = max(1, 2 * sm_count(x.device.index) // (batch * heads))
    per_segment = triton.cdiv(n_chunks, min(wanted, n_chunks))
    return chunk, per_segment, triton.cdiv(n_chunks, per_segment)


def _blocks(x: Tensor, b: Tensor) -> dict[str, int]:
    """Constants of a launch that follow from the sizes."""
    dim, n_states = x.shape[3], b.shape[3]
    block_p, block_n = max(16, power_of_two(dim)), max(16, power_of_two(n_states))
    return {
        "P": dim,
        "N": n_states,
        "PRECISE": x.dtype == torch.float32,
        "BLOCK_P": block_p,
        "BLOCK_N": block_n,
        "num_warps": 4 if block_p * block_n <= 4096 else 8,
        "num_stages": 2 if x.element_size() == 2 else 1,
    }


def _walk(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    bias: Tensor | None,
    softplus: bool,
    begin: Tensor | None,
    *,
    y: Tensor | None = None,
    end: Tensor | None = None,
    total: Tensor | None = None,
    starts: Tensor | None = None,
) -> None:
    """One walk from the segments' ``begin``; fills what is given of the rest."""
    batch, length, heads, _ = x.shape
    chunk, per_segment, n_segments = _segments(x, b.shape[3])
    with on_device(x):
        scan_kernel[(heads, n_segments, batch)](
            x, dt, a, b, c, d, bias, begin, y, end, total, starts,
            length, per_segment, heads // b.shape[2],
            x.stride(0), x.stride(1), x.stride(2),
            dt.stride(0), dt.stride(1), dt.stride(2),
            b.stride(0), b.stride(1), b.stride(2),
            c.stride(0), c.stride(1), c.stride(2),
            SOFTPLUS=softplus, HAS_D=d is not None, HAS_BIAS=bias is not None,
            HAS_BEGIN=begin is not None, OUTPUT=y is not None, END=end is not None,
            TOTAL=total is not None, KEEP=starts is not None, Q=chunk, **_blocks(x, b),
        )  # fmt: skip


def _join(first: Tensor | None, states: Tensor, total: Tensor, last: Tensor, back: bool) -> None:
    """Turn what the segments add, in place, into what they begin with."""
    batch, n_segments, heads, dim, n_states = states.shape
    size = dim * n_states
    block = min(1024, power_of_two(size))
    with on_device(states):
        join_kernel[(triton.cdiv(size, block), heads, batch)](
            first, states, total, last, n_segments, heads,
            SIZE=size, HAS_FIRST=first is not None, BACKWARD=back, BLOCK=block, num_warps=4,
        )  # fmt: skip


class Scan(torch.autograd.Function):
    """y and the final state of x, dt, A, B, C, D, dt_bias and the initial state."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dt: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor | None,
        bias: Tensor | None,
        initial: Tensor | None,
        softplus: bool,
    ) -> tuple[Tensor, Tensor]:
        batch, _, heads, dim = x.shape
        inputs = _plain(x, dt, a, b, c, d, bias)
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        make = {"dtype": torch.float32, "device": x.device}
        final = torch.empty(batch, heads, dim, b.shape[3], **make)
        begin = None if initial is None else initial.contiguous()
        total = None
        n_segments = _segments(x, b.shape[3])[2]
        if n_segments == 1:
            _walk(*inputs, softplus, begin, y=y, end=final)
        else:
            states = torch.empty(batch, n_segments, *final.shape[1:], **make)
            total = torch.empty(batch, n_segments, heads, dtype=torch.float64, device=x.device)
            _walk(*inputs, softplus, None, end=states, total=total)
            _join(begin, states, total, final, back=False)
            _walk(*inputs, softplus, states, y=y)
            begin = states
        ctx.save_for_backward(x, dt, a, b, c, d, bias, begin, total)
        ctx.softplus = softplus
        ctx.initial = None if initial is None else initial.dtype
        return y, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        x, dt, a, b, c, d, bias, begin, total = ctx.saved_tensors
        (batch, length, heads, dim), (groups, n_states) = x.shape, b.shape[2:]
        chunk, per_segment, n_segments = _segments(x, b.shape[3])
        inputs = _plain(x, dt, a, b, c, d, bias)
        make = {"dtype": torch.float32, "device": x.device}
        dy, dfinal = unit_stride(dy), dfinal.contiguous()
        starts = torch.empty(batch, n_segments * per_segment, heads, dim, n_states, **make)
        _walk(*inputs, ctx.softplus, begin, starts=starts)

        def back(dend: Tensor | None, dbegin: Tensor | None, *results: Tensor | None) -> None:
            x, dt, a, b, c, d, bias = inputs
            with on_device(x):
                back_kernel[(heads, n_segments, batch)](
                    dy, dend, x, dt, a, b, c, d, bias, starts, *results[:4], dbegin, results[4],
                    length, per_segment, heads // groups,
                    dy.stride(0), dy.stride(1), dy.stride(2),
                    x.stride(0), x.stride(1), x.stride(2),
                    dt.stride(0), dt.stride(1), dt.stride(2),
                    b.stride(0), b.stride(1), b.stride(2),
                    c.stride(0), c.stride(1), c.stride(2),
                    SOFTPLUS=ctx.softplus, HAS_D=d is not None, HAS_BIAS=bias is not None,
                    HAS_END=dend is not None, OUTPUT=results[0] is not None,
                    BEGIN=dbegin is not None, Q=chunk, **_blocks(x, b),
                )  # fmt: skip

        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        ddt = torch.empty(dt.shape, dtype=dt.dtype, device=x.device)
        db = torch.empty(batch, length, heads, n_states, dtype=b.dtype, device=x.device)
        dc = torch.empty(batch, length, heads, n_states, dtype=c.dtype, device=x.device)
        partial = torch.empty(batch * n_segments, 3 * heads, **make)
        dinitial = None
        if ctx.initial is not None or n_segments > 1:
            dinitial = torch.empty(
                batch, heads, dim, n_states, dtype=ctx.initial or torch.float32, device=x.device
            )
        if n_segments == 1:
            back(dfinal, dinitial, dx, ddt, db, dc, partial)
        else:
            dstates = torch.empty(batch, n_segments, heads, dim, n_states, **make)
            back(None, dstates, None, None, None, None, None)
            _join(dfinal, dstates, total, dinitial, back=True)
            back(dstates, None, dx, ddt, db, dc, partial)
        with on_device(x):
            sums = column_sum(partial, torch.float32).view(3, heads)
        return (
            dx,
            ddt,
            sums[0].to(a.dtype),
            _over_heads(db, groups),
            _over_heads(dc, groups),
            None if d is None else sums[1].to(d.dtype),
            None if bias is None else sums[2].to(bias.dtype),
            None if ctx.initial is None else dinitial,
            None,
        )


def _plain(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None, bias: Tensor | None
) -> Plain:
    """The inputs with the strides that the kernels expect, copied only if they must be."""
    return (
        unit_stride(x),
        dt,
        a.contiguous(),
        unit_stride(b),
        unit_stride(c),
        None if d is None else d.contiguous(),
        None if bias is None else bias.contiguous(),
    )


def _over_heads(g: Tensor, groups: int) -> Tensor:
    """The sum over the heads of each group."""
    if groups == g.shape[2]:
        return g
    return g.unflatten(2, (groups, -1)).sum(3, dtype=torch.float32).to(g.dtype)
