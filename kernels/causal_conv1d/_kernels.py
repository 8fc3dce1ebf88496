"""Triton kernels of the causal convolution: one walk along a stretch of rows in each direction.

Masks of a row under a condition compare the channels with either all channels or none. Four rows
are processed at a time and loaded before any is stored, because the compiler cannot move a load
above a store. The next rows are prefetched meanwhile (``STAGES``); the three rows before them stay
in registers.
"""

from __future__ import annotations

from kernels._gated import activate
from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def _weights(weight_ptr, stride, o_d, m_d, W: tl.constexpr):
    """Load the weights of the current row and of the three before it; 0 beyond the width."""
    p_w = weight_ptr + o_d * stride + W - 1
    b_w0 = tl.load(p_w, mask=m_d, other=0.0).to(tl.float32)
    b_w1 = tl.load(p_w - 1, mask=m_d, other=0.0).to(tl.float32)
    b_w2 = tl.zeros_like(b_w0)
    b_w3 = tl.zeros_like(b_w0)
    if W > 2:
        b_w2 += tl.load(p_w - 2, mask=m_d, other=0.0).to(tl.float32)
    if W > 3:
        b_w3 += tl.load(p_w - 3, mask=m_d, other=0.0).to(tl.float32)
    return b_w0, b_w1, b_w2, b_w3


@triton.jit
def _row(x_ptr, state_ptr, t, length, x_row, o_d, dim, W: tl.constexpr, HAS_STATE: tl.constexpr):
    """Load row ``t`` of the sequence after its state; 0 before both and after the end."""
    b_x = tl.load(
        x_ptr + t * x_row + o_d, mask=o_d < tl.where((t >= 0) & (t < length), dim, 0), other=0.0
    )
    b_x = b_x.to(tl.float32)
    if HAS_STATE:
        m = o_d < tl.where((t < 0) & (t >= -W), dim, 0)
        b_x += tl.load(state_ptr + o_d * W + W + t, mask=m, other=0.0).to(tl.float32)
    return b_x


@triton.jit
def _store_row(y_ptr, b_p, t, length, y_row, o_d, dim, SILU: tl.constexpr):
    if SILU:
        b_p, _ = activate(b_p, "silu")
    tl.store(y_ptr + t * y_row + o_d, b_p, mask=o_d < tl.where(t < length, dim, 0))


