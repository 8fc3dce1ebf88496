"""The Triton kernels of the scan: a walk along the chunks each way, and the joining of segments.

A program walks along the chunks of one segment of the sequence for one head with the state [P, N]
in registers. With few heads and samples the sequence is cut into several segments, so that every
multiprocessor has work: a first walk finds what each segment adds to the state, ``join_kernel``
what each begins with, and a second walk the results.

Running sums of dt A are in FP64, of which there are few, and enter the decays of a chunk, of which
there are many, as two FP32 numbers: their differences are then as exact as FP32 can hold, while
those of FP32 sums would lose what the sums have grown to. With FP32 inputs (``PRECISE``) all that
dA and ddt are summed from is in FP64: these sums cancel.
"""

from __future__ import annotations

from kernels._triton import tl, triton


@triton.jit
def soft_step(raw):
    """softplus of a step size or a block of them, exact to FP32 where 1 + exp would lose digits."""
    wide = tl.minimum(raw, 20.0).to(tl.float64)
    soft = tl.log(1.0 + tl.exp(wide)).to(tl.float32)
    soft = tl.where(raw < -16.0, tl.exp(wide).to(tl.float32), soft)
    return tl.where(raw > 20.0, raw, soft)


@triton.jit
def _steps(dt_ptr, dt_row, o_t, length, bias, a, SOFTPLUS: tl.constexpr):
    """Of a chunk: dt before and after softplus, and the running sums of dt A and their total."""
    m_t = o_t < length
    b_raw = tl.load(dt_ptr + o_t * dt_row, mask=m_t, other=0.0).to(tl.float32) + bias
    b_dt = b_raw
    if SOFTPLUS:
        b_dt = soft_step(b_raw)
    b_dt = tl.where(m_t, b_dt, 0.0)
    b_fall = b_dt.to(tl.float64) * a
    return b_raw, b_dt, tl.cumsum(b_fall, axis=0), tl.sum(b_fall, axis=0)


@triton.jit
def _decays(b_sum, o_q, PRECISE: tl.constexpr):
    """[t, s]: what is left at time t of what came in at time s, 0 for t < s."""
    if PRECISE:
        b_fall = b_sum[:, None] - b_sum[None, :]
    else:
        b_high = b_sum.to(tl.float32)
        b_low = (b_sum - b_high.to(tl.float64)).to(tl.float32)
        b_fall = (b_high[:, None] - b_high[None, :]) + (b_low[:, None] - b_low[None, :])
    return tl.where(o_q[:, None] >= o_q[None, :], tl.exp(b_fall), 0.0)


@triton.jit
def _dot(b_a, b_b, PRECISE: tl.constexpr):
    return tl.dot(b_a, b_b, input_precision="ieee" if PRECISE else "tf32")


@triton.jit
def _add_dot(b_sum, b_a, b_b, PRECISE: tl.constexpr):
    return tl.dot(b_a, b_b, acc=b_sum, input_precision="ieee" if PRECISE else "tf32")


