"""Add weighted updates to the chosen tokens; the others pass through unchanged.

    y_b = x_b,    y_b[index_b[j]] += weight_b[j] update_b[j]

The inverse of ``token_router``: mixture of depths' equation 1 (Raposo et al. 2024, arXiv
2404.02258) with the router's weight, and each step of mixture of recursions (Bae et al. 2025, arXiv
2507.10524, section 2.2). With g_j = dy_b[index_b[j]], the gradients are

    dx = dy,    dupdate_b[j] = weight_b[j] g_j,    dweight_b[j] = sum over D of update_b[j] g_j.

Arithmetic is in FP32.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import applied, once_differentiable
from kernels.core.dispatch import run
from kernels.core.launch import launcher
from kernels.core.operator import (
    Case,
    Cost,
    Implementation,
    Inputs,
    Mistake,
    Operator,
    Work,
    accumulator,
    alike,
    blank,
    cdiv,
    random_tensor,
    same_device,
    tensor_bytes,
    unit_stride,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import missing, no_fp64, on_device, power_of_two, tl, triton
from kernels.core.tuning import Tile, Tunable, size_class
from kernels.token_router import OP as TOKEN_ROUTER
from kernels.token_router import pull, row_tiles, shuffled_scores


def token_scatter(
    x_BSD: Tensor,
    update_BKD: Tensor,
    weight_BK: Tensor,
    index_BK: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """Return the updated tokens [B, S, D] in x's dtype.

    ``update_BKD`` and ``weight_BK`` may have other floating dtypes; they and ``x_BSD`` get
    gradients. ``index_BK`` int64 holds positions in x, each at most once in a sequence, in any
    order (not checked, since that would wait for the GPU; the kernels skip invalid positions).
    ``impl``: auto, torch or triton. Raises ``Mistake`` if shapes, dtypes or devices do not fit
    together.
    """
    return run(OP, impl, x_BSD, update_BKD, weight_BK, index_BK)


def _check(x: Tensor, update: Tensor, weight: Tensor, index: Tensor) -> None:
    alike("token_scatter", "x update weight", x, update, weight)
    same_device("token_scatter", x, index=index)
    if (
        x.dim() != 3
        or update.dim() != 3
        or update.shape[::2] != x.shape[::2]
        or update.shape[1] > x.shape[1]
    ):
        raise Mistake(
            f"token_scatter: expected x [B, S, D] and update [B, K, D] with K up to S, but got "
            f"{tuple(x.shape)} and {tuple(update.shape)}"
        )
    if weight.shape != update.shape[:2] or index.shape != update.shape[:2]:
        raise Mistake(
            f"token_scatter: weight and index must be [B, K] = {tuple(update.shape[:2])}, but "
            f"are {tuple(weight.shape)} and {tuple(index.shape)}"
        )
    if index.dtype != torch.int64:
        raise Mistake(f"token_scatter: index must be torch.int64, not {index.dtype}")


def reference(x_BSD: Tensor, update_BKD: Tensor, weight_BK: Tensor, index_BK: Tensor) -> Tensor:
    """Compute the definition."""
    wide = accumulator(x_BSD.dtype)
    weighted = weight_BK.to(wide)[..., None] * update_BKD.to(wide)
    index_BKD = index_BK[..., None].expand(update_BKD.shape)
    return x_BSD.to(wide).scatter_add(1, index_BKD, weighted).to(x_BSD.dtype)


@triton.jit
def _token_scatter_slots_kernel(
    index_ptr, slot_ptr, length, chosen, FILL: tl.constexpr, BLOCK: tl.constexpr
):
    """Process one sequence: each position's index among the chosen, -1 if it is not chosen."""
    i_b = tl.program_id(0).to(tl.int64)
    slot_ptr += i_b * length
    index_ptr += i_b * chosen
    o_s, o_k = tl.arange(0, FILL), tl.arange(0, BLOCK)
    for start in range(0, length, FILL):
        tl.store(slot_ptr + start + o_s, tl.full([FILL], -1, tl.int32), mask=start + o_s < length)
    tl.debug_barrier()
    for start in range(0, chosen, BLOCK):
        b_slot = start + o_k
        b_place = tl.load(index_ptr + b_slot, mask=b_slot < chosen, other=-1)
        tl.store(slot_ptr + b_place, b_slot, mask=(b_place >= 0) & (b_place < length))


_launch_slots = launcher(_token_scatter_slots_kernel)


def _slots(index: Tensor, length: int) -> Tensor:
    """Return each position's index [B, length], int32, among its sequence's chosen, or -1."""
    batch, chosen = index.shape
    slot = torch.empty(batch, length, dtype=torch.int32, device=index.device)
    fill, block = min(4096, power_of_two(length)), min(4096, power_of_two(chosen))
    with on_device(index):
        _launch_slots(
            (batch,), index.contiguous(), slot, length, chosen, FILL=fill, BLOCK=block, num_warps=8
        )
    return slot