@triton.jit
def causal_conv1d_forward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    state_ptr,
    y_ptr,
    final_ptr,
    length,
    dim,
    x_batch,
    x_row,
    weight_row,
    W: tl.constexpr,
    SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_STATE: tl.constexpr,
    IN_PLACE: tl.constexpr,
    STRETCH: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute rows of the stretch and, in the first one, the final state.

    ``IN_PLACE``: the final state is written over the initial one. Other stretches do not read that,
    because a stretch has at least three rows.
    """
    i_b = tl.program_id(2).to(tl.int64)
    begin = tl.program_id(1).to(tl.int64) * STRETCH
    o_d = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < dim
    x_ptr += i_b * x_batch
    y_ptr += i_b * length * dim
    if HAS_STATE:
        state_ptr += i_b * dim * W
    b_w0, b_w1, b_w2, b_w3 = _weights(weight_ptr, weight_row, o_d, m_d, W)
    b_bias = tl.zeros([BLOCK_D], dtype=tl.float32)
    if HAS_BIAS:
        b_bias += tl.load(bias_ptr + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_1 = _row(x_ptr, state_ptr, begin - 1, length, x_row, o_d, dim, W, HAS_STATE)
    b_2 = _row(x_ptr, state_ptr, begin - 2, length, x_row, o_d, dim, W, HAS_STATE)
    b_3 = _row(x_ptr, state_ptr, begin - 3, length, x_row, o_d, dim, W, HAS_STATE)
    for step in tl.range(0, STRETCH, 4, num_stages=STAGES):
        t = begin + step
        b_a = _row(x_ptr, state_ptr, t, length, x_row, o_d, dim, W, False)
        b_b = _row(x_ptr, state_ptr, t + 1, length, x_row, o_d, dim, W, False)
        b_c = _row(x_ptr, state_ptr, t + 2, length, x_row, o_d, dim, W, False)
        b_d = _row(x_ptr, state_ptr, t + 3, length, x_row, o_d, dim, W, False)
        b_p = b_bias + b_3 * b_w3 + b_2 * b_w2 + b_1 * b_w1 + b_a * b_w0
        _store_row(y_ptr, b_p, t, length, dim, o_d, dim, SILU)
        b_p = b_bias + b_2 * b_w3 + b_1 * b_w2 + b_a * b_w1 + b_b * b_w0
        _store_row(y_ptr, b_p, t + 1, length, dim, o_d, dim, SILU)
        b_p = b_bias + b_1 * b_w3 + b_a * b_w2 + b_b * b_w1 + b_c * b_w0
        _store_row(y_ptr, b_p, t + 2, length, dim, o_d, dim, SILU)
        b_p = b_bias + b_a * b_w3 + b_b * b_w2 + b_c * b_w1 + b_d * b_w0
        _store_row(y_ptr, b_p, t + 3, length, dim, o_d, dim, SILU)
        b_1, b_2, b_3 = b_d, b_c, b_b
    if tl.program_id(1) == 0:
        t = tl.cast(length, tl.int64) - W
        b_a = _row(x_ptr, state_ptr, t, length, x_row, o_d, dim, W, HAS_STATE)
        b_b = _row(x_ptr, state_ptr, t + 1, length, x_row, o_d, dim, W, HAS_STATE)
        b_c = _row(x_ptr, state_ptr, t + 2, length, x_row, o_d, dim, W, HAS_STATE)
        b_d = _row(x_ptr, state_ptr, t + 3, length, x_row, o_d, dim, W, HAS_STATE)
        if IN_PLACE:
            tl.debug_barrier()  # the threads that store a row may not be those that load it
        p_final = final_ptr + (i_b * dim + o_d) * W
        tl.store(p_final, b_a, mask=m_d)
        tl.store(p_final + 1, b_b, mask=m_d)
        if W > 2:
            tl.store(p_final + 2, b_c, mask=m_d)
        if W > 3:
            tl.store(p_final + 3, b_d, mask=m_d)


launch_forward = launcher(causal_conv1d_forward_kernel)


@triton.jit
def _slope(dy_ptr, b_p, t, length, dy_row, o_d, dim, SILU: tl.constexpr):
    """Return the gradient of the sum ``b_p`` of row ``t``; 0 outside of the sequence."""
    m = o_d < tl.where((t >= 0) & (t < length), dim, 0)
    b_u = tl.load(dy_ptr + t * dy_row + o_d, mask=m, other=0.0).to(tl.float32)
    if SILU:
        _, b_slope = activate(b_p, "silu")
        b_u *= b_slope
    return b_u


@triton.jit
def _store_slope(
    dx_ptr,
    dstate_ptr,
    dfinal_ptr,
    b_dx,
    t,
    begin,
    end,
    length,
    dx_row,
    o_d,
    dim,
    W: tl.constexpr,
    HAS_STATE: tl.constexpr,
    HAS_DFINAL: tl.constexpr,
):
    """Store the gradient of row ``t``, if it is from ``begin`` to ``end`` or one of the state's."""
    if HAS_DFINAL:
        w = t - length + W
        if w >= 0:
            m_final = o_d < tl.where(w < W, dim, 0)
            b_dx += tl.load(dfinal_ptr + o_d * W + w, mask=m_final, other=0.0).to(tl.float32)
    tl.store(dx_ptr + t * dx_row + o_d, b_dx, mask=o_d < tl.where((t >= begin) & (t < end), dim, 0))
    if HAS_STATE:
        before = t < 0  # only the first stretch has such rows
        if before:
            m = o_d < tl.where(t > -W, dim, 0)
            tl.store(dstate_ptr + o_d * W + W + t, b_dx, mask=m)


