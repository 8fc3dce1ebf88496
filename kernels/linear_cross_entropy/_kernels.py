"""Triton kernels of the loss: a chunk's losses and gradients by token, their sum, and factors.

Shapes: N tokens, V words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.core.launch import launcher
from kernels.core.operator import cdiv
from kernels.core.triton_helpers import power_of_two, sm_count, tl, triton
from kernels.core.tuning import Tile, Tunable


@triton.jit
def _load_logits(logits_ptr, o_v, V: tl.constexpr, WIDTH: tl.constexpr, LAST: tl.constexpr):
    """Load logits in FP32; after the last word, which is in the ``LAST`` block, minus infinity."""
    b_x = tl.load(logits_ptr + o_v, mask=o_v < WIDTH, other=float("-inf")).to(tl.float32)
    if LAST and WIDTH > V:
        b_x = tl.where(o_v < V, b_x, float("-inf"))
    return b_x


@triton.jit
def linear_cross_entropy_row_kernel(
    logits_ptr,
    target_ptr,
    loss_ptr,
    share_ptr,
    stride,
    ignore_index,
    V: tl.constexpr,
    WIDTH: tl.constexpr,
    GRADIENT: tl.constexpr,
    HAS_SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Process one token: store its loss, and replace its logits by their gradient.

    The gradient is that of the token's loss, with ``HAS_SHARE`` multiplied by the token's weight.
    Rows have ``WIDTH`` numbers. What is after the V logits does not count, and its gradient is 0:
    reading and writing it keeps the accesses wide, which a mask that ends at an odd V does not.
    """
    i_n = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + i_n)
    logits_ptr += i_n * stride
    counts = target != ignore_index
    inside = (target >= 0) & (target < V)
    o_v = tl.arange(0, BLOCK)
    # Finite, so that logits of minus infinity add nothing, also where a block has no others.
    top = tl.full([], -3.4028234663852886e38, dtype=tl.float32)
    total = tl.zeros([], dtype=tl.float32)
    for start in tl.static_range(0, V, BLOCK):
        b_x = _load_logits(logits_ptr, start + o_v, V, WIDTH, start + BLOCK > V)
        higher = tl.maximum(top, tl.max(b_x, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(b_x - higher), axis=0)
        top = higher
    # Where tokens count, a target out of range makes loss and gradients NaN.
    # ``top`` is not added to it: FP32 would round a small loss of large logits to 0.
    log_total = tl.where(inside, tl.log(total), float("nan"))
    hit = tl.load(logits_ptr + tl.where(inside, target, 0)).to(tl.float32)
    tl.store(loss_ptr + i_n, tl.where(counts, log_total + (top - hit), 0.0))
    if GRADIENT:
        # All threads have read the target's logit before any logit is overwritten.
        tl.debug_barrier()
        share = tl.load(share_ptr) if HAS_SHARE else 1.0
        for start in tl.static_range(0, V, BLOCK):
            if V > BLOCK:
                b_x = _load_logits(logits_ptr, start + o_v, V, WIDTH, start + BLOCK > V)
            b_d = tl.exp(b_x - top - log_total) - tl.where(start + o_v == target, 1.0, 0.0)
            b_d = tl.where(counts, b_d * share, 0.0)
            tl.store(logits_ptr + start + o_v, b_d, mask=start + o_v < WIDTH)


_launch_row = launcher(linear_cross_entropy_row_kernel)


def _row_tiles(device: int, n_words: int, dtype: torch.dtype, gradient: bool) -> list[Tile]:
    """Return words per step and warps of each tile; the first measured on an H200.

    Several short steps at a time keep the memory busier than one step that holds a complete row in
    registers.
    """
    most = power_of_two(n_words)
    block = min(16384, most)
    warps = max(4, min(8, block // 2048))
    if gradient and most > 16384:
        block, warps = (16384, 16) if most <= 65536 else (32768, 32)
    tiles: list[Tile] = [(block, warps)]
    for other in (4096, 8192, 16384, 32768):
        if other < most:
            tiles += [(other, max(4, min(32, other // 1024)))]
    return list(dict.fromkeys(tiles))


_ROWS = Tunable(
    "linear_cross_entropy.rows", (linear_cross_entropy_row_kernel,), _row_tiles, in_place=True
)


def rows_by_triton(
    logits: Tensor,
    n_words: int,
    target_N: Tensor,
    losses_N: Tensor,
    share: Tensor | None,
    ignore_index: int,
    gradient: bool,
) -> None:
    """Write losses of logits [N, W] to ``losses_N``; ``gradient``: replace logits by theirs.

    The first ``n_words`` of a row count. ``share``: a factor of all gradients, in FP32.
    """
    key = (logits.get_device(), n_words, logits.dtype, gradient)
    arguments = (logits, n_words, target_N, losses_N, share, ignore_index, gradient)
    block, warps = _ROWS.tile(key, rows_by_triton, *arguments)
    _launch_row(
        (logits.shape[0],),
        logits,
        target_N,
        losses_N,
        share,
        logits.stride(0),
        ignore_index,
        V=n_words,
        WIDTH=logits.shape[1],
        GRADIENT=gradient,
        HAS_SHARE=share is not None,
        BLOCK=block,
        num_warps=warps,
    )


@triton.jit
def linear_cross_entropy_share_kernel(
    target_ptr, share_ptr, n_rows, ignore_index, BLOCK: tl.constexpr
):
    """Store 1 over the number of tokens that count, in one program; infinity if none does."""
    o_n = tl.arange(0, BLOCK)
    b_count = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, tl.cast(n_rows, tl.int64), BLOCK):
        m = start + o_n < n_rows
        b_target = tl.load(target_ptr + start + o_n, mask=m, other=0)
        b_count += ((b_target != ignore_index) & m).to(tl.int32)
    tl.store(share_ptr, 1.0 / tl.sum(b_count, axis=0).to(tl.float32))


_launch_share = launcher(linear_cross_entropy_share_kernel)


def share_by_triton(target_N: Tensor, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """Return the weight of a token in the mean of all that count; infinity if none does."""
    share = torch.empty((), dtype=dtype, device=target_N.device)
    n_rows = target_N.shape[0]
    block = min(4096, power_of_two(n_rows))
    _launch_share((1,), target_N, share, n_rows, ignore_index, BLOCK=block, num_warps=8)
    return share


@triton.jit
def linear_cross_entropy_total_kernel(
    losses_ptr, share_ptr, loss_ptr, n_rows, HAS_SHARE: tl.constexpr, BLOCK: tl.constexpr
):
    """Sum all losses in one program, and multiply the sum by the weight of a token."""
    o_n = tl.arange(0, BLOCK)
    b_sum = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, tl.cast(n_rows, tl.int64), BLOCK):
        b_sum += tl.load(losses_ptr + start + o_n, mask=start + o_n < n_rows, other=0.0)
    loss = tl.sum(b_sum, axis=0)
    if HAS_SHARE:
        loss *= tl.load(share_ptr)
    tl.store(loss_ptr, loss)


_launch_total = launcher(linear_cross_entropy_total_kernel)


def total_by_triton(losses_N: Tensor, share: Tensor | None) -> Tensor:
    """Return the sum of losses, times ``share`` if given."""
    loss = torch.empty((), dtype=losses_N.dtype, device=losses_N.device)
    n_rows = losses_N.shape[0]
    block = min(4096, power_of_two(n_rows))
    _launch_total(
        (1,), losses_N, share, loss, n_rows, HAS_SHARE=share is not None, BLOCK=block, num_warps=8
    )
    return loss


@triton.jit
def linear_cross_entropy_scale_kernel(
    x_ptr, factor_ptr, share_ptr, n, HAS_SHARE: tl.constexpr, BLOCK: tl.constexpr
):
    """Multiply gradients in place by the gradient of the loss, unless that is 1."""
    factor = tl.load(factor_ptr).to(tl.float32)
    if HAS_SHARE:
        share = tl.load(share_ptr)
        factor *= tl.where(share < float("inf"), share, 0.0)
    if factor != 1.0:
        step = tl.num_programs(0).to(tl.int64) * BLOCK
        for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, step):
            o = start + tl.arange(0, BLOCK)
            b_x = tl.load(x_ptr + o, mask=o < n, other=0.0).to(tl.float32)
            tl.store(x_ptr + o, b_x * factor, mask=o < n)


_launch_scale = launcher(linear_cross_entropy_scale_kernel)


def scale_by_triton(x: Tensor, factor: Tensor, share: Tensor | None) -> Tensor:
    """Multiply the contiguous ``x`` in place by scalars in FP32, and return it.

    If the factor is 1, as after ``loss.backward()``, no gradient is read or written.
    """
    block = 4096
    programs = min(cdiv(x.numel(), block), 8 * sm_count(x.device.index))
    _launch_scale(
        (programs,), x, factor, share, x.numel(),
        HAS_SHARE=share is not None, BLOCK=block, num_warps=8,
    )  # fmt: skip
    return x
