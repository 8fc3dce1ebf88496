"""Triton kernels of the scan.

``ssd_scan_steps_kernel`` prepares step sizes and decays. ``ssd_scan_kernel`` walks along the chunks
of a segment of the sequence for one head with the state [P, N] in registers. With few heads and
samples the sequence is cut into several segments, so that every multiprocessor has work:
``ssd_scan_walk_kernel`` computes what each segment adds to the state, ``ssd_scan_join_kernel`` the
initial state of each. Backward, two walks save the state at the start of every chunk and its
gradient at the end; then ``_gradient_kernels`` process all chunks at once.

Running sums of dt A, which are few, are in FP64. They enter the decays of a chunk, which are many,
as two FP32 numbers. Their differences are then as exact as FP32 can hold; differences of FP32 sums
would lose the precision of the sums' size. With FP32 inputs (``PRECISE``) all terms of dA and ddt
are in FP64: these sums cancel.
"""

from __future__ import annotations

from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def wide_soft_step(raw):
    """Apply softplus to step sizes, in FP64."""
    wide = tl.minimum(raw, 20.0).to(tl.float64)
    soft = tl.where(raw < -16.0, tl.exp(wide), tl.log(1.0 + tl.exp(wide)))
    return tl.where(raw <= 20.0, soft, raw)  # NaN stays NaN, of which the minimum is 20


@triton.jit
def soft_step(raw):
    """Apply softplus to step sizes, exact to FP32 where 1 + exp would lose digits."""
    return wide_soft_step(raw).to(tl.float32)