@triton.jit
def _token_scatter_backward_kernel(
    dy_ptr,
    update_ptr,
    weight_ptr,
    index_ptr,
    dupdate_ptr,
    dweight_ptr,
    n_rows,
    chosen,
    length,
    dy_batch,
    dy_row,
    update_batch,
    update_row,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    o_n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_n = o_n < n_rows
    i_b, i_k = o_n // chosen, o_n % chosen
    b_place = tl.load(index_ptr + o_n, mask=m_n, other=-1)
    m_place = (b_place >= 0) & (b_place < length)
    b_w = tl.load(weight_ptr + o_n, mask=m_n, other=0.0).to(tl.float32)[:, None]
    p_dy = dy_ptr + (i_b * dy_batch + b_place * dy_row)[:, None]
    p_update = update_ptr + (i_b * update_batch + i_k * update_row)[:, None]
    b_sum = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
    for start in range(0, D, BLOCK_D):
        o_d = start + tl.arange(0, BLOCK_D)
        m = m_n[:, None] & (o_d < D)[None, :]
        b_dy = tl.load(p_dy + o_d[None, :], mask=m & m_place[:, None], other=0.0).to(tl.float32)
        b_update = tl.load(p_update + o_d[None, :], mask=m, other=0.0).to(tl.float32)
        b_sum += b_update * b_dy
        tl.store(dupdate_ptr + o_n[:, None] * D + o_d[None, :], b_w * b_dy, mask=m)
    tl.store(dweight_ptr + o_n, tl.sum(b_sum, axis=1), mask=m_n)


_launch_backward = launcher(_token_scatter_backward_kernel)


def _backward_tiles(device: int, dim: int, *_: Any) -> list[Tile]:
    """Return rows, columns and warps of each tile: each program walks along its rows."""
    return row_tiles(device, dim)


_BACKWARD = Tunable("token_scatter.backward", (_token_scatter_backward_kernel,), _backward_tiles)


@replayed
def _backward(dy: Tensor, update: Tensor, weight: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    update, dy = unit_stride(update), unit_stride(dy)
    batch, chosen, dim = update.shape
    dupdate = blank(update)
    dweight = blank(weight)
    key = (dy.get_device(), dim, dy.dtype, update.dtype, size_class(batch * chosen))
    rows, block, warps = _BACKWARD.tile(key, _backward, dy, update, weight, index)
    with on_device(dy):
        _launch_backward(
            (cdiv(batch * chosen, rows),),
            dy,
            update,
            weight.contiguous(),
            index.contiguous(),
            dupdate,
            dweight,
            batch * chosen,
            chosen,
            dy.shape[1],
            *dy.stride()[:2],
            *update.stride()[:2],
            D=dim,
            ROWS=rows,
            BLOCK_D=block,
            num_warps=warps,
        )
    return dupdate, dweight


@replayed
def _forward(x: Tensor, update: Tensor, weight: Tensor, index: Tensor) -> Tensor:
    return pull(update, _slots(index, x.shape[1]), weight, x)


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Tensor, weight: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(update, weight, index)
        return _forward(x, update, weight, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return dy, *_backward(dy, *ctx.saved_tensors), None


def _triton(x: Tensor, update: Tensor, weight: Tensor, index: Tensor) -> Tensor:
    return applied(_Scatter, x, update, weight, index)


def _refuses(x: Tensor, update: Tensor, weight: Tensor, index: Tensor) -> str | None:
    if not update.numel():
        return "does not support empty tensors"
    return no_fp64(x) or no_fp64(update) or no_fp64(weight)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    batch, length, dim, k = (case.sizes[n] for n in ("batch", "length", "dim", "k"))
    index = shuffled_scores(batch, length, seed + 3, device).argsort(-1)[:, :k]
    make = {"device": device, "dtype": dtype}
    weight = torch.float32 if case.sizes.get("wide") else dtype
    return {
        "x_BSD": random_tensor(batch, length, dim, seed=seed, **make),
        "update_BKD": random_tensor(batch, k, dim, seed=seed + 1, **make),
        "weight_BK": random_tensor(batch, k, device=device, dtype=weight, seed=seed + 2),
        "index_BK": index.contiguous(),
    }


def _cost(x_BSD: Tensor, update_BKD: Tensor, weight_BK: Tensor, index_BK: Tensor) -> Cost:
    x, update = tensor_bytes(x_BSD), tensor_bytes(update_BKD)
    small = tensor_bytes(weight_BK, index_BK)
    rows = update_BKD.numel() * x_BSD.element_size()  # dy at the chosen positions
    return Cost(
        Work(2 * x + update + small, 2 * update_BKD.numel()),
        Work(2 * update + rows + small + tensor_bytes(weight_BK), 3 * update_BKD.numel()),
    )


def _sizes(random: Random) -> dict[str, Any]:
    # Each weight's gradient is a sum that may cancel: with few terms, all may be noise by chance.
    batch, length = random.randint(1, 3), random.randint(30, 90)
    return {
        "batch": batch,
        "length": length,
        "dim": random.randint(1, 70),
        "k": random.choice((length, random.randint(30, length))),
        "wide": random.random() < 0.3,
    }


OP = Operator(
    name="token_scatter",
    function=token_scatter,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(reference),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=TOKEN_ROUTER.huge,
    gradients=("x_BSD", "update_BKD", "weight_BK"),
    cases=TOKEN_ROUTER.cases,
)
