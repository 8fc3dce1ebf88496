"""Launches of the scan's kernels, and its autograd function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import absent_as_none, once_differentiable
from kernels.core.column_sum import column_sums
from kernels.core.operator import blank, cdiv, unit_stride
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    INTERPRETED,
    LARGE_BYTES,
    on_device,
    power_of_two,
    shared_bytes,
    sm_count,
)
from kernels.core.tuning import Key, Tile, Tunable
from kernels.ssd_scan._division import Cut, cut_of, tile
from kernels.ssd_scan._gradient_kernels import (
    launch_head_gradients,
    launch_outputs_gradient,
    launch_states_gradient,
    ssd_scan_head_gradients_kernel,
    ssd_scan_outputs_gradient_kernel,
    ssd_scan_states_gradient_kernel,
)
from kernels.ssd_scan._group_sums import over_heads
from kernels.ssd_scan._kernels import (
    launch_join,
    launch_scan,
    launch_steps,
    launch_walk,
    ssd_scan_kernel,
    ssd_scan_walk_kernel,
)

JOINED = 2 if INTERPRETED else 8  # segments that are read at a time


def _tiles(device: int, dtype: torch.dtype, dim: int, n_states: int, *_: Any) -> list[Tile]:
    """Return warps and stages of each tile.

    On an H200 with P = 64 and N = 128, 8 warps make every kernel 1.1 to 1.9 times slower. But with
    larger tiles, or before Hopper, where operands are in registers, 4 of them spill.
    """
    block_p, block_n = tile(dim, n_states, dtype.itemsize)
    state_bytes = block_p * block_n * dtype.itemsize
    large = shared_bytes(device) >= LARGE_BYTES
    warps = 4 if state_bytes <= (16384 if large else 8192) else 8
    stages = 2 if dtype.itemsize == 2 else 1
    return [(warps, stages), (warps, 3 - stages), (warps, 3), (12 - warps, stages), (12 - warps, 1)]


def _scan_tiles(*key: Any) -> list[Tile]:
    """Return the same tiles, but first with one stage, which saves 5 to 16 % on an H200."""
    tiles = _tiles(*key)
    return list(dict.fromkeys([(tiles[0][0], 1), *tiles]))


_SCAN = Tunable("ssd_scan.outputs", (ssd_scan_kernel,), _scan_tiles, in_place=True)
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


@dataclass
class _Scan:
    """One scan: inputs with the strides that the kernels expect, division and decays.

    Its launches are for the current GPU, which must be that of the inputs.
    """

    x: Tensor
    dt: Tensor
    a: Tensor
    b: Tensor
    c: Tensor
    d: Tensor | None
    bias: Tensor | None
    softplus: bool
    cut: Cut
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
        """Prepare a scan: compute the decays, and copy an input only if needed."""
        batch, length, heads, dim = x.shape
        a = a.contiguous()
        bias = None if bias is None else bias.contiguous()
        groups, n_states = b.shape[2:]
        cut = cut_of(
            batch, length, heads, dim, groups, n_states, x.dtype, chunk, sm_count(x.device.index)
        )
        n_steps = cut.n_chunks * cut.chunk
        step = torch.empty(batch, heads, n_steps, dtype=torch.float32, device=x.device)
        sums = torch.empty_like(step, dtype=torch.float64)
        block = min(16, power_of_two(heads))
        launch_steps((cut.n_chunks, cdiv(heads, block), batch),
            dt, a, bias, step, sums, length, heads, *dt.stride(),
            SOFTPLUS=softplus, HAS_BIAS=bias is not None, Q=cut.chunk, BLOCK_H=block,
            num_warps=4,
        )  # fmt: skip
        d = None if d is None else d.contiguous()
        x, b, c = unit_stride(x), unit_stride(b), unit_stride(c)
        return cls(x, dt, a, b, c, d, bias, softplus, cut, step, sums)

    def key(self, *parts: Any) -> Key:
        """Return the key of the kernels' tiles."""
        x = self.x
        return x.get_device(), x.dtype, x.shape[3], self.b.shape[3], self.cut.chunk, *parts

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Allocate an uninitialised tensor on x's device."""
        return torch.empty(*shape, dtype=dtype, device=self.x.device)

    def new_states(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Allocate ``count`` states of each sample: [B, count, H, P, N]."""
        batch, _, heads, dim = self.x.shape
        return self.new(batch, count, heads, dim, self.b.shape[3], dtype=dtype)

    def new_state(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Allocate one state of each sample: [B, H, P, N]."""
        batch, _, heads, dim = self.x.shape
        return self.new(batch, heads, dim, self.b.shape[3], dtype=dtype)

    def outputs(self, begin: Tensor | None, y: Tensor, end: Tensor | None) -> None:
        """Fill y, and the states at the segments' ends, from the states at their begins."""
        x, b, c, cut = self.x, self.b, self.c, self.cut
        batch, length, heads, _ = x.shape
        warps, stages = _SCAN.tile(self.key(begin is not None), self.outputs, begin, y, end)
        launch_scan((heads, cut.n_segments, batch),
            x, b, c, self.d, self.step, self.sums, begin, y, end,
            length, cut.per_segment, heads // b.shape[2],
            *x.stride()[:3],
            *b.stride()[:3],
            *c.stride()[:3],
            HAS_D=self.d is not None, HAS_BEGIN=begin is not None, END=end is not None,
            num_warps=warps, num_stages=stages, **cut.constants,
        )  # fmt: skip

    def walk(
        self,
        v: Tensor,
        w: Tensor,
        first: Tensor | None,
        backward: bool,
        saved: Tensor | None = None,
        last: Tensor | None = None,
        total: Tensor | None = None,
    ) -> None:
        """Compute the states along all segments, of x and B, or backward their gradients.

        Backward, v is dy and w is C.
        """
        cut, (batch, length, heads, _) = self.cut, self.x.shape
        key = self.key(backward, saved is not None)
        warps, stages = _WALK.tile(key, self.walk, v, w, first, backward, saved, last, total)
        launch_walk((heads, cut.n_segments, batch),
            v, w, self.step, self.sums, first, saved, last, total,
            length, cut.per_segment, heads // w.shape[2],
            *v.stride()[:3],
            *w.stride()[:3],
            HAS_FIRST=first is not None, KEEP=saved is not None, LAST=last is not None,
            TOTAL=total is not None, BACKWARD=backward,
            num_warps=warps, num_stages=stages, **cut.constants,
        )  # fmt: skip

    def begins(
        self, v: Tensor, w: Tensor, first: Tensor | None, last: Tensor, *, backward: bool
    ) -> Tensor:
        """Return the initial state of each segment, from ``first`` on; fill ``last`` at the end."""
        (batch, _, heads, dim), n_segments = self.x.shape, self.cut.n_segments
        states = self.new_states(n_segments)
        total = self.new(batch, n_segments, heads, dtype=torch.float64)
        self.walk(v, w, None, backward=backward, last=states, total=total)
        size = dim * self.b.shape[3]
        block = min(512, power_of_two(size))
        launch_join((cdiv(size, block), heads, batch),
            first, states, total, last, n_segments, heads,
            SIZE=size, HAS_FIRST=first is not None, BACKWARD=backward, BLOCK=block,
            TOGETHER=JOINED, num_warps=4,
        )  # fmt: skip
        return states


def _outputs_gradient(
    scan: _Scan, dy: Tensor, starts: Tensor, db: Tensor, dc: Tensor, together: int
) -> None:
    """Compute dC, and dB's part through the outputs of a chunk."""
    warps, stages = _OUTPUTS_GRADIENT.tile(
        scan.key(together), _outputs_gradient, scan, dy, starts, db, dc, together
    )
    x, b, c = scan.x, scan.b, scan.c
    batch, length, heads, _ = x.shape
    launch_outputs_gradient((scan.cut.n_chunks, heads // together, batch),
        dy, x, b, c, scan.step, scan.sums, starts, db, dc,
        length, heads, heads // b.shape[2],
        *dy.stride()[:3],
        *x.stride()[:3],
        *b.stride()[:3],
        *c.stride()[:3],
        HEADS=together, num_warps=warps, num_stages=stages, **scan.cut.constants,
    )  # fmt: skip


def _states_gradient(scan: _Scan, ends: Tensor, db: Tensor, together: int) -> None:
    """Add to dB its part through the state at the end of a chunk."""
    warps, stages = _STATES_GRADIENT.tile(
        scan.key(together), _states_gradient, scan, ends, db, together
    )
    x = scan.x
    batch, length, heads, _ = x.shape
    launch_states_gradient((scan.cut.n_chunks, heads // together, batch),
        x, scan.step, scan.sums, ends, db, length, heads,
        *x.stride()[:3],
        HEADS=together, num_warps=warps, num_stages=stages, **scan.cut.constants,
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
    """Compute the gradients that heads do not share: dx, ddt, and partial dA, dD and dbias."""
    warps, stages = _HEAD_GRADIENTS.tile(
        scan.key(), _head_gradients, scan, dy, dt, starts, ends, dx, ddt, partial
    )
    x, b, c = scan.x, scan.b, scan.c
    batch, length, heads, _ = x.shape
    launch_head_gradients((scan.cut.n_chunks, heads, batch),
        dy, x, dt, scan.a, b, c, scan.d, scan.bias, scan.step, scan.sums, starts, ends,
        dx, ddt, partial,
        length, heads // b.shape[2],
        *dy.stride()[:3],
        *x.stride()[:3],
        *dt.stride()[:3],
        *b.stride()[:3],
        *c.stride()[:3],
        SOFTPLUS=scan.softplus, HAS_D=scan.d is not None, HAS_BIAS=scan.bias is not None,
        num_warps=warps, num_stages=stages, **scan.cut.constants,
    )  # fmt: skip


@replayed
def _forward(
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
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return y, the final state, and the initial states of segments."""
    with on_device(x):
        scan = _Scan.of(x, dt, a, b, c, d, bias, softplus, chunk)
        y = blank(x)
        final = scan.new_state()
        begin = None if initial is None else initial.contiguous()
        if scan.cut.n_segments == 1:
            scan.outputs(begin, y, final)
        else:
            begin = scan.begins(scan.x, scan.b, begin, final, backward=False)
            scan.outputs(begin, y, None)
    return y, final, begin


@replayed
def _backward(
    dy: Tensor | None,
    dfinal: Tensor | None,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    bias: Tensor | None,
    begin: Tensor | None,
    softplus: bool,
    chunk: int | None,
    initial: torch.dtype | None,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs; ``initial``: the initial state's dtype, or None."""
    (batch, length, heads, _), (groups, n_states) = x.shape, b.shape[2:]
    with on_device(x):
        scan = _Scan.of(x, dt, a, b, c, d, bias, softplus, chunk)
        n_chunks, cut = scan.cut.n_chunks, scan.cut
        dy = torch.zeros_like(x) if dy is None else unit_stride(dy)
        dfinal = None if dfinal is None else dfinal.contiguous()
        # The products that use these round them to x's dtype in any case.
        starts, ends = scan.new_states(n_chunks, x.dtype), scan.new_states(n_chunks, x.dtype)
        scan.walk(scan.x, scan.b, begin, backward=False, saved=starts)
        dinitial = None
        if initial is not None or cut.n_segments > 1:
            dinitial = scan.new_state(initial or torch.float32)
        if cut.n_segments == 1:
            scan.walk(dy, scan.c, dfinal, backward=True, saved=ends, last=dinitial)
        else:
            assert dinitial is not None
            dend = scan.begins(dy, scan.c, dfinal, dinitial, backward=True)
            scan.walk(dy, scan.c, dend, backward=True, saved=ends)
        dx, ddt, da = blank(x), blank(dt), blank(a)
        dd = None if d is None else blank(d)
        dbias = None if bias is None else blank(bias)
        parts = heads // cut.together
        db = scan.new(batch, length, parts, n_states, dtype=x.dtype)
        dc = torch.empty_like(db)
        partial = scan.new(batch * n_chunks, 3 * heads)
        _outputs_gradient(scan, dy, starts, db, dc, cut.together)
        _states_gradient(scan, ends, db, cut.together)
        _head_gradients(scan, dy, dt, starts, ends, dx, ddt, partial)
        column_sums(partial, da, dd, dbias, ends=(heads, 2 * heads))
        db, dc = over_heads(db, dc, groups, b.dtype)
    return dx, ddt, da, db, dc, dd, dbias, None if initial is None else dinitial


class Scan(torch.autograd.Function):
    """Autograd function: y and the final state of x, dt, A, B, C, D, dt_bias and initial state."""

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
        y, final, begin = _forward(x, dt, a, b, c, d, bias, initial, softplus, chunk)
        ctx.save_for_backward(x, dt, a, b, c, d, bias, begin)
        ctx.options = softplus, chunk, None if initial is None else initial.dtype
        absent_as_none(ctx)
        return y, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dfinal: Tensor | None) -> tuple[Tensor | None, ...]:
        return *_backward(dy, dfinal, *ctx.saved_tensors, *ctx.options), None, None
