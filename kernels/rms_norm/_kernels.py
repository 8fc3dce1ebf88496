"""Triton kernels of RMS normalisation, forward and backward, with and without a residual."""

from __future__ import annotations

from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def _load_sum(x_ptr, residual_ptr, o, m, HAS_RESIDUAL: tl.constexpr, POLICY: tl.constexpr):
    b_x = tl.load(x_ptr + o, mask=m, other=0.0, eviction_policy=POLICY).to(tl.float32)
    if HAS_RESIDUAL:
        b_x += tl.load(residual_ptr + o, mask=m, other=0.0, eviction_policy=POLICY).to(tl.float32)
    return b_x


@triton.jit
def rms_norm_forward_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    sum_ptr,
    r_ptr,
    n_rows,
    x_stride,
    residual_stride,
    D: tl.constexpr,
    EPS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # A row of one block stays in registers. Rows of more blocks are read twice, the second time
    # from a cache.
    o_n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_n = o_n < n_rows
    x_ptr += o_n[:, None] * x_stride
    if HAS_RESIDUAL:
        residual_ptr += o_n[:, None] * residual_stride
        sum_ptr += o_n[:, None] * D
    y_ptr += o_n[:, None] * D
    o_d = tl.arange(0, BLOCK_D)[None, :]
    if D <= BLOCK_D:
        m = m_n[:, None] & (o_d < D)
        b_x = _load_sum(x_ptr, residual_ptr, o_d, m, HAS_RESIDUAL, "")
        if HAS_WEIGHT:  # before the sum, so that both arrive at the same time
            b_w = tl.load(weight_ptr + o_d, mask=o_d < D, other=0.0)
        if HAS_RESIDUAL:
            tl.store(sum_ptr + o_d, b_x, mask=m)
        b_r = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / D + EPS)
        b_y = b_x * b_r[:, None]
        if HAS_WEIGHT:
            b_y *= b_w.to(tl.float32)
        tl.store(y_ptr + o_d, b_y, mask=m)
    else:
        b_squares = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
        for start in tl.range(0, D, BLOCK_D):
            o = start + o_d
            m = m_n[:, None] & (o < D)
            b_x = _load_sum(x_ptr, residual_ptr, o, m, HAS_RESIDUAL, "evict_last")
            b_squares += b_x * b_x
        b_r = tl.rsqrt(tl.sum(b_squares, axis=1) / D + EPS)
        for start in tl.range(0, D, BLOCK_D):
            o = start + o_d
            m = m_n[:, None] & (o < D)
            b_x = _load_sum(x_ptr, residual_ptr, o, m, HAS_RESIDUAL, "evict_first")
            if HAS_RESIDUAL:
                tl.store(sum_ptr + o, b_x, mask=m)
            b_y = b_x * b_r[:, None]
            if HAS_WEIGHT:
                b_y *= tl.load(weight_ptr + o, mask=o < D, other=0.0).to(tl.float32)
            tl.store(y_ptr + o, b_y, mask=m)
    if KEEP:
        tl.store(r_ptr + o_n, b_r, mask=m_n)


launch_forward = launcher(rms_norm_forward_kernel)


@triton.jit
def rms_norm_backward_kernel(
    dy_ptr,
    dsum_ptr,
    x_ptr,
    weight_ptr,
    r_ptr,
    dx_ptr,
    cast_dx_ptr,
    partial_ptr,
    n_rows,
    dy_stride,
    dsum_stride,
    x_stride,
    D: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_CAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Each program walks over rows with the stride of the grid and keeps its partial dweight in
    # registers, so that it is written once per program and not once per row.
    i_p = tl.program_id(0)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    if HAS_WEIGHT:
        b_w = tl.load(weight_ptr + o_d, mask=m_d, other=0.0).to(tl.float32)[None, :]
    b_dw = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
    for start in tl.range(i_p * ROWS, n_rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        o_n = start + tl.arange(0, ROWS).to(tl.int64)
        m_n = o_n < n_rows
        m = m_n[:, None] & m_d[None, :]
        b_x = tl.load(x_ptr + o_n[:, None] * x_stride + o_d[None, :], mask=m, other=0.0)
        b_dy = tl.load(dy_ptr + o_n[:, None] * dy_stride + o_d[None, :], mask=m, other=0.0)
        b_r = tl.load(r_ptr + o_n, mask=m_n, other=0.0)[:, None]
        b_n = b_x.to(tl.float32) * b_r
        b_g = b_dy.to(tl.float32)
        if HAS_WEIGHT:
            b_dw += b_g * b_n
            b_g *= b_w
        b_mean = tl.sum(b_g * b_n, axis=1)[:, None] / D
        b_dx = (b_g - b_n * b_mean) * b_r
        if HAS_RESIDUAL:
            p_dsum = dsum_ptr + o_n[:, None] * dsum_stride + o_d[None, :]
            b_dx += tl.load(p_dsum, mask=m, other=0.0).to(tl.float32)
        tl.store(dx_ptr + o_n[:, None] * D + o_d[None, :], b_dx, mask=m)
        if HAS_CAST:
            tl.store(cast_dx_ptr + o_n[:, None] * D + o_d[None, :], b_dx, mask=m)
    if HAS_WEIGHT:
        tl.store(partial_ptr + i_p.to(tl.int64) * D + o_d, tl.sum(b_dw, axis=0), mask=m_d)


launch_backward = launcher(rms_norm_backward_kernel)
