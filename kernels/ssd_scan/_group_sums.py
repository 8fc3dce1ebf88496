"""Gradients of B and C, summed over the heads of a group or over parts of them."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.core.launch import launcher
from kernels.core.operator import cdiv
from kernels.core.triton_helpers import power_of_two, tl, triton


@triton.jit
def ssd_scan_group_sums_kernel(
    db_ptr, dc_ptr, b_out_ptr, c_out_ptr, n_rows,
    N: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sum rows [rows, PARTS, N] to [rows, N]: db, or dc in the second half of the programs."""
    if tl.program_id(1) > 0:
        db_ptr, b_out_ptr = dc_ptr, c_out_ptr
    o_r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_n = tl.arange(0, BLOCK_N)
    m = (o_r < n_rows)[:, None] & (o_n < N)[None, :]
    b_sum = tl.zeros([ROWS, BLOCK_N], dtype=tl.float32)
    for part in range(PARTS):
        p_in = db_ptr + (o_r * PARTS + part)[:, None] * N + o_n[None, :]
        b_sum += tl.load(p_in, mask=m, other=0.0).to(tl.float32)
    tl.store(b_out_ptr + o_r[:, None] * N + o_n[None, :], b_sum, mask=m)


_launch_group_sums = launcher(ssd_scan_group_sums_kernel)


def over_heads(db: Tensor, dc: Tensor, groups: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sum both [..., H, N], contiguous, over the heads of each group: [..., G, N].

    Accumulated in FP32; returned unchanged if there is nothing to add.
    """
    *rest, heads, n_states = db.shape
    if heads == groups:
        return db.to(dtype), dc.to(dtype)
    b_out = torch.empty(*rest, groups, n_states, dtype=dtype, device=db.device)
    c_out = torch.empty_like(b_out)
    n_rows, block = b_out.numel() // n_states, power_of_two(n_states)
    rows = max(1, 2048 // block)
    _launch_group_sums((cdiv(n_rows, rows), 2),
        db, dc, b_out, c_out, n_rows,
        N=n_states, PARTS=heads // groups, ROWS=rows, BLOCK_N=block, num_warps=4,
    )  # fmt: skip
    return b_out, c_out
