"""Triton kernels of the scan's backward pass that process all chunks at once.

``ssd_scan_outputs_gradient_kernel`` and ``ssd_scan_states_gradient_kernel`` sum dB and dC, which
the heads of a group share: dC through the outputs and the state before a chunk, dB through the
outputs and the state after it. ``ssd_scan_head_gradients_kernel`` computes the rest. One kernel for
all would need more registers than there are.
"""

from __future__ import annotations

from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton
from kernels.ssd_scan._kernels import add_dot, decays, dot


@triton.jit
def ssd_scan_outputs_gradient_kernel(
    dy_ptr,
    x_ptr,
    b_ptr,
    c_ptr,
    step_ptr,
    sum_ptr,
    starts_ptr,
    db_ptr,
    dc_ptr,
    length,
    n_heads,
    heads_per_group,
    dy_batch,
    dy_row,
    dy_head,
    x_batch,
    x_row,
    x_head,
    b_batch,
    b_row,
    b_group,
    c_batch,
    c_row,
    c_group,
    P: tl.constexpr,
    N: tl.constexpr,
    PRECISE: tl.constexpr,
    HEADS: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute dC, and dB through the outputs, of a chunk and ``HEADS`` heads.

    Both are [B, L, H / HEADS, N]. ``starts`` is the state before each chunk [B, chunks, H, P, N].
    With u[t, s] the gradient of C_t . B_s, summed over heads, dC = u B + ... and dB = u^T C: one
    product each for all heads.
    """
    i_c = tl.program_id(0).to(tl.int64)
    i_r = tl.program_id(1).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    n_chunks, n_parts = tl.num_programs(0), tl.num_programs(1)
    i_g = i_r * HEADS // heads_per_group
    o_q = tl.arange(0, Q)
    o_p = tl.arange(0, BLOCK_P)
    o_n = tl.arange(0, BLOCK_N)
    m_p = o_p < P
    m_n = o_n < N
    o_t = i_c * Q + o_q
    m_t = o_t < length
    m_x = m_t[:, None] & m_p[None, :]
    m_b = m_t[:, None] & m_n[None, :]
    b_dc = tl.zeros([Q, BLOCK_N], dtype=tl.float32)
    b_u = tl.zeros([Q, Q], dtype=tl.float32)
    WIDE: tl.constexpr = tl.float64 if PRECISE else tl.float32
    for head in range(0, HEADS):
        i_h = i_r * HEADS + head
        o_steps = (i_b * n_heads + i_h) * n_chunks * Q
        b_dt = tl.load(step_ptr + o_steps + o_t)
        b_sum = tl.load(sum_ptr + o_steps + o_t)
        o_state = ((i_b * n_chunks + i_c) * n_heads + i_h) * (P * N)
        o_state += o_p[:, None] * N + o_n[None, :]
        o_dy = i_b * dy_batch + i_h * dy_head + o_t[:, None] * dy_row + o_p[None, :]
        o_x = i_b * x_batch + i_h * x_head + o_t[:, None] * x_row + o_p[None, :]
        b_dy = tl.load(dy_ptr + o_dy, mask=m_x, other=0.0)
        b_x = tl.load(x_ptr + o_x, mask=m_x, other=0.0)
        b_start = tl.load(starts_ptr + o_state, mask=m_p[:, None] & m_n[None, :], other=0.0)
        b_w = dot(b_dy, tl.trans(b_x), PRECISE)
        b_u += (b_w * decays(b_sum, o_q, PRECISE) * b_dt[None, :]).to(tl.float32)
        b_since = tl.exp(b_sum.to(WIDE)).to(tl.float32)
        b_seen = (b_dy.to(tl.float32) * b_since[:, None]).to(b_dy.dtype)
        b_dc = add_dot(b_dc, b_seen, b_start, PRECISE)
    p_b = b_ptr + i_b * b_batch + i_g * b_group + o_t[:, None] * b_row + o_n[None, :]
    p_c = c_ptr + i_b * c_batch + i_g * c_group + o_t[:, None] * c_row + o_n[None, :]
    b_b = tl.load(p_b, mask=m_b, other=0.0)
    b_u = b_u.to(b_b.dtype)
    b_dc = add_dot(b_dc, b_u, b_b, PRECISE)
    o_part = ((i_b * length + o_t) * n_parts + i_r)[:, None] * N + o_n[None, :]
    tl.store(dc_ptr + o_part, b_dc, mask=m_b)
    b_c = tl.load(p_c, mask=m_b, other=0.0)
    tl.store(db_ptr + o_part, dot(tl.trans(b_u), b_c, PRECISE), mask=m_b)


launch_outputs_gradient = launcher(ssd_scan_outputs_gradient_kernel)


@triton.jit
def ssd_scan_states_gradient_kernel(
    x_ptr,
    step_ptr,
    sum_ptr,
    ends_ptr,
    db_ptr,
    length,
    n_heads,
    x_batch,
    x_row,
    x_head,
    P: tl.constexpr,
    N: tl.constexpr,
    PRECISE: tl.constexpr,
    HEADS: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add to dB of one chunk and ``HEADS`` heads the part through the state after the chunk.

    ``ends`` is the gradient of that state [B, chunks, H, P, N].
    """
    i_c = tl.program_id(0).to(tl.int64)
    i_r = tl.program_id(1).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    n_chunks, n_parts = tl.num_programs(0), tl.num_programs(1)
    o_p = tl.arange(0, BLOCK_P)
    o_n = tl.arange(0, BLOCK_N)
    m_p = o_p < P
    m_n = o_n < N
    o_t = i_c * Q + tl.arange(0, Q)
    m_t = o_t < length
    m_x = m_t[:, None] & m_p[None, :]
    m_b = m_t[:, None] & m_n[None, :]
    o_part = ((i_b * length + o_t) * n_parts + i_r)[:, None] * N + o_n[None, :]
    b_db = tl.load(db_ptr + o_part, mask=m_b, other=0.0).to(tl.float32)
    WIDE: tl.constexpr = tl.float64 if PRECISE else tl.float32
    for head in range(0, HEADS):
        i_h = i_r * HEADS + head
        o_steps = (i_b * n_heads + i_h) * n_chunks * Q
        b_sum = tl.load(sum_ptr + o_steps + o_t)
        total = tl.load(sum_ptr + o_steps + i_c * Q + Q - 1)
        o_state = ((i_b * n_chunks + i_c) * n_heads + i_h) * (P * N)
        o_state += o_p[:, None] * N + o_n[None, :]
        o_x = i_b * x_batch + i_h * x_head + o_t[:, None] * x_row + o_p[None, :]
        b_x = tl.load(x_ptr + o_x, mask=m_x, other=0.0)
        b_end = tl.load(ends_ptr + o_state, mask=m_p[:, None] & m_n[None, :], other=0.0)
        b_left = tl.exp((total - b_sum).to(WIDE)).to(tl.float32)
        b_left *= tl.load(step_ptr + o_steps + o_t)
        b_late = (b_x.to(tl.float32) * b_left[:, None]).to(b_x.dtype)
        b_db = add_dot(b_db, b_late, b_end, PRECISE)
    tl.store(db_ptr + o_part, b_db, mask=m_b)


launch_states_gradient = launcher(ssd_scan_states_gradient_kernel)


@triton.jit
def ssd_scan_head_gradients_kernel(
    dy_ptr,
    x_ptr,
    dt_ptr,
    a_ptr,
    b_ptr,
    c_ptr,
    d_ptr,
    bias_ptr,
    step_ptr,
    sum_ptr,
    starts_ptr,
    ends_ptr,
    dx_ptr,
    ddt_ptr,
    partial_ptr,
    length,
    heads_per_group,
    dy_batch,
    dy_row,
    dy_head,
    x_batch,
    x_row,
    x_head,
    dt_batch,
    dt_row,
    dt_head,
    b_batch,
    b_row,
    b_group,
    c_batch,
    c_row,
    c_group,
    P: tl.constexpr,
    N: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    HAS_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISE: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute dx, ddt, and partial sums of dA, dD and d dt_bias, of one chunk and head.

    The partial sums are [B, chunks, 3, H]. Reads the state before the chunk and the gradient of the
    state after it, both [B, chunks, H, P, N].
    """
    i_c = tl.program_id(0).to(tl.int64)
    i_h = tl.program_id(1).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    n_chunks, n_heads = tl.num_programs(0), tl.num_programs(1)
    i_g = i_h // heads_per_group
    o_q = tl.arange(0, Q)
    o_p = tl.arange(0, BLOCK_P)
    o_n = tl.arange(0, BLOCK_N)
    m_p = o_p < P
    m_n = o_n < N
    o_t = i_c * Q + o_q
    m_t = o_t < length
    m_x = m_t[:, None] & m_p[None, :]
    m_b = m_t[:, None] & m_n[None, :]
    WIDE: tl.constexpr = tl.float64 if PRECISE else tl.float32
    o_steps = (i_b * n_heads + i_h) * n_chunks * Q
    b_dt = tl.load(step_ptr + o_steps + o_t)
    b_sum = tl.load(sum_ptr + o_steps + o_t)
    total = tl.load(sum_ptr + o_steps + i_c * Q + Q - 1)
    o_state = ((i_b * n_chunks + i_c) * n_heads + i_h) * (P * N)
    o_state += o_p[:, None] * N + o_n[None, :]
    m_state = m_p[:, None] & m_n[None, :]
    p_b = b_ptr + i_b * b_batch + i_g * b_group + o_t[:, None] * b_row + o_n[None, :]
    p_c = c_ptr + i_b * c_batch + i_g * c_group + o_t[:, None] * c_row + o_n[None, :]
    p_dy = dy_ptr + i_b * dy_batch + i_h * dy_head + o_t[:, None] * dy_row + o_p[None, :]
    p_x = x_ptr + i_b * x_batch + i_h * x_head + o_t[:, None] * x_row + o_p[None, :]
    b_b = tl.load(p_b, mask=m_b, other=0.0)
    b_end = tl.load(ends_ptr + o_state, mask=m_state, other=0.0)
    b_x = tl.load(p_x, mask=m_x, other=0.0)

    # The gradient of dt x: from the chunks after this one, and from this one.
    b_after = dot(b_b, tl.trans(b_end), PRECISE)
    b_after *= tl.exp((total - b_sum).to(WIDE)).to(tl.float32)[:, None]
    b_into = tl.sum(b_after * b_x.to(WIDE), axis=1)
    b_start = tl.load(starts_ptr + o_state, mask=m_state, other=0.0)
    through = tl.sum(tl.sum(b_start.to(WIDE) * b_end.to(WIDE), axis=1), axis=0)
    b_c = tl.load(p_c, mask=m_b, other=0.0)
    b_dy = tl.load(p_dy, mask=m_x, other=0.0)
    b_out = dot(b_c, tl.trans(b_start), PRECISE)
    b_out *= tl.exp(b_sum.to(WIDE)).to(tl.float32)[:, None]
    b_from = tl.sum(b_out * b_dy.to(WIDE), axis=1).to(tl.float64)
    b_m = dot(b_c, tl.trans(b_b), PRECISE) * decays(b_sum, o_q, PRECISE)
    b_dx = add_dot(b_after, tl.trans(b_m.to(b_dy.dtype)), b_dy, PRECISE) * b_dt[:, None]
    dd = tl.zeros([], dtype=tl.float64)
    if HAS_D:
        b_dx += b_dy.to(tl.float32) * tl.load(d_ptr + i_h).to(tl.float32)
        dd += tl.sum(tl.sum(b_dy.to(WIDE) * b_x.to(WIDE), axis=1), axis=0)
    o_row = (i_b * length + o_t) * n_heads + i_h
    tl.store(dx_ptr + o_row[:, None] * P + o_p[None, :], b_dx, mask=m_x)

    # The gradient of dt_k A: all that entered before k and left at k or later. Given the state
    # before and after the chunk, this is a running sum of what entered minus what left, beyond what
    # passes through the complete chunk and what leaves from the state before it. The same numbers
    # are added and subtracted, so that nothing is lost in FP64.
    a = tl.load(a_ptr + i_h).to(tl.float64)
    b_pair = dot(b_dy, tl.trans(b_x), PRECISE) * b_m
    b_wide = (b_pair * b_dt[None, :]).to(tl.float64)
    b_net = tl.sum(b_wide, axis=0) + (b_dt * b_into).to(tl.float64)
    b_net -= tl.sum(b_wide, axis=1) + b_from
    b_fall = tl.cumsum(b_net, axis=0) - b_net + tl.sum(b_from, axis=0)
    b_fall += through * tl.exp(total.to(WIDE)).to(tl.float32)
    b_ddt = tl.sum(b_pair, axis=0) + b_into + b_fall * a
    if SOFTPLUS:
        p_raw = dt_ptr + i_b * dt_batch + o_t * dt_row + i_h * dt_head
        b_raw = tl.load(p_raw, mask=m_t, other=0.0).to(tl.float32)
        if HAS_BIAS:
            b_raw += tl.load(bias_ptr + i_h).to(tl.float32)
        b_ddt *= 1.0 / (1.0 + tl.exp(-b_raw))
    tl.store(ddt_ptr + o_row, b_ddt, mask=m_t)
    p_partial = partial_ptr + (i_b * n_chunks + i_c) * 3 * n_heads + i_h
    tl.store(p_partial, tl.sum(b_fall * b_dt, axis=0))
    tl.store(p_partial + n_heads, dd)
    tl.store(p_partial + 2 * n_heads, tl.sum(tl.where(m_t, b_ddt, 0.0), axis=0))


launch_head_gradients = launcher(ssd_scan_head_gradients_kernel)