@triton.jit
def causal_conv1d_backward_kernel(
    dy_ptr,
    dfinal_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    state_ptr,
    dx_ptr,
    dstate_ptr,
    partial_ptr,
    length,
    dim,
    dy_batch,
    dy_row,
    x_batch,
    x_row,
    weight_row,
    W: tl.constexpr,
    SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_STATE: tl.constexpr,
    HAS_DFINAL: tl.constexpr,
    STRETCH: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute rows of the stretch, and partial sums: W of dweight and one of dbias."""
    i_b = tl.program_id(2).to(tl.int64)
    begin = tl.program_id(1).to(tl.int64) * STRETCH
    end = tl.minimum(begin + STRETCH, length)
    o_d = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < dim
    x_ptr += i_b * x_batch
    dy_ptr += i_b * dy_batch
    dx_ptr += i_b * length * dim
    if HAS_DFINAL:
        dfinal_ptr += i_b * dim * W
    if HAS_STATE:
        state_ptr += i_b * dim * W
        dstate_ptr += i_b * dim * W
    b_w0, b_w1, b_w2, b_w3 = _weights(weight_ptr, weight_row, o_d, m_d, W)
    b_bias = tl.zeros([BLOCK_D], dtype=tl.float32)
    if HAS_BIAS:
        b_bias += tl.load(bias_ptr + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_1 = _row(x_ptr, state_ptr, begin - 1, length, x_row, o_d, dim, W, HAS_STATE)
    b_2 = _row(x_ptr, state_ptr, begin - 2, length, x_row, o_d, dim, W, HAS_STATE)
    b_3 = _row(x_ptr, state_ptr, begin - 3, length, x_row, o_d, dim, W, HAS_STATE)
    b_u1 = tl.zeros([BLOCK_D], dtype=tl.float32)
    b_u2 = tl.zeros([BLOCK_D], dtype=tl.float32)
    b_u3 = tl.zeros([BLOCK_D], dtype=tl.float32)
    b_dw0 = tl.zeros([BLOCK_D], dtype=tl.float32)
    b_dw1 = tl.zeros([BLOCK_D], dtype=tl.float32)
    b_dw2 = tl.zeros([BLOCK_D], dtype=tl.float32)
    b_dw3 = tl.zeros([BLOCK_D], dtype=tl.float32)
    b_dbias = tl.zeros([BLOCK_D], dtype=tl.float32)
    # dx of a row needs the gradients of three rows after it: the walk ends four rows past the end.
    for step in tl.range(0, STRETCH + 4, 4, num_stages=STAGES):
        t = begin + step
        b_a = _row(x_ptr, state_ptr, t, length, x_row, o_d, dim, W, False)
        b_b = _row(x_ptr, state_ptr, t + 1, length, x_row, o_d, dim, W, False)
        b_c = _row(x_ptr, state_ptr, t + 2, length, x_row, o_d, dim, W, False)
        b_d = _row(x_ptr, state_ptr, t + 3, length, x_row, o_d, dim, W, False)
        b_p = b_bias + b_3 * b_w3 + b_2 * b_w2 + b_1 * b_w1 + b_a * b_w0
        b_ua = _slope(dy_ptr, b_p, t, length, dy_row, o_d, dim, SILU)
        b_p = b_bias + b_2 * b_w3 + b_1 * b_w2 + b_a * b_w1 + b_b * b_w0
        b_ub = _slope(dy_ptr, b_p, t + 1, length, dy_row, o_d, dim, SILU)
        b_p = b_bias + b_1 * b_w3 + b_a * b_w2 + b_b * b_w1 + b_c * b_w0
        b_uc = _slope(dy_ptr, b_p, t + 2, length, dy_row, o_d, dim, SILU)
        b_p = b_bias + b_a * b_w3 + b_b * b_w2 + b_c * b_w1 + b_d * b_w0
        b_ud = _slope(dy_ptr, b_p, t + 3, length, dy_row, o_d, dim, SILU)
        if step < STRETCH:
            b_dw0 = b_dw0 + b_ua * b_a + b_ub * b_b + b_uc * b_c + b_ud * b_d
            b_dw1 = b_dw1 + b_ua * b_1 + b_ub * b_a + b_uc * b_b + b_ud * b_c
            b_dw2 = b_dw2 + b_ua * b_2 + b_ub * b_1 + b_uc * b_a + b_ud * b_b
            b_dw3 = b_dw3 + b_ua * b_3 + b_ub * b_2 + b_uc * b_1 + b_ud * b_a
            b_dbias += b_ua + b_ub + b_uc + b_ud
        b_dx = b_ua * b_w3 + b_u1 * b_w2 + b_u2 * b_w1 + b_u3 * b_w0
        _store_slope(
            dx_ptr, dstate_ptr, dfinal_ptr, b_dx, t - 3, begin, end, length, dim, o_d, dim, W,
            HAS_STATE, HAS_DFINAL,
        )  # fmt: skip
        b_dx = b_ub * b_w3 + b_ua * b_w2 + b_u1 * b_w1 + b_u2 * b_w0
        _store_slope(
            dx_ptr, dstate_ptr, dfinal_ptr, b_dx, t - 2, begin, end, length, dim, o_d, dim, W,
            HAS_STATE, HAS_DFINAL,
        )  # fmt: skip
        b_dx = b_uc * b_w3 + b_ub * b_w2 + b_ua * b_w1 + b_u1 * b_w0
        _store_slope(
            dx_ptr, dstate_ptr, dfinal_ptr, b_dx, t - 1, begin, end, length, dim, o_d, dim, W,
            HAS_STATE, HAS_DFINAL,
        )  # fmt: skip
        b_dx = b_ud * b_w3 + b_uc * b_w2 + b_ub * b_w1 + b_ua * b_w0
        _store_slope(
            dx_ptr, dstate_ptr, dfinal_ptr, b_dx, t, begin, end, length, dim, o_d, dim, W,
            HAS_STATE, HAS_DFINAL,
        )  # fmt: skip
        b_1, b_2, b_3 = b_d, b_c, b_b
        b_u1, b_u2, b_u3 = b_ud, b_uc, b_ub
    i_p = i_b * tl.num_programs(1) + tl.program_id(1)
    p_partial = partial_ptr + i_p * (W + 1) * dim + o_d * W + W - 1
    tl.store(p_partial, b_dw0, mask=m_d)
    tl.store(p_partial - 1, b_dw1, mask=m_d)
    if W > 2:
        tl.store(p_partial - 2, b_dw2, mask=m_d)
    if W > 3:
        tl.store(p_partial - 3, b_dw3, mask=m_d)
    tl.store(partial_ptr + (i_p * (W + 1) + W) * dim + o_d, b_dbias, mask=m_d)
    if HAS_STATE:
        # No row sees the oldest value of the state.
        tl.store(
            dstate_ptr + o_d * W,
            tl.zeros([BLOCK_D], tl.float32),
            mask=o_d < tl.where(begin == 0, dim, 0),
        )


launch_backward = launcher(causal_conv1d_backward_kernel)
