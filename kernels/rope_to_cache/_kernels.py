"""Triton kernel that prepares one token's heads and writes keys and values into the cache.

A program computes one head of up to 16 samples, because heads may have a matrix, which samples
share. Its elements are pairs (i, i + D/2), as in ``_qk_kernels``.
"""

from __future__ import annotations

from kernels._qk_kernels import load_angles, load_pair, load_weights, store_pair
from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def rope_to_cache_kernel(
    heads_ptr,
    cache_ptr,
    cos_ptr,
    sin_ptr,
    position_ptr,
    q_weight_ptr,
    k_weight_ptr,
    matrix_ptr,
    q_ptr,
    length_ptr,
    batch,
    positions,
    capacity,
    table_stride,
    heads_batch,
    heads_head,
    cache_batch,
    cache_head,
    cache_token,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    EPS: tl.constexpr,
    MATRIX: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute one query head, or write one head of keys or values, of ``BLOCK_B`` samples."""
    i_h = tl.program_id(0)
    o_b = (tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)).to(tl.int64)[:, None]
    o_d = tl.arange(0, BLOCK_D)[None, :]
    m_b = o_b < batch
    m = m_b & (o_d < HALF)
    position = tl.load(position_ptr)
    if (i_h == 0) & (tl.program_id(1) == 0):
        tl.store(length_ptr, position + 1)
    p_q = q_ptr + (o_b * Q_HEADS + i_h) * (2 * HALF)
    # Values come after keys in the input as well as in the cache.
    i_cached = (i_h - Q_HEADS).to(tl.int64)
    p_cache = cache_ptr + o_b * cache_batch + i_cached * cache_head + position * cache_token
    o_position = position + tl.zeros_like(o_b)
    m_cache = m_b & (o_position >= 0) & (o_position < capacity)
    b_a, b_b = load_pair(heads_ptr + o_b * heads_batch + i_h * heads_head + o_d, m, HALF, False)
    if i_h >= Q_HEADS + KV_HEADS:
        store_pair(p_cache + o_d, b_a, b_b, m & m_cache, HALF, False)
    else:
        if NORM:
            b_r = tl.rsqrt(tl.sum(b_a * b_a + b_b * b_b, axis=1) / (2 * HALF) + EPS)[:, None]
            if i_h < Q_HEADS:
                b_wa, b_wb = load_weights(q_weight_ptr, HALF, False, BLOCK_D)
            else:
                b_wa, b_wb = load_weights(k_weight_ptr, HALF, False, BLOCK_D)
            b_a *= b_r * b_wa
            b_b *= b_r * b_wb
        b_cos, b_sin = load_angles(
            0, 0, cos_ptr, sin_ptr, position_ptr, 0, positions, table_stride, 1, HALF, 1, BLOCK_D
        )
        b_turned = b_a * b_cos - b_b * b_sin
        b_b = b_b * b_cos + b_a * b_sin
        if MATRIX:
            o_row = tl.arange(0, BLOCK_D)[:, None]
            o_column = tl.arange(0, 2 * BLOCK_D)[None, :]
            m_column = o_column < 2 * HALF
            p_matrix = matrix_ptr + i_h * (4 * HALF * HALF) + o_row * (2 * HALF) + o_column
            b_top = tl.load(p_matrix, mask=(o_row < HALF) & m_column, other=0.0)
            p_matrix += 2 * HALF * HALF
            b_bottom = tl.load(p_matrix, mask=(o_row < HALF) & m_column, other=0.0)
            b_y = tl.dot(b_turned.to(b_top.dtype), b_top, input_precision=PRECISION)
            b_y = tl.dot(b_b.to(b_top.dtype), b_bottom, b_y, input_precision=PRECISION)
            if i_h < Q_HEADS:
                tl.store(p_q + o_column, b_y, mask=m_b & m_column)
            else:
                tl.store(p_cache + o_column, b_y, mask=m_cache & m_column)
        else:
            if i_h < Q_HEADS:
                store_pair(p_q + o_d, b_turned, b_b, m, HALF, False)
            else:
                store_pair(p_cache + o_d, b_turned, b_b, m & m_cache, HALF, False)


launch = launcher(rope_to_cache_kernel)
