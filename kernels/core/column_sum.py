"""Sum of a matrix's rows: combines the partial sums that a backward kernel's programs leave."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.core.launch import launcher
from kernels.core.operator import cdiv
from kernels.core.triton_helpers import tl, triton


@triton.jit
def _column_sum_kernel(
    x_ptr, first_ptr, second_ptr, third_ptr, n_rows, n_columns, second_at, third_at,
    HAS_FIRST: tl.constexpr, HAS_SECOND: tl.constexpr, HAS_THIRD: tl.constexpr,
    FP64: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    WIDE: tl.constexpr = tl.float64 if FP64 else tl.float32
    o_c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    m_c = o_c < n_columns
    b_sum = tl.zeros([ROWS, COLUMNS], dtype=WIDE)
    for start in range(0, n_rows, ROWS):
        o_r = start + tl.arange(0, ROWS)
        m = (o_r < n_rows)[:, None] & m_c[None, :]
        p_x = x_ptr + o_r.to(tl.int64)[:, None] * n_columns + o_c[None, :]
        b_sum += tl.load(p_x, mask=m, other=0.0).to(WIDE)
    b_total = tl.sum(b_sum, axis=0)
    if HAS_FIRST:
        tl.store(first_ptr + o_c, b_total, mask=o_c < second_at)
    if HAS_SECOND:
        m_second = (o_c >= second_at) & (o_c < third_at)
        tl.store(second_ptr + (o_c - second_at), b_total, mask=m_second)
    if HAS_THIRD:
        tl.store(third_ptr + (o_c - third_at), b_total, mask=m_c & (o_c >= third_at))


_launch_column_sum = launcher(_column_sum_kernel)


def column_sum(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum the rows of a contiguous matrix [N, D], accumulated in FP32: [D] in ``dtype``.

    For the partial sums of a backward kernel's programs: many columns, few rows.
    """
    out = torch.empty(x.shape[1], dtype=dtype, device=x.device)
    column_sums(x, out)
    return out


def column_sums(
    x: Tensor,
    first: Tensor | None,
    second: Tensor | None = None,
    third: Tensor | None = None,
    *,
    ends: tuple[int, ...] = (),
) -> None:
    """Write the same sums to up to three contiguous tensors, each in its own dtype.

    FP64 is accumulated in FP64, everything else in FP32. ``first`` takes the columns up to
    ``ends[0]``, ``second`` those up to ``ends[1]`` and ``third`` the rest; an omitted end means all
    columns. Columns of a tensor that is None are skipped.
    """
    n_rows, n_columns = x.shape
    second_at, third_at = (*ends, n_columns, n_columns)[:2]
    _launch_column_sum(
        (cdiv(n_columns, 32),), x, first, second, third, n_rows, n_columns, second_at, third_at,
        HAS_FIRST=first is not None, HAS_SECOND=second is not None, HAS_THIRD=third is not None,
        FP64=x.dtype == torch.float64, ROWS=128, COLUMNS=32, num_warps=4,
    )  # fmt: skip