@triton.jit
def ssd_scan_steps_kernel(
    dt_ptr,
    a_ptr,
    bias_ptr,
    step_ptr,
    sum_ptr,
    length,
    n_heads,
    dt_batch,
    dt_row,
    dt_head,
    SOFTPLUS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Compute step sizes [B, H, chunks Q], 0 past the end, and running sums of A times them."""
    i_c = tl.program_id(0).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    o_t = i_c * Q + tl.arange(0, Q)
    o_h = tl.program_id(1).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)
    m_h = o_h < n_heads
    mask = (o_t < length)[:, None] & m_h[None, :]
    p_dt = dt_ptr + i_b * dt_batch + o_t[:, None] * dt_row + o_h[None, :] * dt_head
    b_dt = tl.load(p_dt, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        b_dt += tl.load(bias_ptr + o_h, mask=m_h, other=0.0).to(tl.float32)[None, :]
    if SOFTPLUS:
        b_dt = soft_step(b_dt)
    b_dt = tl.where(mask, b_dt, 0.0)
    b_a = tl.load(a_ptr + o_h, mask=m_h, other=0.0).to(tl.float64)
    o_step = (i_b * n_heads + o_h[None, :]) * (tl.num_programs(0) * Q) + o_t[:, None]
    tl.store(step_ptr + o_step, b_dt, mask=m_h[None, :])
    b_sum = tl.cumsum(b_dt.to(tl.float64) * b_a[None, :], axis=0)
    tl.store(sum_ptr + o_step, b_sum, mask=m_h[None, :])


launch_steps = launcher(ssd_scan_steps_kernel)


@triton.jit
def decays(b_sum, o_q, PRECISE: tl.constexpr):
    """Return [t, s]: the fraction left at time t of what entered at time s, 0 for t < s."""
    if PRECISE:
        b_fall = b_sum[:, None] - b_sum[None, :]
    else:
        b_high = b_sum.to(tl.float32)
        b_low = (b_sum - b_high.to(tl.float64)).to(tl.float32)
        b_fall = (b_high[:, None] - b_high[None, :]) + (b_low[:, None] - b_low[None, :])
    return tl.where(o_q[:, None] >= o_q[None, :], tl.exp(b_fall), 0.0)


@triton.jit
def dot(b_a, b_b, PRECISE: tl.constexpr):
    return tl.dot(b_a, b_b, input_precision="ieee" if PRECISE else "tf32")


@triton.jit
def add_dot(b_sum, b_a, b_b, PRECISE: tl.constexpr):
    return tl.dot(b_a, b_b, acc=b_sum, input_precision="ieee" if PRECISE else "tf32")


@triton.jit
def ssd_scan_walk_kernel(
    v_ptr,
    w_ptr,
    step_ptr,
    sum_ptr,
    first_ptr,
    kept_ptr,
    last_ptr,
    total_ptr,
    length,
    n_chunks,
    heads_per_group,
    v_batch,
    v_row,
    v_head,
    w_batch,
    w_row,
    w_group,
    P: tl.constexpr,
    N: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    KEEP: tl.constexpr,
    LAST: tl.constexpr,
    TOTAL: tl.constexpr,
    BACKWARD: tl.constexpr,
    PRECISE: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Walk the state along a segment, from ``first`` [B, S, H, P, N] to ``last``; v = x, w = B.

    ``BACKWARD``: the gradient of the state, from the end to the begin, with v = dy and w = C.
    ``KEEP``: store the state on entering each chunk [B, chunks, H, P, N]; ``TOTAL``: also the sum
    of dt A of the segment [B, S, H].
    """
    i_h = tl.program_id(0).to(tl.int64)
    i_s = tl.program_id(1).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    n_heads, n_segments = tl.num_programs(0), tl.num_programs(1)
    o_q = tl.arange(0, Q)
    o_p = tl.arange(0, BLOCK_P)
    o_n = tl.arange(0, BLOCK_N)
    m_p = o_p < P
    m_n = o_n < N
    m_state = m_p[:, None] & m_n[None, :]
    o_state = o_p[:, None] * N + o_n[None, :]
    v_ptr += i_b * v_batch + i_h * v_head
    w_ptr += i_b * w_batch + (i_h // heads_per_group) * w_group
    o_steps = (i_b * n_heads + i_h) * (n_segments * n_chunks) * Q
    i_state = (i_b * n_segments + i_s) * n_heads + i_h
    b_state = tl.zeros([BLOCK_P, BLOCK_N], dtype=tl.float32)
    if HAS_FIRST:
        p_first = first_ptr + i_state * (P * N) + o_state
        b_state += tl.load(p_first, mask=m_state, other=0.0).to(tl.float32)
    fallen = tl.zeros([], dtype=tl.float64)
    WIDE: tl.constexpr = tl.float64 if PRECISE else tl.float32
    for chunk in range(0, n_chunks):
        i_c = i_s * n_chunks + (n_chunks - 1 - chunk if BACKWARD else chunk)
        o_t = i_c * Q + o_q
        m_t = o_t < length
        m_v = m_t[:, None] & m_p[None, :]
        m_w = m_t[:, None] & m_n[None, :]
        b_v = tl.load(v_ptr + o_t[:, None] * v_row + o_p[None, :], mask=m_v, other=0.0)
        b_w = tl.load(w_ptr + o_t[:, None] * w_row + o_n[None, :], mask=m_w, other=0.0)
        b_sum = tl.load(sum_ptr + o_steps + o_t)
        total = tl.load(sum_ptr + o_steps + i_c * Q + Q - 1)
        if KEEP:
            i_kept = (i_b * (n_segments * n_chunks) + i_c) * n_heads + i_h
            tl.store(kept_ptr + i_kept * (P * N) + o_state, b_state, mask=m_state)
        if BACKWARD:
            b_left = tl.exp(b_sum.to(WIDE)).to(tl.float32)
        else:
            b_left = tl.exp((total - b_sum).to(WIDE)).to(tl.float32)
            b_left *= tl.load(step_ptr + o_steps + o_t)
        b_u = (b_v.to(tl.float32) * b_left[:, None]).to(b_w.dtype)
        b_state *= tl.exp(total.to(WIDE)).to(tl.float32)
        b_state = add_dot(b_state, tl.trans(b_u), b_w, PRECISE)
        fallen += total
    if LAST:
        tl.store(last_ptr + i_state * (P * N) + o_state, b_state, mask=m_state)
    if TOTAL:
        tl.store(total_ptr + i_state, fallen)


launch_walk = launcher(ssd_scan_walk_kernel)


@triton.jit
def ssd_scan_kernel(
    x_ptr,
    b_ptr,
    c_ptr,
    d_ptr,
    step_ptr,
    sum_ptr,
    begin_ptr,
    y_ptr,
    end_ptr,
    length,
    n_chunks,
    heads_per_group,
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
    HAS_D: tl.constexpr,
    HAS_BEGIN: tl.constexpr,
    END: tl.constexpr,
    PRECISE: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute y, and the state at a segment's end, from the state at its begin [B, S, H, P, N]."""
    i_h = tl.program_id(0).to(tl.int64)
    i_s = tl.program_id(1).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    n_heads, n_segments = tl.num_programs(0), tl.num_programs(1)
    i_g = i_h // heads_per_group
    o_q = tl.arange(0, Q)
    o_p = tl.arange(0, BLOCK_P)
    o_n = tl.arange(0, BLOCK_N)
    m_p = o_p < P
    m_n = o_n < N
    m_state = m_p[:, None] & m_n[None, :]
    o_state = o_p[:, None] * N + o_n[None, :]
    x_ptr += i_b * x_batch + i_h * x_head
    y_ptr += i_b * length * n_heads * P + i_h * P
    b_ptr += i_b * b_batch + i_g * b_group
    c_ptr += i_b * c_batch + i_g * c_group
    o_steps = (i_b * n_heads + i_h) * (n_segments * n_chunks) * Q
    i_state = (i_b * n_segments + i_s) * n_heads + i_h
    if HAS_D:
        d = tl.load(d_ptr + i_h).to(tl.float32)
    b_state = tl.zeros([BLOCK_P, BLOCK_N], dtype=tl.float32)
    if HAS_BEGIN:
        p_begin = begin_ptr + i_state * (P * N) + o_state
        b_state += tl.load(p_begin, mask=m_state, other=0.0).to(tl.float32)
    WIDE: tl.constexpr = tl.float64 if PRECISE else tl.float32
    for chunk in range(0, n_chunks):
        i_c = i_s * n_chunks + chunk
        o_t = i_c * Q + o_q
        m_t = o_t < length
        m_x = m_t[:, None] & m_p[None, :]
        m_b = m_t[:, None] & m_n[None, :]
        b_x = tl.load(x_ptr + o_t[:, None] * x_row + o_p[None, :], mask=m_x, other=0.0)
        b_b = tl.load(b_ptr + o_t[:, None] * b_row + o_n[None, :], mask=m_b, other=0.0)
        b_c = tl.load(c_ptr + o_t[:, None] * c_row + o_n[None, :], mask=m_b, other=0.0)
        b_dt = tl.load(step_ptr + o_steps + o_t)
        b_sum = tl.load(sum_ptr + o_steps + o_t)
        total = tl.load(sum_ptr + o_steps + i_c * Q + Q - 1)
        b_m = dot(b_c, tl.trans(b_b), PRECISE) * decays(b_sum, o_q, PRECISE) * b_dt[None, :]
        b_y = dot(b_c, tl.trans(b_state.to(b_c.dtype)), PRECISE)
        b_y = b_y * tl.exp(b_sum.to(WIDE)).to(tl.float32)[:, None]
        b_y = add_dot(b_y, b_m.to(b_x.dtype), b_x, PRECISE)
        if HAS_D:
            b_y += b_x.to(tl.float32) * d
        tl.store(y_ptr + o_t[:, None] * (n_heads * P) + o_p[None, :], b_y, mask=m_x)
        b_left = b_dt * tl.exp((total - b_sum).to(WIDE)).to(tl.float32)
        b_u = (b_x.to(tl.float32) * b_left[:, None]).to(b_b.dtype)
        b_state *= tl.exp(total.to(WIDE)).to(tl.float32)
        b_state = add_dot(b_state, tl.trans(b_u), b_b, PRECISE)
    if END:
        tl.store(end_ptr + i_state * (P * N) + o_state, b_state, mask=m_state)


launch_scan = launcher(ssd_scan_kernel)


@triton.jit
def _segment(step, n_segments, n_heads, i_b, i_h, BACKWARD: tl.constexpr):
    """Return the index of the segment that is joined in a step."""
    i_s = n_segments - 1 - step if BACKWARD else step
    return (i_b * n_segments + i_s) * n_heads + i_h


@triton.jit
def ssd_scan_join_kernel(
    first_ptr,
    states_ptr,
    total_ptr,
    last_ptr,
    n_segments,
    n_heads,
    SIZE: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    BACKWARD: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Turn each segment's addition to the state, in place, into its initial state.

    ``last`` gets the final state. ``BACKWARD``: the segments follow one another from the last to
    the first. ``TOGETHER`` segments are read at a time, because each read takes long.
    """
    i_h = tl.program_id(1).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    o_e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_e = o_e < SIZE
    o_first = (i_b * n_heads + i_h) * SIZE + o_e
    b_state = tl.zeros([BLOCK], dtype=tl.float32)
    if HAS_FIRST:
        b_state += tl.load(first_ptr + o_first, mask=m_e, other=0.0).to(tl.float32)
    for start in range(0, n_segments, TOGETHER):
        adds = ()
        falls = ()
        for k in tl.static_range(TOGETHER):  # read before any of them is written
            step = start + k
            i_state = _segment(step, n_segments, n_heads, i_b, i_h, BACKWARD)
            size = tl.where(step < n_segments, SIZE, 0)
            b_add = tl.load(states_ptr + i_state * SIZE + o_e, mask=o_e < size, other=0.0)
            adds += (b_add,)  # type: ignore[assignment]
            total = tl.load(total_ptr + tl.where(step < n_segments, i_state, i_b))
            fall = tl.where(step < n_segments, tl.exp(total).to(tl.float32), 1.0)
            falls += (fall,)  # type: ignore[assignment]
        for k in tl.static_range(TOGETHER):
            step = start + k
            i_state = _segment(step, n_segments, n_heads, i_b, i_h, BACKWARD)
            size = tl.where(step < n_segments, SIZE, 0)
            tl.store(states_ptr + i_state * SIZE + o_e, b_state, mask=o_e < size)
            b_state = b_state * falls[k] + adds[k]
    tl.store(last_ptr + o_first, b_state, mask=m_e)


launch_join = launcher(ssd_scan_join_kernel)
