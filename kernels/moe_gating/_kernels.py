"""Triton kernels of the router: choice, statistics, and the gradient of the logits."""

from __future__ import annotations

from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def _add_product(
    b_acc, x_ptr, w_ptr, o_n, o_e, m_n, m_e, start, x_stride, w_stride,
    H: tl.constexpr, WIDE: tl.constexpr, BLOCK_H: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o_h = start + tl.arange(0, BLOCK_H)
    m_h = (o_h < H)[None, :]
    p_x = x_ptr + o_n[:, None] * x_stride + o_h[None, :]
    p_w = w_ptr + o_e.to(tl.int64)[:, None] * w_stride + o_h[None, :]
    b_x = tl.load(p_x, mask=m_n[:, None] & m_h, other=0.0)
    b_w = tl.load(p_w, mask=m_e[:, None] & m_h, other=0.0)
    if WIDE:
        b_x, b_w = b_x.to(tl.float32), b_w.to(tl.float32)
    return tl.dot(b_x, tl.trans(b_w), acc=b_acc, input_precision=PRECISION)


@triton.jit
def moe_gating_forward_kernel(
    x_ptr, w_ptr, noise_ptr, weight_ptr, index_ptr, p_ptr, share_ptr, n_rows,
    x_stride, w_stride,
    H: tl.constexpr, E: tl.constexpr, K: tl.constexpr, RENORMALISE: tl.constexpr,
    NOISY: tl.constexpr, KEEP: tl.constexpr, WIDE: tl.constexpr, PIECES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Choose weights and experts of some tokens; store partial statistics [2, programs, E].

    The statistics are in FP32, which holds the number of a program's tokens exactly. With
    ``PIECES`` x is the logits already, in so many terms [PIECES, tokens, E].
    """
    i_p = tl.program_id(0).to(tl.int64)
    o_n = i_p * ROWS + tl.arange(0, ROWS)
    o_e = tl.arange(0, BLOCK_E)
    o_k = tl.arange(0, BLOCK_K)
    m_n, m_e = o_n < n_rows, o_e < E
    b_logits = tl.zeros([ROWS, BLOCK_E], dtype=tl.float32)
    if PIECES:
        for piece in tl.static_range(PIECES):
            o_part = (tl.cast(piece, tl.int64) * n_rows + o_n)[:, None] * E + o_e[None, :]
            b_logits += tl.load(x_ptr + o_part, mask=m_n[:, None] & m_e[None, :], other=0.0)
    else:
        for start in range(0, H, 2 * BLOCK_H):
            # Matrix units truncate as they accumulate: no more than two products before a true sum.
            b_part = tl.zeros([ROWS, BLOCK_E], dtype=tl.float32)
            for half in tl.static_range(2):
                b_part = _add_product(
                    b_part, x_ptr, w_ptr, o_n, o_e, m_n, m_e, start + half * BLOCK_H, x_stride,
                    w_stride, H, WIDE, BLOCK_H, PRECISION,
                )  # fmt: skip
            b_logits += b_part
    if NOISY:
        p_noise = noise_ptr + o_n[:, None] * E + o_e[None, :]
        b_noise = tl.load(p_noise, mask=m_n[:, None] & m_e[None, :], other=0.0)
        b_logits += b_noise.to(tl.float32)
    b_left = tl.where(m_e[None, :], b_logits, float("-inf"))
    b_top = tl.max(b_left, axis=1)
    b_p = tl.exp(b_left - b_top[:, None])
    b_sum = tl.sum(b_p, axis=1)
    # Only chosen experts have minus infinity in the following, not those that noise rules out.
    lowest = -3.4028234663852886e38
    b_left = tl.where((b_left == float("-inf")) & m_e[None, :], lowest, b_left)
    b_weight = tl.zeros([ROWS, BLOCK_K], dtype=tl.float32)
    b_index = tl.zeros([ROWS, BLOCK_K], dtype=tl.int32)
    for j in range(K):
        b_high, b_at = tl.max(b_left, axis=1, return_indices=True)
        b_at = tl.minimum(b_at, E - 1)  # also where no comparison is True, as with NaN
        b_weight = tl.where(o_k[None, :] == j, tl.exp(b_high - b_top)[:, None], b_weight)
        b_index = tl.where(o_k[None, :] == j, b_at[:, None], b_index)
        b_left = tl.where(o_e[None, :] == b_at[:, None], float("-inf"), b_left)
    b_total = b_sum
    if RENORMALISE:
        # A logit that is NaN is not among the chosen, but must show in their weights.
        b_total = tl.where(b_sum == b_sum, tl.sum(b_weight, axis=1), b_sum)
    b_weight = b_weight / b_total[:, None]
    m_nk = m_n[:, None] & (o_k < K)[None, :]
    tl.store(weight_ptr + o_n[:, None] * K + o_k[None, :], b_weight, mask=m_nk)
    tl.store(index_ptr + o_n[:, None] * K + o_k[None, :], b_index.to(tl.int64), mask=m_nk)
    m = m_n[:, None] & m_e[None, :]
    b_p = tl.where(m, b_p / b_sum[:, None], 0.0)
    if KEEP:
        tl.store(p_ptr + o_n[:, None] * E + o_e[None, :], b_p, mask=m)
    tl.store(share_ptr + i_p * E + o_e, tl.sum(b_p, axis=0), mask=m_e)
    b_taken = ((b_left == float("-inf")) & m).to(tl.int32)
    p_count = share_ptr + (tl.num_programs(0) + i_p) * E + o_e
    tl.store(p_count, tl.sum(b_taken, axis=0).to(tl.float32), mask=m_e)


launch_forward = launcher(moe_gating_forward_kernel)


@triton.jit
def moe_gating_statistics_kernel(
    share_ptr, mean_ptr, total_ptr, n_shares, n_rows,
    E: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o_e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_e = o_e < E
    b_sum = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    b_total = tl.zeros([ROWS, BLOCK], dtype=tl.int32)
    for start in range(0, n_shares, ROWS):
        o_r = start + tl.arange(0, ROWS)
        m = (o_r < n_shares)[:, None] & m_e[None, :]
        o = o_r.to(tl.int64)[:, None] * E + o_e[None, :]
        b_sum += tl.load(share_ptr + o, mask=m, other=0.0)
        o_count = o + tl.cast(n_shares, tl.int64) * E
        b_total += tl.load(share_ptr + o_count, mask=m, other=0.0).to(tl.int32)
    tl.store(mean_ptr + o_e, tl.sum(b_sum, axis=0) / n_rows, mask=m_e)
    tl.store(total_ptr + o_e, tl.sum(b_total, axis=0).to(tl.int64), mask=m_e)


launch_statistics = launcher(moe_gating_statistics_kernel)


@triton.jit
def moe_gating_backward_kernel(
    p_ptr, weight_ptr, index_ptr, dweight_ptr, dmean_ptr, dlogits_ptr, n_rows,
    E: tl.constexpr, K: tl.constexpr, RENORMALISE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_e = tl.arange(0, BLOCK_E)
    m_n, m_e = o_n < n_rows, o_e < E
    m = m_n[:, None] & m_e[None, :]
    b_dot = tl.zeros([ROWS], dtype=tl.float32)
    b_total = tl.zeros([ROWS], dtype=tl.float32)
    if RENORMALISE:
        for j in range(K):
            b_at = tl.load(index_ptr + o_n * K + j, mask=m_n, other=0)
            b_total += tl.load(p_ptr + o_n * E + b_at, mask=m_n, other=1.0)
            b_w = tl.load(weight_ptr + o_n * K + j, mask=m_n, other=0.0)
            b_dot += b_w * tl.load(dweight_ptr + o_n * K + j, mask=m_n, other=0.0)
    else:
        b_total += 1.0
    b_dmean = tl.load(dmean_ptr + o_e, mask=m_e, other=0.0) / n_rows
    b_dp = tl.zeros([ROWS, BLOCK_E], dtype=tl.float32) + b_dmean[None, :]
    for j in range(K):
        b_at = tl.load(index_ptr + o_n * K + j, mask=m_n, other=0)
        b_dw = tl.load(dweight_ptr + o_n * K + j, mask=m_n, other=0.0)
        b_ds = (b_dw - b_dot) / b_total
        b_dp += tl.where(o_e[None, :] == b_at[:, None], b_ds[:, None], 0.0)
    b_p = tl.load(p_ptr + o_n[:, None] * E + o_e[None, :], mask=m, other=0.0)
    b_dlogits = b_p * (b_dp - tl.sum(b_p * b_dp, axis=1)[:, None])
    tl.store(dlogits_ptr + o_n[:, None] * E + o_e[None, :], b_dlogits, mask=m)


launch_backward = launcher(moe_gating_backward_kernel)
