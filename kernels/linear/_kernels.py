"""Triton kernel of the product of a few rows with a weight matrix, and of what surrounds it."""

from __future__ import annotations

from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def linear_few_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    norm_ptr,
    residual_ptr,
    y_ptr,
    n_rows,
    n_outputs,
    x_stride,
    residual_stride,
    weight_stride,
    eps,
    K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    o_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_n = o_n < n_outputs
    m_m = o_m < n_rows
    o_s = tl.arange(0, SPLIT)[:, None, None] * BLOCK_K
    o_k = tl.arange(0, BLOCK_K)
    b_y = tl.zeros([SPLIT, BLOCK_N, ROWS], dtype=tl.float32)
    b_up = tl.zeros([SPLIT, BLOCK_N, ROWS], dtype=tl.float32)
    b_squares = tl.zeros([SPLIT, BLOCK_K, ROWS], dtype=tl.float32)
    for i_k in tl.range(0, K, SPLIT * BLOCK_K, num_stages=STAGES):
        o_weight_k = i_k + o_s + o_k[None, None, :]
        p_weight = weight_ptr + o_n[None, :, None] * weight_stride + o_weight_k
        m_weight = m_n[None, :, None] & (o_weight_k < K)
        b_weight = tl.load(p_weight, mask=m_weight, other=0.0)
        o_x_k = i_k + o_s + o_k[None, :, None]
        p_x = x_ptr + o_m[None, None, :] * x_stride + o_x_k
        b_x = tl.load(p_x, mask=m_m[None, None, :] & (o_x_k < K), other=0.0)
        if HAS_NORM:  # its factor for a row comes after the product
            b_wide = b_x.to(tl.float32)
            b_squares += b_wide * b_wide
            b_norm = tl.load(norm_ptr + o_x_k, mask=o_x_k < K, other=0.0).to(tl.float32)
            b_x = (b_wide * b_norm).to(b_weight.dtype)
        b_y = tl.dot(b_weight, b_x, acc=b_y, input_precision=PRECISION)
        if GATED:  # the second half of the weight
            p_up = weight_ptr + (o_n + n_outputs)[None, :, None] * weight_stride + o_weight_k
            b_weight = tl.load(p_up, mask=m_weight, other=0.0)
            b_up = tl.dot(b_weight, b_x, acc=b_up, input_precision=PRECISION)
    b_y = tl.sum(b_y, axis=0)
    if HAS_NORM:
        b_factor = tl.rsqrt(tl.sum(tl.sum(b_squares, axis=0), axis=0) / K + eps)[None, :]
        b_y *= b_factor
    if GATED:
        b_up = tl.sum(b_up, axis=0)
        if HAS_NORM:
            b_up *= b_factor
        b_y *= tl.sigmoid(b_y) * b_up
    if HAS_BIAS:
        b_y += tl.load(bias_ptr + o_n, mask=m_n, other=0.0).to(tl.float32)[:, None]
    m_y = m_n[:, None] & m_m[None, :]
    if HAS_RESIDUAL:
        p_residual = residual_ptr + o_m[None, :] * residual_stride + o_n[:, None]
        b_y += tl.load(p_residual, mask=m_y, other=0.0).to(tl.float32)
    tl.store(y_ptr + o_m[None, :] * n_outputs + o_n[:, None], b_y, mask=m_y)


launch_few_rows = launcher(linear_few_rows_kernel)
