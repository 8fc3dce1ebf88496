"""Triton kernel of the product of a few rows with a weight matrix."""

from __future__ import annotations

from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def linear_few_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    n_rows,
    n_outputs,
    x_stride,
    weight_stride,
    K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
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
    for i_k in tl.range(0, K, SPLIT * BLOCK_K, num_stages=STAGES):
        o_weight_k = i_k + o_s + o_k[None, None, :]
        p_weight = weight_ptr + o_n[None, :, None] * weight_stride + o_weight_k
        b_weight = tl.load(p_weight, mask=m_n[None, :, None] & (o_weight_k < K), other=0.0)
        o_x_k = i_k + o_s + o_k[None, :, None]
        p_x = x_ptr + o_m[None, None, :] * x_stride + o_x_k
        b_x = tl.load(p_x, mask=m_m[None, None, :] & (o_x_k < K), other=0.0)
        b_y = tl.dot(b_weight, b_x, acc=b_y, input_precision=PRECISION)
    b_y = tl.sum(b_y, axis=0)
    if HAS_BIAS:
        b_y += tl.load(bias_ptr + o_n, mask=m_n, other=0.0).to(tl.float32)[:, None]
    p_y = y_ptr + o_m[None, :] * n_outputs + o_n[:, None]
    tl.store(p_y, b_y, mask=m_n[:, None] & m_m[None, :])


launch_few_rows = launcher(linear_few_rows_kernel)
