"""Kernels over the heads of queries and keys: normalise them, rotate them, or both in one pass.

One program processes one token: it reads the tables and weights once for every head of q and of k.
A head's elements are handled as pairs (a, b): (i, i + D/2), or (2i, 2i + 1) if ``INTERLEAVED``. The
launches are in ``_qk``.
"""

from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def load_pair(p_x, m, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    if INTERLEAVED:
        H: tl.constexpr = p_x.shape[0]
        D: tl.constexpr = p_x.shape[1]
        b_a, b_b = tl.split(tl.reshape(tl.load(p_x, mask=m, other=0.0), [H, D // 2, 2]))
    else:
        b_a = tl.load(p_x, mask=m, other=0.0)
        b_b = tl.load(p_x + HALF, mask=m, other=0.0)
    return b_a.to(tl.float32), b_b.to(tl.float32)


@triton.jit
def store_pair(p_y, b_a, b_b, m, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    if INTERLEAVED:
        H: tl.constexpr = p_y.shape[0]
        D: tl.constexpr = p_y.shape[1]
        tl.store(p_y, tl.reshape(tl.join(b_a, b_b), [H, D]), mask=m)
    else:
        tl.store(p_y, b_a, mask=m)
        tl.store(p_y + HALF, b_b, mask=m)


@triton.jit
def _offsets(
    h, HEADS: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Return head and element offsets of a tile, and a mask of those that exist."""
    o_h = (h + tl.arange(0, BLOCK_H)).to(tl.int64)[:, None]
    if INTERLEAVED:
        o_d = tl.arange(0, 2 * BLOCK_D)[None, :]
        m = (o_h < HEADS) & (o_d < 2 * HALF)
    else:
        o_d = tl.arange(0, BLOCK_D)[None, :]
        m = (o_h < HEADS) & (o_d < HALF)
    return o_h, o_d, m


@triton.jit
def load_weights(w_ptr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load the weights of the pairs, [1, BLOCK_D] each."""
    o_d = tl.arange(0, BLOCK_D)
    m = o_d < HALF
    if INTERLEAVED:
        b_a = tl.load(w_ptr + 2 * o_d, mask=m, other=0.0)
        b_b = tl.load(w_ptr + 2 * o_d + 1, mask=m, other=0.0)
    else:
        b_a = tl.load(w_ptr + o_d, mask=m, other=0.0)
        b_b = tl.load(w_ptr + HALF + o_d, mask=m, other=0.0)
    return b_a.to(tl.float32)[None, :], b_b.to(tl.float32)[None, :]


@triton.jit
def load_angles(
    i_b, i_s, cos_ptr, sin_ptr, offset_ptr, offset, positions, table_stride,
    OFFSETS: tl.constexpr, HALF: tl.constexpr, TABLE_STEP: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Load cosines and sines [1, BLOCK_D] of one token; NaN for a position outside the table.

    ``OFFSETS`` 0: positions begin at the number, 1: at one number in memory, 2: at one per batch
    element.
    """
    if OFFSETS == 0:
        position = i_s + offset
    elif OFFSETS == 1:
        position = i_s + tl.load(offset_ptr)
    else:
        position = i_s + tl.load(offset_ptr + i_b)
    o_d = tl.arange(0, BLOCK_D)
    o_position = position + tl.zeros_like(o_d)
    m = (o_d < HALF) & (o_position >= 0) & (o_position < positions)
    o_table = o_position * table_stride + o_d * TABLE_STEP
    b_cos = tl.load(cos_ptr + o_table, mask=m, other=float("nan"))
    b_sin = tl.load(sin_ptr + o_table, mask=m, other=float("nan"))
    # Padding pairs of the block must not turn sums over the head into NaN.
    b_cos = tl.where(o_d < HALF, b_cos.to(tl.float32), 0.0)
    b_sin = tl.where(o_d < HALF, b_sin.to(tl.float32), 0.0)
    return b_cos[None, :], b_sin[None, :]


@triton.jit
def _forward_heads(
    x_ptr, y_ptr, x_head, y_head, w_ptr, b_cos, b_sin,
    HEADS: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr,
    ROPE: tl.constexpr, EPS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    if NORM:
        b_wa, b_wb = load_weights(w_ptr, HALF, INTERLEAVED, BLOCK_D)
    for h in tl.static_range(0, HEADS, BLOCK_H):
        o_h, o_d, m = _offsets(h, HEADS, HALF, INTERLEAVED, BLOCK_H, BLOCK_D)
        b_a, b_b = load_pair(x_ptr + o_h * x_head + o_d, m, HALF, INTERLEAVED)
        if NORM:
            b_r = tl.rsqrt(tl.sum(b_a * b_a + b_b * b_b, axis=1) / (2 * HALF) + EPS)[:, None]
            b_a *= b_r * b_wa
            b_b *= b_r * b_wb
        if ROPE:
            b_t = b_a * b_cos - b_b * b_sin
            b_b = b_b * b_cos + b_a * b_sin
            b_a = b_t
        store_pair(y_ptr + o_h * y_head + o_d, b_a, b_b, m, HALF, INTERLEAVED)


@triton.jit
def _backward_heads(
    x_ptr, dy_ptr, dx_ptr, x_head, dy_head, dx_head, w_ptr, b_cos, b_sin, b_dwa, b_dwb,
    HEADS: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, ROPE: tl.constexpr,
    EPS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute dx of one token's heads, and add their terms to the sums for dweight."""
    b_wa, b_wb = load_weights(w_ptr, HALF, INTERLEAVED, BLOCK_D)
    for h in tl.static_range(0, HEADS, BLOCK_H):
        o_h, o_d, m = _offsets(h, HEADS, HALF, INTERLEAVED, BLOCK_H, BLOCK_D)
        b_a, b_b = load_pair(x_ptr + o_h * x_head + o_d, m, HALF, INTERLEAVED)
        b_ga, b_gb = load_pair(dy_ptr + o_h * dy_head + o_d, m, HALF, INTERLEAVED)
        if ROPE:
            b_t = b_ga * b_cos + b_gb * b_sin
            b_gb = b_gb * b_cos - b_ga * b_sin
            b_ga = b_t
        b_r = tl.rsqrt(tl.sum(b_a * b_a + b_b * b_b, axis=1) / (2 * HALF) + EPS)[:, None]
        if EPS < 1e-37:  # rows of no head would have an infinite factor, and the sums NaN
            b_r = tl.where(o_h < HEADS, b_r, 0.0)
        b_a *= b_r
        b_b *= b_r
        b_dwa += b_ga * b_a
        b_dwb += b_gb * b_b
        b_ga *= b_wa
        b_gb *= b_wb
        b_mean = tl.sum(b_ga * b_a + b_gb * b_b, axis=1)[:, None] / (2 * HALF)
        b_ga = (b_ga - b_a * b_mean) * b_r
        b_gb = (b_gb - b_b * b_mean) * b_r
        store_pair(dx_ptr + o_h * dx_head + o_d, b_ga, b_gb, m, HALF, INTERLEAVED)
    return b_dwa, b_dwb


@triton.jit(do_not_specialize=["offset"])
def qk_forward_kernel(
    q_ptr, k_ptr, q_out_ptr, k_out_ptr, q_weight_ptr, k_weight_ptr,
    cos_ptr, sin_ptr, offset_ptr, offset, length, positions, table_stride,
    q_batch, q_head, q_token, k_batch, k_head, k_token,
    q_out_batch, q_out_head, q_out_token, k_out_batch, k_out_head, k_out_token,
    OFFSETS: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr,
    TABLE_STEP: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr,
    BACKWARD: tl.constexpr, EPS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    i_b = (tl.program_id(0) // length).to(tl.int64)
    i_s = (tl.program_id(0) % length).to(tl.int64)
    b_cos = 0.0
    b_sin = 0.0
    if ROPE:
        b_cos, b_sin = load_angles(
            i_b, i_s, cos_ptr, sin_ptr, offset_ptr, offset, positions, table_stride,
            OFFSETS, HALF, TABLE_STEP, BLOCK_D,
        )  # fmt: skip
        if BACKWARD:
            b_sin = -b_sin
    _forward_heads(
        q_ptr + i_b * q_batch + i_s * q_token, q_out_ptr + i_b * q_out_batch + i_s * q_out_token,
        q_head, q_out_head, q_weight_ptr, b_cos, b_sin,
        Q_HEADS, HALF, INTERLEAVED, NORM, ROPE, EPS, BLOCK_H, BLOCK_D,
    )  # fmt: skip
    _forward_heads(
        k_ptr + i_b * k_batch + i_s * k_token, k_out_ptr + i_b * k_out_batch + i_s * k_out_token,
        k_head, k_out_head, k_weight_ptr, b_cos, b_sin,
        K_HEADS, HALF, INTERLEAVED, NORM, ROPE, EPS, BLOCK_H, BLOCK_D,
    )  # fmt: skip


launch_forward = launcher(qk_forward_kernel)


@triton.jit
def _store_partial(
    p_ptr, b_dwa, b_dwb, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_D: tl.constexpr
):
    o_d = tl.arange(0, BLOCK_D)
    m = o_d < HALF
    if INTERLEAVED:
        tl.store(p_ptr + 2 * o_d, tl.sum(b_dwa, axis=0), mask=m)
        tl.store(p_ptr + 2 * o_d + 1, tl.sum(b_dwb, axis=0), mask=m)
    else:
        tl.store(p_ptr + o_d, tl.sum(b_dwa, axis=0), mask=m)
        tl.store(p_ptr + HALF + o_d, tl.sum(b_dwb, axis=0), mask=m)


@triton.jit(do_not_specialize=["offset"])
def qk_backward_kernel(
    q_ptr, k_ptr, dq_out_ptr, dk_out_ptr, dq_ptr, dk_ptr, q_weight_ptr, k_weight_ptr, partial_ptr,
    cos_ptr, sin_ptr, offset_ptr, offset, n_tokens, length, positions, table_stride,
    q_batch, q_head, q_token, k_batch, k_head, k_token,
    dq_out_batch, dq_out_head, dq_out_token, dk_out_batch, dk_out_head, dk_out_token,
    dq_batch, dq_head, dq_token, dk_batch, dk_head, dk_token,
    OFFSETS: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr,
    TABLE_STEP: tl.constexpr, INTERLEAVED: tl.constexpr, ROPE: tl.constexpr, EPS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # Each program walks over tokens with the stride of the grid and writes its partial sums of the
    # weights' gradients once.
    b_dqa = tl.zeros([BLOCK_H, BLOCK_D], dtype=tl.float32)
    b_dqb = tl.zeros([BLOCK_H, BLOCK_D], dtype=tl.float32)
    b_dka = tl.zeros([BLOCK_H, BLOCK_D], dtype=tl.float32)
    b_dkb = tl.zeros([BLOCK_H, BLOCK_D], dtype=tl.float32)
    for token in tl.range(tl.program_id(0), n_tokens, tl.num_programs(0), num_stages=STAGES):
        i_b = tl.cast(token // length, tl.int64)
        i_s = tl.cast(token % length, tl.int64)
        b_cos = 0.0
        b_sin = 0.0
        if ROPE:
            b_cos, b_sin = load_angles(
                i_b, i_s, cos_ptr, sin_ptr, offset_ptr, offset, positions, table_stride,
                OFFSETS, HALF, TABLE_STEP, BLOCK_D,
            )  # fmt: skip
        b_dqa, b_dqb = _backward_heads(
            q_ptr + i_b * q_batch + i_s * q_token,
            dq_out_ptr + i_b * dq_out_batch + i_s * dq_out_token,
            dq_ptr + i_b * dq_batch + i_s * dq_token,
            q_head, dq_out_head, dq_head, q_weight_ptr, b_cos, b_sin, b_dqa, b_dqb,
            Q_HEADS, HALF, INTERLEAVED, ROPE, EPS, BLOCK_H, BLOCK_D,
        )  # fmt: skip
        b_dka, b_dkb = _backward_heads(
            k_ptr + i_b * k_batch + i_s * k_token,
            dk_out_ptr + i_b * dk_out_batch + i_s * dk_out_token,
            dk_ptr + i_b * dk_batch + i_s * dk_token,
            k_head, dk_out_head, dk_head, k_weight_ptr, b_cos, b_sin, b_dka, b_dkb,
            K_HEADS, HALF, INTERLEAVED, ROPE, EPS, BLOCK_H, BLOCK_D,
        )  # fmt: skip
    p_ptr = partial_ptr + tl.program_id(0).to(tl.int64) * (4 * HALF)
    _store_partial(p_ptr, b_dqa, b_dqb, HALF, INTERLEAVED, BLOCK_D)
    _store_partial(p_ptr + 2 * HALF, b_dka, b_dkb, HALF, INTERLEAVED, BLOCK_D)


launch_backward = launcher(qk_backward_kernel)
