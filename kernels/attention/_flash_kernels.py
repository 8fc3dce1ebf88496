"""Our own attention kernels: forward, the merge of split keys, and the two backward kernels.

The query heads that share a key head are packed: row m of the S x R rows of a group is query m // R
of its head m % R, so that keys and values are read once for all of them, also in decoding. Row m is
at position ``shift + m // R``, shift = keys - S. Exponents are to base 2. ``_flash`` launches.
"""

from kernels.attention._blocks import describe_rows, describe_tokens, row_block, token_block
from kernels.attention._order import tile_coordinates
from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton

FEWEST_ROWS = 32  # per block, for gradients of keys and values


@triton.jit
def _extent(kv_length_ptr, i_b, keys, LENGTHS: tl.constexpr):
    """Return the number of keys. ``LENGTHS`` 0: all, 1: a number in memory, 2: one per batch."""
    end = tl.cast(keys, tl.int32)
    if LENGTHS == 1:
        end = tl.minimum(end, tl.load(kv_length_ptr).to(tl.int32))
    if LENGTHS == 2:
        end = tl.minimum(end, tl.load(kv_length_ptr + i_b).to(tl.int32))
    return end


@triton.jit
def seen(o_p, o_k, end, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Return a mask of the keys ``o_k`` [1, N] that the positions ``o_p`` [M, 1] see."""
    m = (o_k < end) & (o_p >= o_p)
    if CAUSAL:
        m = m & (o_k <= o_p)
    if WINDOW:
        m = m & (o_k > o_p - window)
        if not CAUSAL:
            m = m & (o_k < o_p + window)
    return m


@triton.jit
def attend(
    b_acc, b_l, b_m, b_q, k_at, k_unit_ptr, v_at, k_token, v_token, o_p, o_c, o_d,
    low, high, end, window, columns, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr,
    UNITS: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
    POSITIVE: tl.constexpr = False, DESCRIBED: tl.constexpr = False,
):  # fmt: skip
    """Continue the online softmax over the keys from ``low`` to ``high``.

    ``o_c`` are the columns of queries and keys, of which ``columns`` count; ``o_d`` those of
    values. ``UNITS``: a key must be multiplied by its unit, and ``scale`` is one per row.
    ``POSITIVE``: the scale is positive, so that finding the largest score need not scale them all.
    """
    for start in range(low, high, N):
        o_k = start + tl.arange(0, N)
        b_k = token_block(k_at, k_token, start, o_c, columns, end, N, DESCRIBED)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        if UNITS:
            b_unit = tl.load(k_unit_ptr + o_k, mask=o_k < end, other=0.0)
            b_s *= (scale * 1.4426950408889634)[:, None] * b_unit[None, :]
        elif not POSITIVE:
            b_s *= scale * 1.4426950408889634
        if MASKED:
            m_s = seen(o_p[:, None], o_k[None, :], end, window, CAUSAL, WINDOW)
            b_s = tl.where(m_s, b_s, float("-inf"))
        b_high = tl.max(b_s, axis=1)
        if POSITIVE:
            b_high *= scale * 1.4426950408889634
        b_top = tl.maximum(b_m, b_high)
        b_safe = b_top
        if MASKED:  # a row that has seen nothing yet must not subtract infinities
            b_safe = tl.where(b_top == float("-inf"), 0.0, b_top)
        if POSITIVE:
            b_p = tl.exp2(b_s * (scale * 1.4426950408889634) - b_safe[:, None])
        else:
            b_p = tl.exp2(b_s - b_safe[:, None])
        b_shrink = tl.exp2(b_m - b_safe)
        b_v = token_block(v_at, v_token, start, o_d, D, end, N, DESCRIBED)
        b_acc = tl.dot(
            b_p.to(b_v.dtype), b_v, acc=b_acc * b_shrink[:, None], input_precision=PRECISION
        )
        b_l = b_l * b_shrink + tl.sum(b_p, axis=1)
        b_m = b_top
    return b_acc, b_l, b_m


@triton.jit
def key_range(
    first, last, end, window,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Return the range of keys that positions ``first`` to ``last`` see, in blocks.

    [low, full) need the mask, [full, edge) are seen by all, [edge, high) need the mask again.
    """
    low = first * 0
    high = end
    edge = (end // N) * N
    if CAUSAL:
        high = tl.minimum(end, last + 1)
        edge = (tl.minimum(tl.maximum(first + 1, 0), end) // N) * N
    full = low
    if WINDOW:
        low = (tl.maximum(first - window + 1, 0) // N) * N
        full = tl.cdiv(tl.maximum(last - window + 1, 0), N) * N
        if not CAUSAL:
            high = tl.minimum(end, last + window)
            edge = (tl.minimum(tl.maximum(first + window, 0), end) // N) * N
    high = tl.maximum(high, low)
    edge = tl.maximum(edge, low)
    full = tl.minimum(tl.maximum(full, low), edge)
    return low, full, edge, high


@triton.jit(do_not_specialize=["window"])
def attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, kv_length_ptr, length, keys, window, splits,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    out_split, out_batch, out_head, out_token,
    GROUPS: tl.constexpr, TOGETHER: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, SPLIT: tl.constexpr,
    KEEP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    # Blocks of rows backwards, so that the longest causal rows are not left to the end.
    n_blocks = tl.cdiv(length * R, M)
    n_tiles = tl.num_programs(0) // splits
    n_groups = n_tiles // n_blocks
    i_split = tl.program_id(0) // n_tiles
    i_bg, i_block = tile_coordinates(tl.program_id(0) % n_tiles, n_groups, n_blocks, TOGETHER)
    i_m = n_blocks - 1 - i_block
    i_b = (i_bg // GROUPS).to(tl.int64)
    i_g = (i_bg % GROUPS).to(tl.int64)
    end = _extent(kv_length_ptr, i_b, keys, LENGTHS)
    shift = end - length
    o_m = i_m * M + tl.arange(0, M)
    o_s = o_m // R
    o_h = i_g * R + o_m % R
    o_d = tl.arange(0, BLOCK_D)
    m_md = (o_s < length)[:, None] & (o_d < D)[None, :]
    p_q = q_ptr + i_b * q_batch + o_h[:, None] * q_head + o_s.to(tl.int64)[:, None] * q_token
    b_q = tl.load(p_q + o_d[None, :], mask=m_md, other=0.0)
    o_p = shift + o_s
    k_ptr += i_b * k_batch + i_g * k_head
    v_ptr += i_b * v_batch + i_g * v_head
    first = shift + (i_m * M) // R
    last = shift + tl.minimum((i_m * M + M - 1) // R, length - 1)
    low, full, edge, high = key_range(first, last, end, window, CAUSAL, WINDOW, N)
    if SPLIT:
        share = tl.cdiv(tl.cdiv(high - low, N), splits) * N
        low, high = low + i_split * share, tl.minimum(high, low + (i_split + 1) * share)
        full = tl.maximum(low, tl.minimum(full, high))
        edge = tl.maximum(full, tl.minimum(edge, high))
    k_at, v_at = k_ptr, v_ptr
    if DESCRIBED:
        k_at = describe_tokens(k_ptr, end, k_token, D, N, BLOCK_D)
        v_at = describe_tokens(v_ptr, end, v_token, D, N, BLOCK_D)
    b_acc = tl.zeros([M, BLOCK_D], dtype=tl.float32)
    b_l = tl.zeros([M], dtype=tl.float32)
    b_m = tl.full([M], float("-inf"), dtype=tl.float32)
    if WINDOW:
        b_acc, b_l, b_m = attend(
            b_acc, b_l, b_m, b_q, k_at, k_ptr, v_at, k_token, v_token, o_p, o_d, o_d,
            low, full, end, window, D, SCALE, D, CAUSAL, WINDOW, True, False, N, PRECISION,
            SCALE > 0, DESCRIBED,
        )  # fmt: skip
    b_acc, b_l, b_m = attend(
        b_acc, b_l, b_m, b_q, k_at, k_ptr, v_at, k_token, v_token, o_p, o_d, o_d,
        full, edge, end, window, D, SCALE, D, CAUSAL, WINDOW, False, False, N, PRECISION,
        SCALE > 0, DESCRIBED,
    )  # fmt: skip
    b_acc, b_l, b_m = attend(
        b_acc, b_l, b_m, b_q, k_at, k_ptr, v_at, k_token, v_token, o_p, o_d, o_d,
        edge, high, end, window, D, SCALE, D, CAUSAL, WINDOW, True, False, N, PRECISION,
        SCALE > 0, DESCRIBED,
    )  # fmt: skip
    b_some = b_l > 0
    b_acc = b_acc / tl.where(b_some, b_l, 1.0)[:, None]
    i_share = i_split.to(tl.int64)
    p_out = out_ptr + i_share * out_split + i_b * out_batch + o_h[:, None] * out_head
    tl.store(p_out + o_s.to(tl.int64)[:, None] * out_token + o_d[None, :], b_acc, mask=m_md)
    if KEEP:
        # An infinite normaliser makes every weight of the backward pass zero; for a part of split
        # keys, a normaliser of minus infinity means that there is nothing to merge.
        b_lse = tl.where(b_some, b_m + tl.log2(b_l), float("-inf") if SPLIT else float("inf"))
        n_rows = n_groups.to(tl.int64) * R * length
        p_lse = lse_ptr + i_share * n_rows + (i_b * GROUPS * R + o_h) * length + o_s
        tl.store(p_lse, b_lse, mask=o_s < length)


launch_forward = launcher(attention_forward_kernel)


@triton.jit
def attention_merge_kernel(
    part_ptr, lse_part_ptr, out_ptr, lse_ptr, n_rows, splits, length, heads,
    out_batch, out_head, out_token,
    KEEP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Merge the partial results of split keys; one row of one head per program."""
    i_n = tl.program_id(0).to(tl.int64)
    o_x = tl.arange(0, SPLITS)
    o_d = tl.arange(0, BLOCK_D)
    b_lse = tl.load(lse_part_ptr + o_x * n_rows + i_n, mask=o_x < splits, other=float("-inf"))
    top = tl.max(b_lse, axis=0)
    b_w = tl.exp2(b_lse - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(b_w, axis=0)
    m = (o_x < splits)[:, None] & (o_d < D)[None, :]
    p_part = part_ptr + (o_x[:, None] * n_rows + i_n) * D + o_d[None, :]
    b_part = tl.load(p_part, mask=m, other=0.0)
    b_out = tl.sum(b_part * b_w[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    i_s, i_bh = i_n % length, i_n // length
    p_out = out_ptr + (i_bh // heads) * out_batch + (i_bh % heads) * out_head + i_s * out_token
    tl.store(p_out + o_d, b_out, mask=o_d < D)
    if KEEP:
        tl.store(lse_ptr + i_n, tl.where(total > 0, top + tl.log2(total), float("inf")))


launch_merge = launcher(attention_merge_kernel)


@triton.jit
def attention_delta_kernel(
    out_ptr, dout_ptr, delta_ptr, n_rows, length, heads,
    out_batch, out_head, out_token, dout_batch, dout_head, dout_token,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute row sums of ``out dout``, in the order of the normalisers."""
    o_n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_d = tl.arange(0, BLOCK_D)
    o_s, o_h, o_b = o_n % length, (o_n // length) % heads, o_n // (length * heads)
    m = (o_n < n_rows)[:, None] & (o_d < D)[None, :]
    o_out = o_b * out_batch + o_h * out_head + o_s * out_token
    o_dout = o_b * dout_batch + o_h * dout_head + o_s * dout_token
    b_out = tl.load(out_ptr + o_out[:, None] + o_d[None, :], mask=m, other=0.0)
    b_dout = tl.load(dout_ptr + o_dout[:, None] + o_d[None, :], mask=m, other=0.0)
    b_delta = tl.sum(b_out.to(tl.float32) * b_dout.to(tl.float32), axis=1)
    tl.store(delta_ptr + o_n, b_delta, mask=o_n < n_rows)


launch_delta = launcher(attention_delta_kernel)


@triton.jit
def add_to_dkdv(
    b_dk, b_dv, b_k, b_v, q_at, dout_at, lse_ptr, delta_ptr,
    q_head, q_token, dout_head, dout_token, o_k, o_c, o_d, low, high, length, shift, end, window,
    columns, scale,
    R: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    MASKED: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr,
    DESCRIBED: tl.constexpr = False,
):  # fmt: skip
    """Add the contribution of the rows from ``low`` to ``high`` to the keys and values ``o_k``."""
    for start in range(low, high, M):
        o_m = start + tl.arange(0, M)
        o_s = o_m // R
        o_r = (o_m % R).to(tl.int64)
        m_m = o_s < length
        b_q = row_block(q_at, q_head, q_token, start, o_c, columns, length, R, M, DESCRIBED)
        b_lse = tl.load(lse_ptr + o_r * length + o_s, mask=m_m, other=float("inf"))
        b_s = tl.dot(b_k, tl.trans(b_q), input_precision=PRECISION) * (scale * 1.4426950408889634)
        b_p = tl.exp2(b_s - b_lse[None, :])
        if MASKED:
            m_s = seen((shift + o_s)[None, :], o_k[:, None], end, window, CAUSAL, WINDOW)
            b_p = tl.where(m_s, b_p, 0.0)
        b_do = row_block(dout_at, dout_head, dout_token, start, o_d, D, length, R, M, DESCRIBED)
        b_dv = tl.dot(b_p.to(b_do.dtype), b_do, acc=b_dv, input_precision=PRECISION)
        b_dp = tl.dot(b_v, tl.trans(b_do), input_precision=PRECISION)
        b_delta = tl.load(delta_ptr + o_r * length + o_s, mask=m_m, other=0.0)
        b_ds = b_p * (b_dp - b_delta[None, :])
        b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, acc=b_dk, input_precision=PRECISION)
    return b_dk, b_dv


@triton.jit
def row_range(
    k_first, n_rows, shift, window,
    R: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Return the range of rows that see the ``N`` keys from ``k_first``, in blocks.

    [low, full) need the mask, [full, edge) see all keys, [edge, high) need the mask again.
    """
    k_last = k_first + N - 1
    low = k_first * 0
    full = low
    high = n_rows
    edge = n_rows
    if CAUSAL:
        low = (tl.maximum(k_first - shift, 0) * R // M) * M
        full = tl.cdiv(tl.maximum(k_last - shift, 0) * R, M) * M
    if WINDOW:
        high = tl.minimum(n_rows, tl.maximum(k_last + window - shift, 0) * R)
        edge = (tl.minimum(n_rows, tl.maximum(k_first + window - shift, 0) * R) // M) * M
        if not CAUSAL:
            low = (tl.maximum(k_first - window + 1 - shift, 0) * R // M) * M
            full = tl.cdiv(tl.maximum(k_last - window + 1 - shift, 0) * R, M) * M
    return low, full, edge, high


@triton.jit(do_not_specialize=["window"])
def attention_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, kv_length_ptr,
    length, keys, window,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    dout_batch, dout_head, dout_token, dk_batch, dk_head, dk_token, dv_batch, dv_head, dv_token,
    GROUPS: tl.constexpr, TOGETHER: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Compute gradients of one block of keys and values, over all rows that see it."""
    n_blocks = tl.cdiv(keys, N)
    n_groups = tl.num_programs(0) // n_blocks
    i_bg, i_n = tile_coordinates(tl.program_id(0), n_groups, n_blocks, TOGETHER)
    i_b = (i_bg // GROUPS).to(tl.int64)
    i_g = (i_bg % GROUPS).to(tl.int64)
    end = _extent(kv_length_ptr, i_b, keys, LENGTHS)
    shift = end - length
    o_k = i_n * N + tl.arange(0, N)
    o_d = tl.arange(0, BLOCK_D)
    m_kd = (o_k < end)[:, None] & (o_d < D)[None, :]
    o_kt = o_k.to(tl.int64)[:, None]
    p_k = k_ptr + i_b * k_batch + i_g * k_head + o_kt * k_token + o_d[None, :]
    p_v = v_ptr + i_b * v_batch + i_g * v_head + o_kt * v_token + o_d[None, :]
    b_k = tl.load(p_k, mask=m_kd, other=0.0)
    b_v = tl.load(p_v, mask=m_kd, other=0.0)
    q_ptr += i_b * q_batch + i_g * R * q_head
    dout_ptr += i_b * dout_batch + i_g * R * dout_head
    lse_ptr += (i_b * GROUPS + i_g) * R * length
    delta_ptr += (i_b * GROUPS + i_g) * R * length
    low, full, edge, high = row_range(
        i_n * N, length * R, shift, window, R, CAUSAL, WINDOW, M, N
    )  # fmt: skip
    if LENGTHS != 0:
        high = tl.where(i_n * N < end, high, 0)
    high = tl.maximum(high, low)
    full = tl.minimum(full, high)
    edge = tl.minimum(tl.maximum(edge, full), high)
    q_at, dout_at = q_ptr, dout_ptr
    if DESCRIBED:
        q_at = describe_rows(q_ptr, length, q_token, q_head, R, D, M, BLOCK_D)
        dout_at = describe_rows(dout_ptr, length, dout_token, dout_head, R, D, M, BLOCK_D)
    b_dk = tl.zeros([N, BLOCK_D], dtype=tl.float32)
    b_dv = tl.zeros([N, BLOCK_D], dtype=tl.float32)
    if CAUSAL or WINDOW:
        b_dk, b_dv = add_to_dkdv(
            b_dk, b_dv, b_k, b_v, q_at, dout_at, lse_ptr, delta_ptr, q_head, q_token,
            dout_head, dout_token, o_k, o_d, o_d, low, full, length, shift, end, window,
            D, SCALE, R, D, CAUSAL, WINDOW, True, M, PRECISION, DESCRIBED,
        )  # fmt: skip
    b_dk, b_dv = add_to_dkdv(
        b_dk, b_dv, b_k, b_v, q_at, dout_at, lse_ptr, delta_ptr, q_head, q_token,
        dout_head, dout_token, o_k, o_d, o_d, full, edge, length, shift, end, window,
        D, SCALE, R, D, CAUSAL, WINDOW, False, M, PRECISION, DESCRIBED,
    )  # fmt: skip
    if WINDOW:
        b_dk, b_dv = add_to_dkdv(
            b_dk, b_dv, b_k, b_v, q_at, dout_at, lse_ptr, delta_ptr, q_head, q_token,
            dout_head, dout_token, o_k, o_d, o_d, edge, high, length, shift, end, window,
            D, SCALE, R, D, CAUSAL, WINDOW, True, M, PRECISION, DESCRIBED,
        )  # fmt: skip
    b_dk = tl.where((o_k < end)[:, None], b_dk * SCALE, 0.0)
    b_dv = tl.where((o_k < end)[:, None], b_dv, 0.0)
    m_kd = (o_k < keys)[:, None] & (o_d < D)[None, :]
    p_dk = dk_ptr + i_b * dk_batch + i_g * dk_head + o_kt * dk_token + o_d[None, :]
    p_dv = dv_ptr + i_b * dv_batch + i_g * dv_head + o_kt * dv_token + o_d[None, :]
    tl.store(p_dk, b_dk, mask=m_kd)
    tl.store(p_dv, b_dv, mask=m_kd)


launch_dkdv = launcher(attention_dkdv_kernel)


@triton.jit
def add_to_dq(
    b_dq, b_q, b_do, b_lse, b_delta, k_at, v_at, k_token, v_token, o_p, o_c, o_d, low, high, end,
    window, columns, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr,
    N: tl.constexpr, PRECISION: tl.constexpr, DESCRIBED: tl.constexpr = False,
):  # fmt: skip
    """Add the contribution of the keys from ``low`` to ``high`` to the rows at ``o_p``."""
    for start in range(low, high, N):
        o_k = start + tl.arange(0, N)
        b_k = token_block(k_at, k_token, start, o_c, columns, end, N, DESCRIBED)
        b_v = token_block(v_at, v_token, start, o_d, D, end, N, DESCRIBED)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        b_p = tl.exp2(b_s - b_lse[:, None])
        if MASKED:
            m_s = seen(o_p[:, None], o_k[None, :], end, window, CAUSAL, WINDOW)
            b_p = tl.where(m_s, b_p, 0.0)
        b_dp = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION)
        b_ds = b_p * (b_dp - b_delta[:, None])
        b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, acc=b_dq, input_precision=PRECISION)
    return b_dq


@triton.jit(do_not_specialize=["window"])
def attention_dq_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, kv_length_ptr,
    length, keys, window,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    dout_batch, dout_head, dout_token, dq_batch, dq_head, dq_token,
    GROUPS: tl.constexpr, TOGETHER: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    n_blocks = tl.cdiv(length * R, M)
    n_groups = tl.num_programs(0) // n_blocks
    i_bg, i_block = tile_coordinates(tl.program_id(0), n_groups, n_blocks, TOGETHER)
    i_m = n_blocks - 1 - i_block
    i_b = (i_bg // GROUPS).to(tl.int64)
    i_g = (i_bg % GROUPS).to(tl.int64)
    end = _extent(kv_length_ptr, i_b, keys, LENGTHS)
    shift = end - length
    o_m = i_m * M + tl.arange(0, M)
    o_s = o_m // R
    o_h = i_g * R + o_m % R
    o_st = o_s.to(tl.int64)
    o_d = tl.arange(0, BLOCK_D)
    m_m = o_s < length
    m_md = m_m[:, None] & (o_d < D)[None, :]
    p_q = q_ptr + i_b * q_batch + o_h[:, None] * q_head + o_st[:, None] * q_token + o_d[None, :]
    p_do = dout_ptr + i_b * dout_batch + o_h[:, None] * dout_head + o_st[:, None] * dout_token
    b_q = tl.load(p_q, mask=m_md, other=0.0)
    b_do = tl.load(p_do + o_d[None, :], mask=m_md, other=0.0)
    o_n = (i_b * GROUPS * R + o_h) * length + o_s
    b_lse = tl.load(lse_ptr + o_n, mask=m_m, other=float("inf"))
    b_delta = tl.load(delta_ptr + o_n, mask=m_m, other=0.0)
    o_p = shift + o_s
    k_ptr += i_b * k_batch + i_g * k_head
    v_ptr += i_b * v_batch + i_g * v_head
    first = shift + (i_m * M) // R
    last = shift + tl.minimum((i_m * M + M - 1) // R, length - 1)
    low, full, edge, high = key_range(first, last, end, window, CAUSAL, WINDOW, N)
    k_at, v_at = k_ptr, v_ptr
    if DESCRIBED:
        k_at = describe_tokens(k_ptr, end, k_token, D, N, BLOCK_D)
        v_at = describe_tokens(v_ptr, end, v_token, D, N, BLOCK_D)
    b_dq = tl.zeros([M, BLOCK_D], dtype=tl.float32)
    if WINDOW:
        b_dq = add_to_dq(
            b_dq, b_q, b_do, b_lse, b_delta, k_at, v_at, k_token, v_token, o_p, o_d, o_d,
            low, full, end, window, D, SCALE, D, CAUSAL, WINDOW, True, N, PRECISION, DESCRIBED,
        )  # fmt: skip
    b_dq = add_to_dq(
        b_dq, b_q, b_do, b_lse, b_delta, k_at, v_at, k_token, v_token, o_p, o_d, o_d,
        full, edge, end, window, D, SCALE, D, CAUSAL, WINDOW, False, N, PRECISION, DESCRIBED,
    )  # fmt: skip
    b_dq = add_to_dq(
        b_dq, b_q, b_do, b_lse, b_delta, k_at, v_at, k_token, v_token, o_p, o_d, o_d, edge, high,
        end, window, D, SCALE, D, CAUSAL, WINDOW, True, N, PRECISION, DESCRIBED,
    )  # fmt: skip
    p_dq = dq_ptr + i_b * dq_batch + o_h[:, None] * dq_head + o_st[:, None] * dq_token
    tl.store(p_dq + o_d[None, :], b_dq * SCALE, mask=m_md)


launch_dq = launcher(attention_dq_kernel)
