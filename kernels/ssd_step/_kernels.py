"""Triton kernels of one step of the scan.

A forward program processes some rows of one head's state. A backward program processes all rows
block by block, because the head's ddt, dB and dC are sums over the rows. Sums that may cancel,
those of ddt, dA and dD, are in FP64, and so are step sizes: decays magnify their rounding.
"""

from __future__ import annotations

from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton
from kernels.ssd_scan._kernels import wide_soft_step


@triton.jit
def _decay(a_ptr, i_h, LOG_DECAY: tl.constexpr):
    """Load A of a head, in FP64."""
    a = tl.load(a_ptr + i_h).to(tl.float64)
    if LOG_DECAY:
        a = -tl.exp(a)
    return a


@triton.jit
def _raw_step(dt_ptr, bias_ptr, i_b, i_h, dt_batch, dt_head, HAS_BIAS: tl.constexpr):
    """Load the step size of a head with its bias, before softplus, in FP64."""
    raw = tl.load(dt_ptr + i_b * dt_batch + i_h * dt_head).to(tl.float64)
    if HAS_BIAS:
        raw += tl.load(bias_ptr + i_h).to(tl.float64)
    return raw


@triton.jit
def ssd_step_kernel(
    x_ptr,
    dt_ptr,
    a_ptr,
    b_ptr,
    c_ptr,
    state_ptr,
    d_ptr,
    bias_ptr,
    y_ptr,
    new_ptr,
    heads_per_group,
    x_batch,
    x_head,
    dt_batch,
    dt_head,
    b_batch,
    b_group,
    c_batch,
    c_group,
    P: tl.constexpr,
    N: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    LOG_DECAY: tl.constexpr,
    HAS_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IN_PLACE: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute y and the new state, of ``BLOCK_P`` rows of one head's state.

    ``IN_PLACE``: the new state is written over the old one.
    """
    i_h = tl.program_id(1).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    i_g = i_h // heads_per_group
    o_p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    o_n = tl.arange(0, BLOCK_N)
    m_p = o_p < P
    m_n = o_n < N
    # All loads come first: the step size's logarithm would delay what is loaded after it.
    i_head = i_b * tl.num_programs(1) + i_h
    o_state = i_head * (P * N) + o_p[:, None] * N + o_n[None, :]
    m = m_p[:, None] & m_n[None, :]
    b_state = tl.load(state_ptr + o_state, mask=m, other=0.0).to(tl.float32)
    b_b = tl.load(b_ptr + i_b * b_batch + i_g * b_group + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_c = tl.load(c_ptr + i_b * c_batch + i_g * c_group + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_x = tl.load(x_ptr + i_b * x_batch + i_h * x_head + o_p, mask=m_p, other=0.0).to(tl.float32)
    wide_dt = _raw_step(dt_ptr, bias_ptr, i_b, i_h, dt_batch, dt_head, HAS_BIAS)
    decay = _decay(a_ptr, i_h, LOG_DECAY)
    if HAS_D:
        skip = tl.load(d_ptr + i_h).to(tl.float32)
    if SOFTPLUS:
        wide_dt = wide_soft_step(wide_dt)
    b_state *= tl.exp(wide_dt * decay).to(tl.float32)
    b_state += (b_x * wide_dt.to(tl.float32))[:, None] * b_b[None, :]
    if IN_PLACE:
        tl.debug_barrier()  # in a small block, several threads load the same element
    tl.store(new_ptr + o_state, b_state, mask=m)
    b_y = tl.sum(b_state * b_c[None, :], axis=1)
    if HAS_D:
        b_y += b_x * skip
    tl.store(y_ptr + i_head * P + o_p, b_y, mask=m_p)


launch_step = launcher(ssd_step_kernel)


@triton.jit
def ssd_step_backward_kernel(
    dy_ptr,
    dnew_ptr,
    x_ptr,
    dt_ptr,
    a_ptr,
    b_ptr,
    c_ptr,
    state_ptr,
    d_ptr,
    bias_ptr,
    dx_ptr,
    ddt_ptr,
    db_ptr,
    dc_ptr,
    dstate_ptr,
    share_ptr,
    heads_per_group,
    dy_batch,
    dy_head,
    x_batch,
    x_head,
    dt_batch,
    dt_head,
    b_batch,
    b_group,
    c_batch,
    c_group,
    P: tl.constexpr,
    N: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    LOG_DECAY: tl.constexpr,
    HAS_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_DNEW: tl.constexpr,
    DSTATE: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute the gradients of one head of one sample.

    These are dx, ddt, the state's gradient if ``DSTATE``, and partial sums over heads (dB, dC [B,
    H, N]) and over samples ([B, 3, H] of dA or the gradient of log(-A), dD, d dt_bias).
    """
    i_h = tl.program_id(0).to(tl.int64)
    i_b = tl.program_id(1).to(tl.int64)
    n_heads = tl.num_programs(0)
    i_g = i_h // heads_per_group
    i_head = i_b * n_heads + i_h
    o_n = tl.arange(0, BLOCK_N)
    m_n = o_n < N
    raw = _raw_step(dt_ptr, bias_ptr, i_b, i_h, dt_batch, dt_head, HAS_BIAS)
    wide_dt = raw
    if SOFTPLUS:
        wide_dt = wide_soft_step(raw)
    dt = wide_dt.to(tl.float32)
    a = _decay(a_ptr, i_h, LOG_DECAY)
    fall = tl.exp(wide_dt * a)
    b_b = tl.load(b_ptr + i_b * b_batch + i_g * b_group + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_c = tl.load(c_ptr + i_b * c_batch + i_g * c_group + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_db = tl.zeros([BLOCK_N], dtype=tl.float32)
    b_dc = tl.zeros([BLOCK_N], dtype=tl.float32)
    came = tl.zeros([], dtype=tl.float64)
    stayed = tl.zeros([], dtype=tl.float64)
    dd = tl.zeros([], dtype=tl.float64)
    for start in range(0, P, BLOCK_P):
        o_p = start + tl.arange(0, BLOCK_P)
        m_p = o_p < P
        p_x = x_ptr + i_b * x_batch + i_h * x_head + o_p
        p_dy = dy_ptr + i_b * dy_batch + i_h * dy_head + o_p
        b_x = tl.load(p_x, mask=m_p, other=0.0).to(tl.float32)
        b_dy = tl.load(p_dy, mask=m_p, other=0.0).to(tl.float32)
        o_state = i_head * (P * N) + o_p[:, None] * N + o_n[None, :]
        m = m_p[:, None] & m_n[None, :]
        b_state = tl.load(state_ptr + o_state, mask=m, other=0.0).to(tl.float32)
        # The complete gradient of the new state: through y, and its own incoming gradient.
        b_g = b_dy.to(tl.float64)[:, None] * b_c.to(tl.float64)[None, :]
        if HAS_DNEW:
            b_g += tl.load(dnew_ptr + o_state, mask=m, other=0.0).to(tl.float64)
        stayed += tl.sum(tl.sum(b_g * b_state.to(tl.float64), axis=1), axis=0)
        b_du = tl.sum(b_g * b_b.to(tl.float64)[None, :], axis=1)
        came += tl.sum(b_du * b_x.to(tl.float64), axis=0)
        b_dx = b_du.to(tl.float32) * dt
        if HAS_D:
            b_dx += b_dy * tl.load(d_ptr + i_h).to(tl.float32)
            dd += tl.sum(b_dy.to(tl.float64) * b_x.to(tl.float64), axis=0)
        tl.store(dx_ptr + i_head * P + o_p, b_dx, mask=m_p)
        if DSTATE:
            tl.store(dstate_ptr + o_state, (b_g * fall).to(tl.float32), mask=m)
        b_u = (b_x * dt)[:, None]
        b_db += tl.sum(b_g.to(tl.float32) * b_u, axis=0)
        b_new = b_state * fall.to(tl.float32) + b_u * b_b[None, :]
        b_dc += tl.sum(b_new * b_dy[:, None], axis=0)
    tl.store(db_ptr + i_head * N + o_n, b_db, mask=m_n)
    tl.store(dc_ptr + i_head * N + o_n, b_dc, mask=m_n)
    ddt = came + stayed * fall * a
    if SOFTPLUS:
        ddt *= 1.0 / (1.0 + tl.exp(-raw))
    tl.store(ddt_ptr + i_head, ddt.to(tl.float32))
    p_share = share_ptr + i_b * 3 * n_heads + i_h
    da = stayed * fall * wide_dt
    if LOG_DECAY:
        da *= a
    tl.store(p_share, da)
    tl.store(p_share + n_heads, dd)
    tl.store(p_share + 2 * n_heads, ddt)


launch_backward = launcher(ssd_step_backward_kernel)
