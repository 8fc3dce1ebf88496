"""The sum of a matrix's rows, as the programs of a backward kernel leave their shares in one."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels._launch import launcher
from kernels._operator import cdiv
from kernels._triton import tl, triton


@triton.jit
def _column_sum_kernel(
    x_ptr, out_ptr, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    o_c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    m_c = o_c < n_columns
    b_sum = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for start in range(0, n_rows, ROWS):
        o_r = start + tl.arange(0, ROWS)
        m = (o_r < n_rows)[:, None] & m_c[None, :]
        p_x = x_ptr + o_r.to(tl.int64)[:, None] * n_columns + o_c[None, :]
        b_sum += tl.load(p_x, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + o_c, tl.sum(b_sum, axis=0), mask=m_c)


_launch_column_sum = launcher(_column_sum_kernel)


def column_sum(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum of the rows of a contiguous matrix [N, D], accumulated in FP32: [D] in ``dtype``.

    For the partial sums that the programs of a backward kernel leave: many columns, few rows.
    """
    n_rows, n_columns = x.shape
    out = torch.empty(n_columns, dtype=dtype, device=x.device)
    grid = (cdiv(n_columns, 32),)
    _launch_column_sum(grid, x, out, n_rows, n_columns, ROWS=128, COLUMNS=32, num_warps=4)
    return out
