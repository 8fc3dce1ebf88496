"""Attention kernels whose heads differ in rank and precision, both read by the kernel.

Rows are packed as in ``kernels.attention._flash_kernels``, whose loops these kernels use. A program
reads its head's rank and branches once to the loop whose tiles of queries and keys are as wide as
the rank needs: the padded head dimension shifted right by 0 ... WIDTHS - 1. ``_launch`` launches.
"""

from kernels.attention._flash_kernels import (
    add_to_dkdv,
    add_to_dq,
    attend,
    key_range,
    row_range,
)
from kernels.attention._order import tile_coordinates
from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def adaptive_attention_narrow_kernel(
    x_ptr, near_ptr, low_ptr, unit_ptr, bits_ptr, n_rows, tokens, x_batch, x_head, x_token,
    near_batch, near_head, near_token,
    HEADS: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Round rows of x to multiples of their own unit, a power of two, with few bits.

    ``low`` [rows, D] holds the multiples and ``unit`` [rows] the units; ``near`` is their product
    where the head's precision is at most ``BITS``, elsewhere x.
    """
    o_n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_d = tl.arange(0, BLOCK_D)
    m_n = o_n < n_rows
    m = m_n[:, None] & (o_d < D)[None, :]
    o_t, o_h, o_b = o_n % tokens, (o_n // tokens) % HEADS, o_n // (tokens * HEADS)
    o_x = o_b * x_batch + o_h * x_head + o_t * x_token
    b_x = tl.load(x_ptr + o_x[:, None] + o_d[None, :], mask=m, other=0.0).to(tl.float32)
    b_bits = tl.load(bits_ptr + o_h // R, mask=m_n, other=32)
    # Biased exponents: the largest element becomes a multiple from 128 to 256.
    b_top = tl.max(tl.abs(b_x), axis=1).to(tl.int32, bitcast=True)
    b_e = tl.maximum(b_top >> 23, 16)
    b_unit = ((b_e - 7) << 23).to(tl.float32, bitcast=True)
    b_y = b_x * ((261 - b_e) << 23).to(tl.float32, bitcast=True)[:, None]
    if BITS == 8:
        # Round to E4M3 here, by adding a number of 2^20 times the size: the interpreter's own
        # conversion does not round to nearest. Below 2^-6 the steps are those of 2^-6.
        b_ey = tl.maximum((b_y.to(tl.int32, bitcast=True) >> 23) & 255, 121)
        b_big = ((b_ey + 20) << 23).to(tl.float32, bitcast=True) * 1.5
        b_y = (b_y + b_big) - b_big
    else:
        b_y = b_y.to(tl.float16).to(tl.float32)
    # From here on b_y is exact in low's dtype. It is not read back from there: on an H200 that gave
    # the elements of FP8 in another order.
    b_low = b_y.to(low_ptr.dtype.element_ty)
    b_near = tl.where((b_bits <= BITS)[:, None], b_y * b_unit[:, None], b_x)
    o_near = o_b * near_batch + o_h * near_head + o_t * near_token
    tl.store(near_ptr + o_near[:, None] + o_d[None, :], b_near, mask=m)
    tl.store(low_ptr + o_n[:, None] * D + o_d[None, :], b_low, mask=m)
    tl.store(unit_ptr + o_n, b_unit, mask=m_n)


launch_narrow = launcher(adaptive_attention_narrow_kernel)


@triton.jit
def _rank(rank_ptr, i_g, D: tl.constexpr, RANKED: tl.constexpr):
    """Load the head's rank, clamped to 1 ... D."""
    rank = tl.cast(D, tl.int32)
    if RANKED:
        rank = tl.minimum(tl.maximum(tl.load(rank_ptr + i_g).to(tl.int32), 1), rank)
    return rank


@triton.jit
def _scale(rank, SCALE: tl.constexpr):
    """Return the given scale, or 1 / sqrt(rank) if it is 0."""
    scale = tl.rsqrt(rank.to(tl.float32))
    if SCALE != 0.0:
        scale = scale * 0.0 + SCALE
    return scale


@triton.jit
def _attend_all(
    b_acc, b_l, b_m, q_ptr, q_unit_ptr, k_ptr, k_unit_ptr, v_ptr, q_head, q_token,
    k_token, v_token, o_h, o_s, o_p, o_d, edge, high, length, end, rank, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
    BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Run the complete softmax with queries and keys of at most BLOCK_C columns."""
    o_c = tl.arange(0, BLOCK_C)
    m_s = o_s < length
    p_q = q_ptr + o_h[:, None] * q_head + o_s.to(tl.int64)[:, None] * q_token + o_c[None, :]
    b_q = tl.load(p_q, mask=m_s[:, None] & (o_c < rank)[None, :], other=0.0)
    if UNITS:
        scale = scale * tl.load(q_unit_ptr + o_h * length + o_s, mask=m_s, other=0.0)
    b_acc, b_l, b_m = attend(
        b_acc, b_l, b_m, b_q, k_ptr, k_unit_ptr, v_ptr, k_token, v_token, o_p, o_c, o_d,
        0, edge, end, 0, rank, scale, D, CAUSAL, False, False, UNITS, N, PRECISION,
    )  # fmt: skip
    b_acc, b_l, b_m = attend(
        b_acc, b_l, b_m, b_q, k_ptr, k_unit_ptr, v_ptr, k_token, v_token, o_p, o_c, o_d,
        edge, high, end, 0, rank, scale, D, CAUSAL, False, True, UNITS, N, PRECISION,
    )  # fmt: skip
    return b_acc, b_l, b_m


@triton.jit
def _attend_at(
    b_acc, b_l, b_m, q_ptr, q_low_ptr, q_unit_ptr, k_ptr, k_low_ptr, k_unit_ptr, v_ptr,
    q_head, q_token, k_token, v_token, o_h, o_s, o_p, o_d, edge, high, length, keys, rank, scale,
    bits,
    D: tl.constexpr, CAUSAL: tl.constexpr, BITS: tl.constexpr, N: tl.constexpr,
    BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Run ``_attend_all`` at the head's precision."""
    if BITS != 0:
        if bits <= BITS:
            b_acc, b_l, b_m = _attend_all(
                b_acc, b_l, b_m, q_low_ptr, q_unit_ptr, k_low_ptr, k_unit_ptr, v_ptr,
                length * D, D, D, v_token, o_h, o_s, o_p, o_d, edge, high, length, keys,
                rank, scale, D, CAUSAL, True, N, BLOCK_C, PRECISION,
            )  # fmt: skip
        else:
            b_acc, b_l, b_m = _attend_all(
                b_acc, b_l, b_m, q_ptr, q_unit_ptr, k_ptr, k_unit_ptr, v_ptr,
                q_head, q_token, k_token, v_token, o_h, o_s, o_p, o_d, edge, high, length, keys,
                rank, scale, D, CAUSAL, False, N, BLOCK_C, PRECISION,
            )  # fmt: skip
    else:
        b_acc, b_l, b_m = _attend_all(
            b_acc, b_l, b_m, q_ptr, q_unit_ptr, k_ptr, k_unit_ptr, v_ptr,
            q_head, q_token, k_token, v_token, o_h, o_s, o_p, o_d, edge, high, length, keys,
            rank, scale, D, CAUSAL, False, N, BLOCK_C, PRECISION,
        )  # fmt: skip
    return b_acc, b_l, b_m


@triton.jit
def adaptive_attention_forward_kernel(
    q_ptr, q_low_ptr, q_unit_ptr, k_ptr, k_low_ptr, k_unit_ptr, v_ptr, out_ptr, lse_ptr,
    rank_ptr, bits_ptr, length, keys,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    out_batch, out_head, out_token,
    GROUPS: tl.constexpr, TOGETHER: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, RANKED: tl.constexpr, BITS: tl.constexpr, WIDTHS: tl.constexpr,
    KEEP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n_blocks = tl.cdiv(length * R, M)
    n_groups = tl.num_programs(0) // n_blocks
    i_bg, i_block = tile_coordinates(tl.program_id(0), n_groups, n_blocks, TOGETHER)
    i_m = n_blocks - 1 - i_block
    i_b = (i_bg // GROUPS).to(tl.int64)
    i_g = (i_bg % GROUPS).to(tl.int64)
    shift = keys - length
    o_m = i_m * M + tl.arange(0, M)
    o_s = o_m // R
    o_r = (o_m % R).to(tl.int64)
    o_d = tl.arange(0, BLOCK_D)
    o_p = shift + o_s
    rank = _rank(rank_ptr, i_g, D, RANKED)
    scale = _scale(rank, SCALE)
    bits = rank * 0
    if BITS != 0:
        bits = tl.load(bits_ptr + i_g).to(tl.int32)
        o_row = (i_b * GROUPS + i_g) * R * length
        q_low_ptr += o_row * D
        q_unit_ptr += o_row
        k_low_ptr += (i_b * GROUPS + i_g) * keys * D
        k_unit_ptr += (i_b * GROUPS + i_g) * keys
    q_ptr += i_b * q_batch + i_g * R * q_head
    k_ptr += i_b * k_batch + i_g * k_head
    v_ptr += i_b * v_batch + i_g * v_head
    first = shift + (i_m * M) // R
    last = shift + tl.minimum((i_m * M + M - 1) // R, length - 1)
    _, _, edge, high = key_range(first, last, keys, 0, CAUSAL, False, N)
    b_acc = tl.zeros([M, BLOCK_D], dtype=tl.float32)
    b_l = tl.zeros([M], dtype=tl.float32)
    b_m = tl.full([M], float("-inf"), dtype=tl.float32)
    for i in tl.static_range(WIDTHS):
        if (rank <= (BLOCK_D >> i)) & (rank > (BLOCK_D >> (i + 1)) * (i + 1 < WIDTHS)):
            b_acc, b_l, b_m = _attend_at(
                b_acc, b_l, b_m, q_ptr, q_low_ptr, q_unit_ptr, k_ptr, k_low_ptr, k_unit_ptr, v_ptr,
                q_head, q_token, k_token, v_token, o_r, o_s, o_p, o_d, edge, high, length, keys,
                rank, scale, bits, D, CAUSAL, BITS, N, BLOCK_D >> i, PRECISION,
            )  # fmt: skip
    m_s = o_s < length
    p_out = out_ptr + i_b * out_batch + (i_g * R + o_r)[:, None] * out_head
    p_out += o_s.to(tl.int64)[:, None] * out_token + o_d[None, :]
    # Every row has seen a key; beyond the last row, sums are of meaningless weights.
    tl.store(p_out, b_acc / b_l[:, None], mask=m_s[:, None] & (o_d < D)[None, :])
    if KEEP:
        p_lse = lse_ptr + ((i_b * GROUPS + i_g) * R + o_r) * length + o_s
        tl.store(p_lse, b_m + tl.log2(b_l), mask=m_s)


launch_forward = launcher(adaptive_attention_forward_kernel)


@triton.jit
def _dkdv(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    q_head, q_token, k_token, v_token, dout_head, dout_token, dk_token, dv_token,
    i_n, length, keys, rank, scale,
    R: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o_k = i_n * N + tl.arange(0, N)
    o_c = tl.arange(0, BLOCK_C)
    o_d = tl.arange(0, BLOCK_D)
    o_kt = o_k.to(tl.int64)[:, None]
    m_kc = (o_k < keys)[:, None] & (o_c < rank)[None, :]
    m_kd = (o_k < keys)[:, None] & (o_d < D)[None, :]
    b_k = tl.load(k_ptr + o_kt * k_token + o_c[None, :], mask=m_kc, other=0.0)
    b_v = tl.load(v_ptr + o_kt * v_token + o_d[None, :], mask=m_kd, other=0.0)
    shift = keys - length
    low, full, _, high = row_range(i_n * N, length * R, shift, 0, R, CAUSAL, False, M, N)
    high = tl.maximum(high, low)
    full = tl.minimum(full, high)
    b_dk = tl.zeros([N, BLOCK_C], dtype=tl.float32)
    b_dv = tl.zeros([N, BLOCK_D], dtype=tl.float32)
    if CAUSAL:
        b_dk, b_dv = add_to_dkdv(
            b_dk, b_dv, b_k, b_v, q_ptr, dout_ptr, lse_ptr, delta_ptr, q_head, q_token,
            dout_head, dout_token, o_k, o_c, o_d, low, full, length, shift, keys, 0,
            rank, scale, R, D, CAUSAL, False, True, M, PRECISION,
        )  # fmt: skip
    b_dk, b_dv = add_to_dkdv(
        b_dk, b_dv, b_k, b_v, q_ptr, dout_ptr, lse_ptr, delta_ptr, q_head, q_token,
        dout_head, dout_token, o_k, o_c, o_d, full, high, length, shift, keys, 0,
        rank, scale, R, D, CAUSAL, False, False, M, PRECISION,
    )  # fmt: skip
    tl.store(dk_ptr + o_kt * dk_token + o_c[None, :], b_dk * scale, mask=m_kc)
    b_none = tl.zeros([N, BLOCK_D], dtype=tl.float32)
    m_past = m_kd & (o_d >= rank)[None, :]
    tl.store(dk_ptr + o_kt * dk_token + o_d[None, :], b_none, mask=m_past)
    tl.store(dv_ptr + o_kt * dv_token + o_d[None, :], b_dv, mask=m_kd)


@triton.jit
def adaptive_attention_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, rank_ptr, length, keys,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    dout_batch, dout_head, dout_token, dk_batch, dk_head, dk_token, dv_batch, dv_head, dv_token,
    GROUPS: tl.constexpr, TOGETHER: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, RANKED: tl.constexpr, WIDTHS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute gradients of one block of keys and values; dk's columns beyond the rank are 0."""
    n_blocks = tl.cdiv(keys, N)
    n_groups = tl.num_programs(0) // n_blocks
    i_bg, i_n = tile_coordinates(tl.program_id(0), n_groups, n_blocks, TOGETHER)
    i_b = (i_bg // GROUPS).to(tl.int64)
    i_g = (i_bg % GROUPS).to(tl.int64)
    rank = _rank(rank_ptr, i_g, D, RANKED)
    scale = _scale(rank, SCALE)
    q_ptr += i_b * q_batch + i_g * R * q_head
    k_ptr += i_b * k_batch + i_g * k_head
    v_ptr += i_b * v_batch + i_g * v_head
    dout_ptr += i_b * dout_batch + i_g * R * dout_head
    dk_ptr += i_b * dk_batch + i_g * dk_head
    dv_ptr += i_b * dv_batch + i_g * dv_head
    lse_ptr += (i_b * GROUPS + i_g) * R * length
    delta_ptr += (i_b * GROUPS + i_g) * R * length
    for i in tl.static_range(WIDTHS):
        if (rank <= (BLOCK_D >> i)) & (rank > (BLOCK_D >> (i + 1)) * (i + 1 < WIDTHS)):
            _dkdv(
                q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
                q_head, q_token, k_token, v_token, dout_head, dout_token, dk_token, dv_token,
                i_n, length, keys, rank, scale,
                R, D, CAUSAL, M, N, BLOCK_D >> i, BLOCK_D, PRECISION,
            )  # fmt: skip


launch_dkdv = launcher(adaptive_attention_dkdv_kernel)


@triton.jit
def _dq(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr,
    q_head, q_token, k_token, v_token, dout_head, dout_token, dq_head, dq_token,
    i_m, length, keys, rank, scale,
    R: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o_m = i_m * M + tl.arange(0, M)
    o_s = o_m // R
    o_r = (o_m % R).to(tl.int64)
    o_st = o_s.to(tl.int64)[:, None]
    o_c = tl.arange(0, BLOCK_C)
    o_d = tl.arange(0, BLOCK_D)
    m_m = o_s < length
    m_mc = m_m[:, None] & (o_c < rank)[None, :]
    m_md = m_m[:, None] & (o_d < D)[None, :]
    p_q = q_ptr + o_r[:, None] * q_head + o_st * q_token + o_c[None, :]
    b_q = tl.load(p_q, mask=m_mc, other=0.0)
    p_do = dout_ptr + o_r[:, None] * dout_head + o_st * dout_token + o_d[None, :]
    b_do = tl.load(p_do, mask=m_md, other=0.0)
    b_lse = tl.load(lse_ptr + o_r * length + o_s, mask=m_m, other=float("inf"))
    b_delta = tl.load(delta_ptr + o_r * length + o_s, mask=m_m, other=0.0)
    shift = keys - length
    o_p = shift + o_s
    first = shift + (i_m * M) // R
    last = shift + tl.minimum((i_m * M + M - 1) // R, length - 1)
    _, _, edge, high = key_range(first, last, keys, 0, CAUSAL, False, N)
    b_dq = tl.zeros([M, BLOCK_C], dtype=tl.float32)
    b_dq = add_to_dq(
        b_dq, b_q, b_do, b_lse, b_delta, k_ptr, v_ptr, k_token, v_token, o_p, o_c, o_d, 0, edge,
        keys, 0, rank, scale, D, CAUSAL, False, False, N, PRECISION,
    )  # fmt: skip
    b_dq = add_to_dq(
        b_dq, b_q, b_do, b_lse, b_delta, k_ptr, v_ptr, k_token, v_token, o_p, o_c, o_d, edge, high,
        keys, 0, rank, scale, D, CAUSAL, False, True, N, PRECISION,
    )  # fmt: skip
    p_dq = dq_ptr + o_r[:, None] * dq_head + o_st * dq_token + o_c[None, :]
    tl.store(p_dq, b_dq * scale, mask=m_mc)
    p_past = dq_ptr + o_r[:, None] * dq_head + o_st * dq_token + o_d[None, :]
    b_none = tl.zeros([M, BLOCK_D], dtype=tl.float32)
    tl.store(p_past, b_none, mask=m_md & (o_d >= rank)[None, :])


@triton.jit
def adaptive_attention_dq_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, rank_ptr, length, keys,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    dout_batch, dout_head, dout_token, dq_batch, dq_head, dq_token,
    GROUPS: tl.constexpr, TOGETHER: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, RANKED: tl.constexpr, WIDTHS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute gradients of one block of rows; dq's columns beyond the rank are not written."""
    n_blocks = tl.cdiv(length * R, M)
    n_groups = tl.num_programs(0) // n_blocks
    i_bg, i_block = tile_coordinates(tl.program_id(0), n_groups, n_blocks, TOGETHER)
    i_m = n_blocks - 1 - i_block
    i_b = (i_bg // GROUPS).to(tl.int64)
    i_g = (i_bg % GROUPS).to(tl.int64)
    rank = _rank(rank_ptr, i_g, D, RANKED)
    scale = _scale(rank, SCALE)
    q_ptr += i_b * q_batch + i_g * R * q_head
    k_ptr += i_b * k_batch + i_g * k_head
    v_ptr += i_b * v_batch + i_g * v_head
    dout_ptr += i_b * dout_batch + i_g * R * dout_head
    dq_ptr += i_b * dq_batch + i_g * R * dq_head
    lse_ptr += (i_b * GROUPS + i_g) * R * length
    delta_ptr += (i_b * GROUPS + i_g) * R * length
    for i in tl.static_range(WIDTHS):
        if (rank <= (BLOCK_D >> i)) & (rank > (BLOCK_D >> (i + 1)) * (i + 1 < WIDTHS)):
            _dq(
                q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr,
                q_head, q_token, k_token, v_token, dout_head, dout_token, dq_head, dq_token,
                i_m, length, keys, rank, scale,
                R, D, CAUSAL, M, N, BLOCK_D >> i, BLOCK_D, PRECISION,
            )  # fmt: skip


launch_dq = launcher(adaptive_attention_dq_kernel)