@triton.jit
def scan_kernel(
    x_ptr,
    dt_ptr,
    a_ptr,
    b_ptr,
    c_ptr,
    d_ptr,
    bias_ptr,
    begin_ptr,
    y_ptr,
    end_ptr,
    total_ptr,
    starts_ptr,
    length,
    n_chunks,
    heads_per_group,
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
    HAS_BEGIN: tl.constexpr,
    OUTPUT: tl.constexpr,
    END: tl.constexpr,
    TOTAL: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISE: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """From the state at a segment's begin [B, S, H, P, N]: y, and the state at its end.

    ``TOTAL``: also the sum of dt A of the segment [B, S, H]; ``KEEP``: also the state at the start
    of each chunk [B, chunks, H, P, N].
    """
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
    if OUTPUT:
        y_ptr += i_b * length * n_heads * P + i_h * P
    dt_ptr += i_b * dt_batch + i_h * dt_head
    b_ptr += i_b * b_batch + i_g * b_group
    c_ptr += i_b * c_batch + i_g * c_group
    i_state = (i_b * n_segments + i_s) * n_heads + i_h
    a = tl.load(a_ptr + i_h).to(tl.float64)
    bias = 0.0
    if HAS_BIAS:
        bias = tl.load(bias_ptr + i_h).to(tl.float32)
    if HAS_D:
        d = tl.load(d_ptr + i_h).to(tl.float32)
    b_state = tl.zeros([BLOCK_P, BLOCK_N], dtype=tl.float32)
    if HAS_BEGIN:
        p_begin = begin_ptr + i_state * (P * N) + o_state
        b_state += tl.load(p_begin, mask=m_state, other=0.0).to(tl.float32)
    fallen = tl.zeros([], dtype=tl.float64)
    WIDE: tl.constexpr = tl.float64 if PRECISE else tl.float32
    for chunk in range(0, n_chunks):
        i_c = i_s * n_chunks + chunk
        o_t = i_c * Q + o_q
        m_t = o_t < length
        _, b_dt, b_sum, total = _steps(dt_ptr, dt_row, o_t, length, bias, a, SOFTPLUS)
        m_x = m_t[:, None] & m_p[None, :]
        m_b = m_t[:, None] & m_n[None, :]
        b_x = tl.load(x_ptr + o_t[:, None] * x_row + o_p[None, :], mask=m_x, other=0.0)
        b_b = tl.load(b_ptr + o_t[:, None] * b_row + o_n[None, :], mask=m_b, other=0.0)
        if KEEP:
            i_start = (i_b * (n_segments * n_chunks) + i_c) * n_heads + i_h
            tl.store(starts_ptr + i_start * (P * N) + o_state, b_state, mask=m_state)
        if OUTPUT:
            b_c = tl.load(c_ptr + o_t[:, None] * c_row + o_n[None, :], mask=m_b, other=0.0)
            b_m = _dot(b_c, tl.trans(b_b), PRECISE) * _decays(b_sum, o_q, PRECISE) * b_dt[None, :]
            b_y = _dot(b_c, tl.trans(b_state.to(b_c.dtype)), PRECISE)
            b_y = b_y * tl.exp(b_sum.to(WIDE)).to(tl.float32)[:, None]
            b_y = _add_dot(b_y, b_m.to(b_x.dtype), b_x, PRECISE)
            if HAS_D:
                b_y += b_x.to(tl.float32) * d
            tl.store(y_ptr + o_t[:, None] * (n_heads * P) + o_p[None, :], b_y, mask=m_x)
        b_left = b_dt * tl.exp((total - b_sum).to(WIDE)).to(tl.float32)
        b_u = (b_x.to(tl.float32) * b_left[:, None]).to(b_b.dtype)
        b_state *= tl.exp(total.to(WIDE)).to(tl.float32)
        b_state = _add_dot(b_state, tl.trans(b_u), b_b, PRECISE)
        fallen += total
    if END:
        tl.store(end_ptr + i_state * (P * N) + o_state, b_state, mask=m_state)
    if TOTAL:
        tl.store(total_ptr + i_state, fallen)


@triton.jit
def join_kernel(
    first_ptr,
    states_ptr,
    total_ptr,
    last_ptr,
    n_segments,
    n_heads,
    SIZE: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    BACKWARD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What each segment adds to the state, in place to what it begins with; last: the final state.

    ``BACKWARD``: the segments follow one another from the last to the first.
    """
    i_h = tl.program_id(1).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    o_e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_e = o_e < SIZE
    o_first = (i_b * n_heads + i_h) * SIZE + o_e
    b_state = tl.zeros([BLOCK], dtype=tl.float32)
    if HAS_FIRST:
        b_state += tl.load(first_ptr + o_first, mask=m_e, other=0.0).to(tl.float32)
    for step in range(0, n_segments):
        i_s = n_segments - 1 - step if BACKWARD else step
        i_state = (i_b * n_segments + i_s) * n_heads + i_h
        b_add = tl.load(states_ptr + i_state * SIZE + o_e, mask=m_e, other=0.0)
        tl.store(states_ptr + i_state * SIZE + o_e, b_state, mask=m_e)
        b_state = b_state * tl.exp(tl.load(total_ptr + i_state)).to(tl.float32) + b_add
    tl.store(last_ptr + o_first, b_state, mask=m_e)


@triton.jit
def back_kernel(
    dy_ptr,
    dend_ptr,
    x_ptr,
    dt_ptr,
    a_ptr,
    b_ptr,
    c_ptr,
    d_ptr,
    bias_ptr,
    starts_ptr,
    dx_ptr,
    ddt_ptr,
    db_ptr,
    dc_ptr,
    dbegin_ptr,
    partial_ptr,
    length,
    n_chunks,
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
    HAS_END: tl.constexpr,
    OUTPUT: tl.constexpr,
    BEGIN: tl.constexpr,
    PRECISE: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """From the gradient of the state at a segment's end [B, S, H, P, N]: all gradients.

    ``OUTPUT`` is off for the first walk, which finds only what a segment adds to the gradient of
    the state at its begin. dB and dC are of each head by itself [B, L, H, N]; the partial sums
    [B, S, 3, H] are of dA, dD and d dt_bias.
    """
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
    dy_ptr += i_b * dy_batch + i_h * dy_head
    x_ptr += i_b * x_batch + i_h * x_head
    dt_ptr += i_b * dt_batch + i_h * dt_head
    b_ptr += i_b * b_batch + i_g * b_group
    c_ptr += i_b * c_batch + i_g * c_group
    i_first = i_b * length * n_heads + i_h
    i_state = (i_b * n_segments + i_s) * n_heads + i_h
    a = tl.load(a_ptr + i_h).to(tl.float64)
    bias = 0.0
    if HAS_BIAS:
        bias = tl.load(bias_ptr + i_h).to(tl.float32)
    if HAS_D:
        d = tl.load(d_ptr + i_h).to(tl.float32)
    b_dstate = tl.zeros([BLOCK_P, BLOCK_N], dtype=tl.float32)
    if HAS_END:
        p_end = dend_ptr + i_state * (P * N) + o_state
        b_dstate += tl.load(p_end, mask=m_state, other=0.0).to(tl.float32)
    da = tl.zeros([], dtype=tl.float64)
    dd = tl.zeros([], dtype=tl.float64)
    dbias = tl.zeros([], dtype=tl.float64)
    WIDE: tl.constexpr = tl.float64 if PRECISE else tl.float32
    for chunk in range(0, n_chunks):
        i_c = i_s * n_chunks + n_chunks - 1 - chunk
        o_t = i_c * Q + o_q
        m_t = o_t < length
        b_raw, b_dt, b_sum, total = _steps(dt_ptr, dt_row, o_t, length, bias, a, SOFTPLUS)
        m_x = m_t[:, None] & m_p[None, :]
        m_b = m_t[:, None] & m_n[None, :]
        b_dy = tl.load(dy_ptr + o_t[:, None] * dy_row + o_p[None, :], mask=m_x, other=0.0)
        b_c = tl.load(c_ptr + o_t[:, None] * c_row + o_n[None, :], mask=m_b, other=0.0)
        b_since = tl.exp(b_sum.to(WIDE)).to(tl.float32)
        if OUTPUT:
            o_row = (i_first + o_t * n_heads)[:, None]
            b_narrow = b_dstate.to(b_c.dtype)
            b_until = tl.exp((total - b_sum).to(WIDE)).to(tl.float32)
            i_start = (i_b * (n_segments * n_chunks) + i_c) * n_heads + i_h
            p_start = starts_ptr + i_start * (P * N) + o_state
            b_start = tl.load(p_start, mask=m_state, other=0.0)
            through = tl.sum(tl.sum(b_start.to(WIDE) * b_dstate, axis=1), axis=0)
            b_dc = _dot(b_dy, b_start.to(b_dy.dtype), PRECISE) * b_since[:, None]
            b_from = tl.sum(b_dc * b_c.to(WIDE), axis=1)

            # One large tile after the other, since registers are what this kernel is short of.
            b_x = tl.load(x_ptr + o_t[:, None] * x_row + o_p[None, :], mask=m_x, other=0.0)
            b_b = tl.load(b_ptr + o_t[:, None] * b_row + o_n[None, :], mask=m_b, other=0.0)
            b_decay = _decays(b_sum, o_q, PRECISE)
            b_w = _dot(b_dy, tl.trans(b_x), PRECISE) * b_decay
            b_u = (b_w * b_dt[None, :]).to(b_b.dtype)
            b_dc = _add_dot(b_dc, b_u, b_b, PRECISE)
            tl.store(dc_ptr + o_row * N + o_n[None, :], b_dc, mask=m_b)
            b_db = _dot(b_x, b_narrow, PRECISE) * (b_dt * b_until)[:, None]
            b_db = _add_dot(b_db, tl.trans(b_u), b_c, PRECISE)
            tl.store(db_ptr + o_row * N + o_n[None, :], b_db, mask=m_b)

            # The gradient of dt x: from this chunk, and from those after it.
            b_after = _dot(b_b, tl.trans(b_narrow), PRECISE) * b_until[:, None]
            b_into = tl.sum(b_after * b_x.to(WIDE), axis=1)
            b_scores = _dot(b_c, tl.trans(b_b), PRECISE)
            b_m = (b_scores * b_decay).to(b_dy.dtype)
            b_dx = _add_dot(b_after, tl.trans(b_m), b_dy, PRECISE) * b_dt[:, None]
            if HAS_D:
                b_dx += b_dy.to(tl.float32) * d
                b_seen = tl.sum(b_dy.to(WIDE) * b_x.to(WIDE), axis=1)
                dd += tl.sum(b_seen, axis=0)
            tl.store(dx_ptr + o_row * P + o_p[None, :], b_dx, mask=m_x)

            # The gradient of dt_k A: all that came in before k and left at k or later. With the
            # state before and after the chunk that is, beyond what passes through all of it and
            # what leaves of the state before it, a running sum of what came in less what left. The
            # same numbers are added and taken away, so that in FP64 nothing is lost.
            b_pair = b_w * b_scores
            b_wide = (b_pair * b_dt[None, :]).to(tl.float64)
            b_left = tl.sum(b_wide, axis=1) + b_from.to(tl.float64)
            b_came = tl.sum(b_wide, axis=0) + (b_dt * b_into).to(tl.float64)
            b_net = b_came - b_left
            b_fall = tl.cumsum(b_net, axis=0) - b_net + tl.sum(b_from.to(tl.float64), axis=0)
            b_fall += through * tl.exp(total.to(WIDE)).to(tl.float32)
            b_ddt = tl.sum(b_pair, axis=0) + b_into + b_fall * a
            if SOFTPLUS:
                b_ddt *= 1.0 / (1.0 + tl.exp(-b_raw))
            tl.store(ddt_ptr + i_first + o_t * n_heads, b_ddt, mask=m_t)
            da += tl.sum(b_fall * b_dt, axis=0)
            dbias += tl.sum(tl.where(m_t, b_ddt, 0.0), axis=0)
        b_u = (b_dy.to(tl.float32) * b_since[:, None]).to(b_c.dtype)
        b_dstate *= tl.exp(total.to(WIDE)).to(tl.float32)
        b_dstate = _add_dot(b_dstate, tl.trans(b_u), b_c, PRECISE)
    if BEGIN:
        tl.store(dbegin_ptr + i_state * (P * N) + o_state, b_dstate, mask=m_state)
    if OUTPUT:
        p_partial = partial_ptr + (i_b * n_segments + i_s) * 3 * n_heads + i_h
        tl.store(p_partial, da)
        tl.store(p_partial + n_heads, dd)
        tl.store(p_partial + 2 * n_heads, dbias)
