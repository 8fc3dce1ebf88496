"""Launches of the scan's kernels, and its autograd function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels._autograd import once_differentiable
from kernels._column_sum import column_sum
from kernels._operator import blank, cdiv, unit_stride
from kernels._triton import (
    INTERPRETED,
    LARGE_BYTES,
    on_device,
    power_of_two,
    shared_bytes,
    sm_count,
)
from kernels._tuning import Key, Tile, Tunable
from kernels.ssd_scan._gradient_kernels import (
    launch_head_gradients,
    launch_outputs_gradient,
    launch_states_gradient,
    ssd_scan_head_gradients_kernel,
    ssd_scan_outputs_gradient_kernel,
    ssd_scan_states_gradient_kernel,
)
from kernels.ssd_scan._kernels import (
    launch_join,
    launch_scan,
    launch_steps,
    launch_walk,
    ssd_scan_kernel,
    ssd_scan_walk_kernel,
)

CHUNK = 64  # unless another is asked for; results do not depend on it


def chunks(x: Tensor, n_states: int) -> tuple[int, int]:
    """The least and the largest chunk of the kernels."""
    # Products of FP32 are not for the matrix units: large ones take more registers than there are.
    large = x.dtype == torch.float32 and x.shape[3] * n_states > 1024
    return _least(x.element_size()), 16 if large else CHUNK


def _segments(x: Tensor, n_states: int, asked: int | None) -> tuple[int, int, int]:
    """Chunk, chunks of a segment, and segments: one if the heads occupy all multiprocessors."""
    batch, length, heads, _ = x.shape
    least, most = chunks(x, n_states)
    chunk = max(least, min(asked or most, power_of_two(length)))
    n_chunks = cdiv(length, chunk)
    # Cutting costs a walk more. Eight programs a multiprocessor, measured, then make up for it.
    idle = batch * heads < sm_count(x.device.index)
    wanted = cdiv(8 * sm_count(x.device.index), batch * heads) if idle else 1
    per_segment = cdiv(n_chunks, min(wanted, n_chunks))
    return chunk, per_segment, cdiv(n_chunks, per_segment)


def held_bytes(
    batch: int, length: int, heads: int, dim: int, groups: int, n_states: int, dtype: torch.dtype
) -> tuple[int, int]:
    """What one scan keeps for its backward pass beside its inputs, and what that holds beside.

    The states that segments begin with; the states at all chunks and their gradients, and the
    gradients of B and C before their sum over heads. How a scan is cut depends on the GPU.
    """
    x = torch.empty(batch, length, heads, dim, dtype=dtype, device="meta")
    _, per_segment, n_segments = _segments(x, n_states, None)
    n_chunks, state = per_segment * n_segments, batch * heads * dim * n_states
    parts = heads // _heads_together(heads, groups, batch * n_chunks * heads, None)
    kept = 4 * state * n_segments if n_segments > 1 else 0
    numbers = 2 * state * n_chunks + 2 * batch * length * parts * n_states
    return kept, numbers * dtype.itemsize


def _least(element_size: int) -> int:
    """The least size of a tile.

    Triton 3.6 makes wrong products of 16-bit tiles narrower than 64 on Hopper, or reads out of
    bounds (seen with 64 x 16 and 64 x 32; triton-lang/triton#11366).
    """
    return 16 if element_size == 4 or INTERPRETED else 64


def tile(dim: int, n_states: int, element_size: int) -> tuple[int, int]:
    """The tile that holds one head's state."""
    least = _least(element_size)
    return max(least, power_of_two(dim)), max(least, power_of_two(n_states))


def _tiles(device: int, dtype: torch.dtype, dim: int, n_states: int, *_: Any) -> list[Tile]:
    """Warps and stages.

    On an H200 with P = 64 and N = 128, 8 warps make every kernel 1.1 to 1.9 times slower. But with
    larger tiles, or before Hopper, where operands stand in registers, 4 of them spill.
    """
    block_p, block_n = tile(dim, n_states, dtype.itemsize)
    state_bytes = block_p * block_n * dtype.itemsize
    large = shared_bytes(device) >= LARGE_BYTES
    warps = 4 if state_bytes <= (16384 if large else 8192) else 8
    stages = 2 if dtype.itemsize == 2 else 1
    return [(warps, stages), (warps, 3 - stages), (warps, 3), (12 - warps, stages), (12 - warps, 1)]


_SCAN = Tunable("ssd_scan.outputs", (ssd_scan_kernel,), _tiles, in_place=True)
_WALK = Tunable("ssd_scan.states", (ssd_scan_walk_kernel,), _tiles, in_place=True)
_OUTPUTS_GRADIENT = Tunable(
    "ssd_scan.outputs_gradient", (ssd_scan_outputs_gradient_kernel,), _tiles, in_place=True
)
_STATES_GRADIENT = Tunable(
    "ssd_scan.states_gradient", (ssd_scan_states_gradient_kernel,), _tiles, in_place=True
)
_HEAD_GRADIENTS = Tunable(
    "ssd_scan.head_gradients", (ssd_scan_head_gradients_kernel,), _tiles, in_place=True
)


def _blocks(x: Tensor, b: Tensor, chunk: int, tiled: Tile) -> dict[str, Any]:
    """Constants of a launch that follow from the sizes, and its tile."""
    dim, n_states = x.shape[3], b.shape[3]
    block_p, block_n = tile(dim, n_states, x.element_size())
    warps, stages = tiled
    return {
        "P": dim,
        "N": n_states,
        "PRECISE": x.dtype == torch.float32,
        "Q": chunk,
        "BLOCK_P": block_p,
        "BLOCK_N": block_n,
        "num_warps": warps,
        "num_stages": stages,
    }


@dataclass(frozen=True)
class _Scan:
    """One scan's inputs with the strides that the kernels expect, its cutting and its decays."""

    x: Tensor
    dt: Tensor
    a: Tensor
    b: Tensor
    c: Tensor
    d: Tensor | None
    bias: Tensor | None
    softplus: bool
    chunk: int
    per_segment: int  # chunks
    n_segments: int
    step: Tensor  # [B, H, chunks Q] FP32
    sums: Tensor  # the same in FP64

    @classmethod
    def of(
        cls,
        x: Tensor,
        dt: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor | None,
        bias: Tensor | None,
        softplus: bool,
        chunk: int | None,
    ) -> _Scan:
        """Copies an input only if it must, and prepares the decays."""
        batch, length, heads, _ = x.shape
        a = a.contiguous()
        bias = None if bias is None else bias.contiguous()
        chunk, per_segment, n_segments = _segments(x, b.shape[3], chunk)
        n_chunks = per_segment * n_segments
        step = torch.empty(batch, heads, n_chunks * chunk, dtype=torch.float32, device=x.device)
        sums = torch.empty_like(step, dtype=torch.float64)
        block = min(16, power_of_two(heads))
        with on_device(x):
            launch_steps((n_chunks, cdiv(heads, block), batch),
                dt, a, bias, step, sums, length, heads, *dt.stride()[:3],
                SOFTPLUS=softplus, HAS_BIAS=bias is not None, Q=chunk, BLOCK_H=block, num_warps=4,
            )  # fmt: skip
        return cls(
            unit_stride(x),
            dt,
            a,
            unit_stride(b),
            unit_stride(c),
            None if d is None else d.contiguous(),
            bias,
            softplus,
            chunk,
            per_segment,
            n_segments,
            step,
            sums,
        )

    @property
    def n_chunks(self) -> int:
        """Chunks of all segments; the last ones may lie past the end."""
        return self.per_segment * self.n_segments

    def key(self, *others: Any) -> Key:
        """What the kernels' tiles depend on."""
        x = self.x
        return x.get_device(), x.dtype, x.shape[3], self.b.shape[3], self.chunk, *others

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialised tensor beside x."""
        return torch.empty(shape, dtype=dtype, device=self.x.device)

    def new_states(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Room for ``count`` states of each sample: [B, count, H, P, N]."""
        batch, _, heads, dim = self.x.shape
        return self.new(batch, count, heads, dim, self.b.shape[3], dtype=dtype)

    def outputs(self, begin: Tensor | None, y: Tensor, end: Tensor | None) -> None:
        """Fill y, and the states at the segments' ends, from the states at their begins."""
        x, b, c = self.x, self.b, self.c
        batch, length, heads, _ = x.shape
        tiled = _SCAN.tile(self.key(begin is not None), self.outputs, begin, y, end)
        with on_device(x):
            launch_scan((heads, self.n_segments, batch),
                x, b, c, self.d, self.step, self.sums, begin, y, end,
                length, self.per_segment, heads // b.shape[2],
                *x.stride()[:3],
                *b.stride()[:3],
                *c.stride()[:3],
                HAS_D=self.d is not None, HAS_BEGIN=begin is not None, END=end is not None,
                **_blocks(x, b, self.chunk, tiled),
            )  # fmt: skip

    def walk(
        self,
        v: Tensor,
        w: Tensor,
        first: Tensor | None,
        backward: bool,
        kept: Tensor | None = None,
        last: Tensor | None = None,
        total: Tensor | None = None,
    ) -> None:
        """The states along all segments, of x and B, or backward their gradients, of dy and C."""
        batch, length, heads, _ = self.x.shape
        key = self.key(backward, kept is not None)
        tiled = _WALK.tile(key, self.walk, v, w, first, backward, kept, last, total)
        with on_device(v):
            launch_walk((heads, self.n_segments, batch),
                v, w, self.step, self.sums, first, kept, last, total,
                length, self.per_segment, heads // w.shape[2],
                *v.stride()[:3],
                *w.stride()[:3],
                HAS_FIRST=first is not None, KEEP=kept is not None, LAST=last is not None,
                TOTAL=total is not None, BACKWARD=backward,
                **_blocks(self.x, w, self.chunk, tiled),
            )  # fmt: skip

    def begins(
        self, v: Tensor, w: Tensor, first: Tensor | None, last: Tensor, *, backward: bool
    ) -> Tensor:
        """What each segment begins with, from ``first`` on; fills ``last``, where the last ends."""
        batch, _, heads, _ = self.x.shape
        states = self.new_states(self.n_segments)
        total = self.new(batch, self.n_segments, heads, dtype=torch.float64)
        self.walk(v, w, None, backward=backward, last=states, total=total)
        size = states[0, 0, 0].numel()
        block = min(1024, power_of_two(size))
        with on_device(v):
            launch_join((cdiv(size, block), heads, batch),
                first, states, total, last, self.n_segments, heads,
                SIZE=size, HAS_FIRST=first is not None, BACKWARD=backward, BLOCK=block,
                num_warps=4,
            )  # fmt: skip
        return states


def _heads_together(heads: int, groups: int, programs: int, device: int | None) -> int:
    """Heads whose dB and dC one program adds up: as many as leave enough programs."""
    together = 1
    while (heads // groups) % (2 * together) == 0 and together < 16:
        if programs // (2 * together) < 8 * sm_count(device) and not INTERPRETED:
            break
        together *= 2
    return together


def _outputs_gradient(
    scan: _Scan, dy: Tensor, starts: Tensor, db: Tensor, dc: Tensor, together: int
) -> None:
    """Through the outputs of a chunk: dC, and that part of dB."""
    tiled = _OUTPUTS_GRADIENT.tile(
        scan.key(together), _outputs_gradient, scan, dy, starts, db, dc, together
    )
    x, b, c = scan.x, scan.b, scan.c
    batch, length, heads, _ = x.shape
    launch_outputs_gradient((scan.n_chunks, heads // together, batch),
        dy, x, b, c, scan.step, scan.sums, starts, db, dc,
        length, heads, heads // b.shape[2],
        *dy.stride()[:3],
        *x.stride()[:3],
        *b.stride()[:3],
        *c.stride()[:3],
        HEADS=together, **_blocks(x, b, scan.chunk, tiled),
    )  # fmt: skip


def _states_gradient(scan: _Scan, ends: Tensor, db: Tensor, together: int) -> None:
    """Through the state at the end of a chunk: what that adds to dB."""
    tiled = _STATES_GRADIENT.tile(scan.key(together), _states_gradient, scan, ends, db, together)
    x = scan.x
    batch, length, heads, _ = x.shape
    launch_states_gradient((scan.n_chunks, heads // together, batch),
        x, scan.step, scan.sums, ends, db, length, heads,
        *x.stride()[:3],
        HEADS=together, **_blocks(x, scan.b, scan.chunk, tiled),
    )  # fmt: skip


def _head_gradients(
    scan: _Scan,
    dy: Tensor,
    dt: Tensor,
    starts: Tensor,
    ends: Tensor,
    dx: Tensor,
    ddt: Tensor,
    partial: Tensor,
) -> None:
    """What each head has for itself: dx, ddt, and a chunk's share of dA, dD and the bias's."""
    tiled = _HEAD_GRADIENTS.tile(
        scan.key(), _head_gradients, scan, dy, dt, starts, ends, dx, ddt, partial
    )
    x, b, c = scan.x, scan.b, scan.c
    batch, length, heads, _ = x.shape
    launch_head_gradients((scan.n_chunks, heads, batch),
        dy, x, dt, scan.a, b, c, scan.d, scan.bias, scan.step, scan.sums, starts, ends,
        dx, ddt, partial,
        length, heads // b.shape[2],
        *dy.stride()[:3],
        *x.stride()[:3],
        *dt.stride()[:3],
        *b.stride()[:3],
        *c.stride()[:3],
        SOFTPLUS=scan.softplus, HAS_D=scan.d is not None, HAS_BIAS=scan.bias is not None,
        **_blocks(x, b, scan.chunk, tiled),
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
        chunk: int | None,
    ) -> tuple[Tensor, Tensor]:
        scan = _Scan.of(x, dt, a, b, c, d, bias, softplus, chunk)
        y = blank(x)
        final = scan.new_states(1).squeeze(1)
        begin = None if initial is None else initial.contiguous()
        if scan.n_segments == 1:
            scan.outputs(begin, y, final)
        else:
            begin = scan.begins(scan.x, scan.b, begin, final, backward=False)
            scan.outputs(begin, y, None)
        ctx.save_for_backward(x, dt, a, b, c, d, bias, begin)
        ctx.softplus, ctx.chunk = softplus, chunk
        ctx.initial = None if initial is None else initial.dtype
        return y, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        x, dt, a, b, c, d, bias, begin = ctx.saved_tensors
        (batch, length, heads, _), (groups, n_states) = x.shape, b.shape[2:]
        scan = _Scan.of(x, dt, a, b, c, d, bias, ctx.softplus, ctx.chunk)
        dy, dfinal = unit_stride(dy), dfinal.contiguous()
        # In the products that take these, they are rounded to x's dtype in any case.
        starts, ends = (scan.new_states(scan.n_chunks, x.dtype) for _ in range(2))
        scan.walk(scan.x, scan.b, begin, backward=False, kept=starts)
        dinitial = None
        if ctx.initial is not None or scan.n_segments > 1:
            dinitial = scan.new_states(1, ctx.initial or torch.float32).squeeze(1)
        if scan.n_segments == 1:
            scan.walk(dy, scan.c, dfinal, backward=True, kept=ends, last=dinitial)
        else:
            assert dinitial is not None
            dend = scan.begins(dy, scan.c, dfinal, dinitial, backward=True)
            scan.walk(dy, scan.c, dend, backward=True, kept=ends)

        dx = blank(x)
        ddt = blank(dt)
        together = _heads_together(heads, groups, batch * scan.n_chunks * heads, x.device.index)
        parts = heads // together
        n_chunks = scan.n_chunks
        db, dc = (scan.new(batch, length, parts, n_states, dtype=x.dtype) for _ in range(2))
        partial = scan.new(batch * n_chunks, 3 * heads)
        with on_device(x):
            _outputs_gradient(scan, dy, starts, db, dc, together)
            _states_gradient(scan, ends, db, together)
            _head_gradients(scan, dy, dt, starts, ends, dx, ddt, partial)
            sums = column_sum(partial, torch.float32).view(3, heads)
        return (
            dx,
            ddt,
            sums[0].to(a.dtype),
            over_heads(db, groups, b.dtype),
            over_heads(dc, groups, c.dtype),
            None if d is None else sums[1].to(d.dtype),
            None if bias is None else sums[2].to(bias.dtype),
            None if ctx.initial is None else dinitial,
            None,
            None,
        )


def over_heads(g: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """The sum of ``g`` [..., H, N] over the heads of each group: [..., G, N] in ``dtype``."""
    if groups == g.shape[-2]:
        return g.to(dtype)
    return g.unflatten(-2, (groups, -1)).sum(-2, dtype=torch.float32).to(dtype)
