"""Attention's backward kernels for Hopper, in Gluon, as ``_hopper_kernels`` has the forward one.

As everywhere here nothing is added atomically: one kernel goes over blocks of rows for 128 keys,
one over blocks of keys for 128 rows. Normalisers and products ``out dout`` come in the order of the
packed rows of a group, so that they can be fetched as blocks are.
"""

from kernels._triton import gl, gluon
from kernels.attention._hopper_kernels import (
    barriers,
    describe,
    fence,
    fetch,
    load_box,
    mbarrier,
    meet,
    multiplied,
    multiply,
    store_box,
    tile_of_rows,
    tile_of_turn,
    tma,
    turns,
)


@gluon.jit
def _tile_of_keys(
    tile, batch, length, keys,
    GROUPS: gl.constexpr, R: gl.constexpr, CAUSAL: gl.constexpr, HALF: gl.constexpr,
    M: gl.constexpr,
):  # fmt: skip
    """Its sample, group and first key, the blocks of rows that see some, see all, and their end."""
    n_groups = batch * GROUPS
    i_bg = tile % n_groups
    first = (tile // n_groups) * (2 * HALF)  # the first keys are seen by most rows
    end = gl.cdiv(length * R, M)
    low = first * 0
    full = low
    if CAUSAL:
        shift = keys - length
        low = gl.maximum(first - shift, 0) * R // M
        full = gl.minimum(gl.cdiv(gl.maximum(first + 2 * HALF - 1 - shift, 0) * R, M), end)
    return i_bg // GROUPS, i_bg % GROUPS, first, low, full, end


@gluon.jit
def _rows_of(i, low, full, end, SHARE: gl.constexpr):
    """Step ``i`` of a program's, which count from ``low``: of which group, and which of its blocks.

    Of every group first those that see some of the keys only, then of every group the others.
    """
    if SHARE == 1:
        return 0, i
    masked = i - low < SHARE * (full - low)
    start = gl.where(masked, low, full)
    number = gl.where(masked, full - low, end - full)
    i = i - low - gl.where(masked, 0, SHARE * (full - low))
    return i // number, start + i % number


@gluon.jit
def _add_rows(
    b_dk, b_dv, b_ds, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, bars, count, start,
    more, o_k, length, keys,
    R: gl.constexpr, LOG2: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr,
    FIRST: gl.constexpr, M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Block ``count`` of the rows, from ``start`` on; the keys' gradient of the one before.

    ``FIRST``: there is none before, ``more``: there is one after. Rows and keys beyond the last are
    zeros, which add nothing, and need no mask.
    """
    q_full, do_full, empty = bars
    HALF: gl.constexpr = k_smem.shape[0]
    D: gl.constexpr = k_smem.shape[1]
    s_layout: gl.constexpr = b_ds.type.layout
    columns: gl.constexpr = gl.SliceLayout(0, s_layout)
    p_layout: gl.constexpr = gl.DotOperandLayout(0, b_dk.type.layout, 2)
    stage = count % STAGES
    before = (count + STAGES - 1) % STAGES
    after = (count + 1) % STAGES
    b_none = gl.zeros((HALF, M), gl.float32, s_layout)
    b_q = q_smem.index(stage).reshape([M, D])
    b_do = do_smem.index(stage).reshape([M, D])
    if FIRST:
        mbarrier.wait(q_full.index(stage), (count // STAGES) & 1)
        mbarrier.wait(do_full.index(stage), (count // STAGES) & 1)
    b_s = multiply(k_smem, b_q.permute((1, 0)), b_none, use_acc=False, is_async=True)
    b_dp = multiply(v_smem, b_do.permute((1, 0)), b_none, use_acc=False, is_async=True)
    if FIRST:
        b_s = multiplied(1, deps=(b_s,))
    else:
        b_ds = gl.convert_layout(b_ds.to(q_smem.dtype), p_layout)
        b_dk = multiply(b_ds, q_smem.index(before).reshape([M, D]), b_dk, is_async=True)
        b_s = multiplied(2, deps=(b_s,))
    b_lse = lse_smem.index(stage).reshape([M]).load(columns)
    b_p = gl.exp2(b_s * LOG2 - b_lse[None, :])
    if MASKED:
        o_p = keys - length + (start + gl.arange(0, M, layout=columns)) // R
        b_p = gl.where(o_k[:, None] <= o_p[None, :], b_p, 0.0)
    b_w = gl.convert_layout(b_p.to(q_smem.dtype), p_layout)
    b_dv = multiply(b_w, b_do, b_dv, is_async=True)
    if FIRST:
        b_dp = multiplied(1, deps=(b_dp,))
    else:
        b_dk, b_dp, b_ds = multiplied(1, deps=(b_dk, b_dp, b_ds))
        mbarrier.arrive(empty.index(before), count=1)
    b_delta = delta_smem.index(stage).reshape([M]).load(columns)
    b_ds = b_p * (b_dp - b_delta[None, :])
    # Here, for the reason that the forward kernel gives.
    mbarrier.wait(q_full.index(after), ((count + 1) // STAGES) & 1, pred=more)
    mbarrier.wait(do_full.index(after), ((count + 1) // STAGES) & 1, pred=more)
    b_dv, b_w = multiplied(0, deps=(b_dv, b_w))
    return b_dk, b_dv, b_ds


@gluon.jit
def _store(b_x, desc, at, box):
    """Write a block by way of shared memory, once what was written from there before is."""
    ROWS: gl.constexpr = b_x.shape[0]
    D: gl.constexpr = b_x.shape[1]
    tma.store_wait(0)
    meet()
    box.reshape([ROWS, D]).store(b_x.to(box.dtype))
    fence()
    meet()
    store_box(desc, at, box)


@gluon.jit
def _compute_dkdv(
    WHICH: gl.constexpr, dk_desc, dv_desc, k_all, v_all, o_all, q_smem, do_smem, lse_smem,
    delta_smem, kv_full, kv_empty, bars, batch, length, keys,
    SETS: gl.constexpr, SHARE: gl.constexpr, R: gl.constexpr, SCALE: gl.constexpr,
    CAUSAL: gl.constexpr, HALF: gl.constexpr, M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """What a group of warps does for gradients of keys and values."""
    D: gl.constexpr = k_all.shape[4]
    LOG2: gl.constexpr = SCALE * 1.4426950408889634
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    k_smem = k_all.index(WHICH).reshape([HALF, D])
    v_smem = v_all.index(WHICH).reshape([HALF, D])
    count = 0
    n_tiles = batch * SETS * gl.cdiv(keys, 2 * HALF)
    for i_t in range(turns(n_tiles)):
        tile = tile_of_turn(i_t)
        i_b, i_g, first, low, full, end = _tile_of_keys(
            tile, batch, length, keys, SETS, R, CAUSAL, HALF, M
        )
        masked, last = low + SHARE * (full - low), low + SHARE * (end - low)
        first += WHICH * HALF
        o_k = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, s_layout))
        b_dk = gl.zeros((HALF, D), gl.float32, o_layout)
        b_dv = gl.zeros((HALF, D), gl.float32, o_layout)
        b_ds = gl.zeros((HALF, M), gl.float32, s_layout)
        mbarrier.wait(kv_full.index(WHICH), i_t & 1)
        b_dk, b_dv, b_ds = _add_rows(
            b_dk, b_dv, b_ds, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, bars,
            count, low * M, low + 1 < last, o_k, length, keys,
            R, LOG2, CAUSAL, CAUSAL, True, M, STAGES,
        )  # fmt: skip
        count += 1
        for i in range(low + 1, masked):
            _, i_m = _rows_of(i, low, full, end, SHARE)
            b_dk, b_dv, b_ds = _add_rows(
                b_dk, b_dv, b_ds, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, bars,
                count, i_m * M, i + 1 < last, o_k, length, keys,
                R, LOG2, CAUSAL, True, False, M, STAGES,
            )  # fmt: skip
            count += 1
        for i in range(gl.maximum(low + 1, masked), last):
            _, i_m = _rows_of(i, low, full, end, SHARE)
            b_dk, b_dv, b_ds = _add_rows(
                b_dk, b_dv, b_ds, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, bars,
                count, i_m * M, i + 1 < last, o_k, length, keys,
                R, LOG2, CAUSAL, False, False, M, STAGES,
            )  # fmt: skip
            count += 1
        before = (count + STAGES - 1) % STAGES
        b_w = gl.convert_layout(b_ds.to(q_smem.dtype), gl.DotOperandLayout(0, o_layout, 2))
        b_dk = multiply(b_w, q_smem.index(before).reshape([M, D]), b_dk, is_async=True)
        b_dk, b_w = multiplied(0, deps=(b_dk, b_w))
        mbarrier.arrive(bars[2].index(before), count=1)
        mbarrier.arrive(kv_empty.index(WHICH), count=1)
        _store(b_dk * SCALE, dk_desc, [i_b, i_g, first, 0], o_all.index(WHICH))
        _store(b_dv, dv_desc, [i_b, i_g, first, 0], o_all.index(WHICH))
    tma.store_wait(0)


@gluon.jit
def _fetch_rows(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, k_all, v_all, q_smem, do_smem, lse_smem,
    delta_smem, kv_full, kv_empty, bars, batch, length, keys,
    SETS: gl.constexpr, SPLIT: gl.constexpr, SHARE: gl.constexpr, R: gl.constexpr,
    CAUSAL: gl.constexpr, HALF: gl.constexpr, M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """What the warp does that fetches, for gradients of keys and values."""
    q_full, do_full, empty = bars
    D: gl.constexpr = k_all.shape[4]
    BYTES: gl.constexpr = M * D * 2 + M * 4
    count = 0
    n_tiles = batch * SETS * gl.cdiv(keys, 2 * HALF)
    for i_t in range(turns(n_tiles)):
        tile = tile_of_turn(i_t)
        i_b, i_g, first, low, full, end = _tile_of_keys(
            tile, batch, length, keys, SETS, R, CAUSAL, HALF, M
        )
        i_bg = (i_b * SETS + i_g) * SHARE
        for i in gl.static_range(2):
            ready = kv_full.index(i)
            mbarrier.wait(kv_empty.index(i), (i_t & 1) ^ 1)
            mbarrier.expect(ready, HALF * D * 4)
            at_keys = [i_b, i_g // SPLIT, first + i * HALF, 0]
            load_box(k_desc, at_keys, ready, k_all.index(i))
            load_box(v_desc, at_keys, ready, v_all.index(i))
        for i in range(low, low + SHARE * (end - low)):
            i_s, i_m = _rows_of(i, low, full, end, SHARE)
            stage = count % STAGES
            at = [i_b, i_m * M // R, (i_g * SHARE + i_s) * R, 0]
            mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
            mbarrier.expect(q_full.index(stage), BYTES)
            load_box(q_desc, at, q_full.index(stage), q_smem.index(stage))
            load_box(lse_desc, [i_bg + i_s, i_m * M], q_full.index(stage), lse_smem.index(stage))
            mbarrier.expect(do_full.index(stage), BYTES)
            load_box(do_desc, at, do_full.index(stage), do_smem.index(stage))
            load_box(
                delta_desc, [i_bg + i_s, i_m * M], do_full.index(stage), delta_smem.index(stage)
            )
            count += 1


@gluon.jit
def _describe_numbers(ptr, groups, rows, stride, M: gl.constexpr):
    """``M`` numbers in FP32 of a matrix [groups, rows]."""
    layout: gl.constexpr = gl.NVMMASharedLayout(0, 32, 2)
    return tma.make_tensor_descriptor(ptr, [groups, rows], [stride, 1], [1, M], layout)


@gluon.jit(do_not_specialize=["batch", "length", "keys"])
def attention_hopper_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, batch, length, keys, stride,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    dout_batch, dout_head, dout_token, dk_batch, dk_head, dk_token, dv_batch, dv_head, dv_token,
    GROUPS: gl.constexpr, SPLIT: gl.constexpr, SHARE: gl.constexpr, R: gl.constexpr,
    D: gl.constexpr, SCALE: gl.constexpr, CAUSAL: gl.constexpr, HALF: gl.constexpr, M: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Gradients of keys and values; ``lse_ptr`` and ``delta_ptr`` are packed, ``stride`` apart.

    A program goes over a set of ``SHARE`` groups. ``SPLIT`` sets have the same keys and values, of
    whose gradients each makes its part.
    """
    H: gl.constexpr = GROUPS * R
    SETS: gl.constexpr = GROUPS // SHARE
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    q_desc = describe(q_ptr, batch, length, H, q_batch, q_token, q_head, D, M // R, R)
    do_desc = describe(dout_ptr, batch, length, H, dout_batch, dout_token, dout_head, D, M // R, R)
    k_desc = describe(k_ptr, batch, SETS // SPLIT, keys, k_batch, k_head, k_token, D, 1, HALF)
    v_desc = describe(v_ptr, batch, SETS // SPLIT, keys, v_batch, v_head, v_token, D, 1, HALF)
    dk_desc = describe(dk_ptr, batch, SETS, keys, dk_batch, dk_head, dk_token, D, 1, HALF)
    dv_desc = describe(dv_ptr, batch, SETS, keys, dv_batch, dv_head, dv_token, D, 1, HALF)
    lse_desc = _describe_numbers(lse_ptr, batch * GROUPS, length * R, stride, M)
    delta_desc = _describe_numbers(delta_ptr, batch * GROUPS, length * R, stride, M)
    k_all = gl.allocate_shared_memory(dtype, [2, 1, 1, HALF, D], k_desc.layout)
    v_all = gl.allocate_shared_memory(dtype, [2, 1, 1, HALF, D], v_desc.layout)
    o_all = gl.allocate_shared_memory(dk_desc.dtype, [2, 1, 1, HALF, D], dk_desc.layout)
    q_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, M // R, R, D], q_desc.layout)
    do_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, M // R, R, D], do_desc.layout)
    lse_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 1, M], lse_desc.layout)
    delta_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 1, M], delta_desc.layout)
    kv_full, kv_empty = barriers(2, 1), barriers(2, 1)
    bars = (barriers(STAGES, 1), barriers(STAGES, 1), barriers(STAGES, 2))
    gl.warp_specialize([
        (_compute_dkdv, (
            0, dk_desc, dv_desc, k_all, v_all, o_all, q_smem, do_smem, lse_smem, delta_smem,
            kv_full, kv_empty, bars, batch, length, keys,
            SETS, SHARE, R, SCALE, CAUSAL, HALF, M, STAGES,
        )),
        (_compute_dkdv, (
            1, dk_desc, dv_desc, k_all, v_all, o_all, q_smem, do_smem, lse_smem, delta_smem,
            kv_full, kv_empty, bars, batch, length, keys,
            SETS, SHARE, R, SCALE, CAUSAL, HALF, M, STAGES,
        )),
        (_fetch_rows, (
            q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, k_all, v_all, q_smem, do_smem,
            lse_smem, delta_smem, kv_full, kv_empty, bars, batch, length, keys,
            SETS, SPLIT, SHARE, R, CAUSAL, HALF, M, STAGES,
        )),
    ], [4, 1], [240, 24])  # fmt: skip


@gluon.jit
def _add_keys(
    b_dq, b_ds, q_smem, do_smem, k_smem, v_smem, bars, count, start, o_p, b_lse, b_delta, keys,
    LOG2: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr, FIRST: gl.constexpr,
    N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Block ``count`` of the keys, from ``start`` on; the one before is added meanwhile.

    ``FIRST``: there is none before. There is one more buffer of keys than of values.
    """
    k_full, k_empty, v_full, v_empty = bars
    K_STAGES: gl.constexpr = STAGES + 1
    HALF: gl.constexpr = q_smem.shape[0]
    D: gl.constexpr = q_smem.shape[1]
    s_layout: gl.constexpr = b_ds.type.layout
    p_layout: gl.constexpr = gl.DotOperandLayout(0, b_dq.type.layout, 2)
    b_none = gl.zeros((HALF, N), gl.float32, s_layout)
    b_k = k_smem.index(count % K_STAGES).reshape([N, D])
    b_v = v_smem.index(count % STAGES).reshape([N, D])
    if FIRST:
        mbarrier.wait(k_full.index(count % K_STAGES), (count // K_STAGES) & 1)
    b_s = multiply(q_smem, b_k.permute((1, 0)), b_none, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(count % STAGES), (count // STAGES) & 1)
    b_dp = multiply(do_smem, b_v.permute((1, 0)), b_none, use_acc=False, is_async=True)
    if FIRST:
        b_s, b_dp = multiplied(0, deps=(b_s, b_dp))
    else:
        b_before = k_smem.index((count - 1) % K_STAGES).reshape([N, D])
        b_w = gl.convert_layout(b_ds.to(q_smem.dtype), p_layout)
        b_dq = multiply(b_w, b_before, b_dq, is_async=True)
        b_s, b_dp = multiplied(1, deps=(b_s, b_dp))
    mbarrier.arrive(v_empty.index(count % STAGES), count=1)
    b_p = gl.exp2(b_s * LOG2 - b_lse[:, None])
    if MASKED:
        o_k = start + gl.arange(0, N, layout=gl.SliceLayout(0, s_layout))
        m_s = (o_k < keys)[None, :] & (o_p >= o_p)[:, None]
        if CAUSAL:
            m_s = m_s & (o_k[None, :] <= o_p[:, None])
        b_p = gl.where(m_s, b_p, 0.0)
    b_ds = b_p * (b_dp - b_delta[:, None])
    # Here, for the reason that the forward kernel gives.
    after = count + 1
    mbarrier.wait(k_full.index(after % K_STAGES), (after // K_STAGES) & 1, pred=start > 0)
    if not FIRST:
        b_dq, b_w = multiplied(0, deps=(b_dq, b_w))
        mbarrier.arrive(k_empty.index((count - 1) % K_STAGES), count=1)
    return b_dq, b_ds


@gluon.jit
def _compute_dq(
    WHICH: gl.constexpr, dq_desc, lse_ptr, delta_ptr, q_all, do_all, o_all, k_smem, v_smem,
    q_full, q_empty, bars, batch, length, keys, stride,
    GROUPS: gl.constexpr, R: gl.constexpr, SCALE: gl.constexpr, CAUSAL: gl.constexpr,
    HALF: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """What a group of warps does for gradients of queries."""
    D: gl.constexpr = q_all.shape[4]
    LOG2: gl.constexpr = SCALE * 1.4426950408889634
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    q_smem = q_all.index(WHICH).reshape([HALF, D])
    do_smem = do_all.index(WHICH).reshape([HALF, D])
    count = 0
    n_tiles = batch * GROUPS * gl.cdiv(length * R, 2 * HALF)
    for i_t in range(turns(n_tiles)):
        tile = tile_of_turn(i_t)
        i_b, i_g, first, blocks, free = tile_of_rows(
            tile, batch, length, keys, GROUPS, R, CAUSAL, HALF, N
        )
        first += WHICH * HALF
        o_m = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, s_layout))
        o_p = keys - length + o_m // R
        i_n = (i_b * GROUPS + i_g).to(gl.int64) * stride + o_m
        b_lse = gl.load(lse_ptr + i_n, mask=o_m < length * R, other=float("inf"))
        b_delta = gl.load(delta_ptr + i_n, mask=o_m < length * R, other=0.0)
        b_dq = gl.zeros((HALF, D), gl.float32, o_layout)
        b_ds = gl.zeros((HALF, N), gl.float32, s_layout)
        mbarrier.wait(q_full.index(WHICH), i_t & 1)
        b_dq, b_ds = _add_keys(
            b_dq, b_ds, q_smem, do_smem, k_smem, v_smem, bars, count, (blocks - 1) * N, o_p, b_lse,
            b_delta, keys, LOG2, CAUSAL, True, True, N, STAGES,
        )  # fmt: skip
        count += 1
        for i_k in range(blocks - 2, free - 1, -1):
            b_dq, b_ds = _add_keys(
                b_dq, b_ds, q_smem, do_smem, k_smem, v_smem, bars, count, i_k * N, o_p, b_lse,
                b_delta, keys, LOG2, CAUSAL, True, False, N, STAGES,
            )  # fmt: skip
            count += 1
        for i_k in range(gl.minimum(free, blocks - 1) - 1, -1, -1):
            b_dq, b_ds = _add_keys(
                b_dq, b_ds, q_smem, do_smem, k_smem, v_smem, bars, count, i_k * N, o_p, b_lse,
                b_delta, keys, LOG2, CAUSAL, False, False, N, STAGES,
            )  # fmt: skip
            count += 1
        mbarrier.arrive(q_empty.index(WHICH), count=1)
        last = (count - 1) % (STAGES + 1)
        b_w = gl.convert_layout(b_ds.to(q_all.dtype), gl.DotOperandLayout(0, o_layout, 2))
        b_dq = multiply(b_w, k_smem.index(last).reshape([N, D]), b_dq, is_async=True)
        b_dq, b_w = multiplied(0, deps=(b_dq, b_w))
        mbarrier.arrive(bars[1].index(last), count=1)
        _store(b_dq * SCALE, dq_desc, [i_b, first // R, i_g * R, 0], o_all.index(WHICH))
    tma.store_wait(0)


@gluon.jit
def _fetch_keys(
    q_desc, do_desc, k_desc, v_desc, q_all, do_all, k_smem, v_smem, q_full, q_empty, bars,
    batch, length, keys,
    GROUPS: gl.constexpr, SHARE: gl.constexpr, R: gl.constexpr, CAUSAL: gl.constexpr,
    HALF: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """What the warp does that fetches, for gradients of queries."""
    k_full, k_empty, v_full, v_empty = bars
    K_STAGES: gl.constexpr = STAGES + 1
    D: gl.constexpr = q_all.shape[4]
    BYTES: gl.constexpr = N * D * 2
    count = 0
    n_tiles = batch * GROUPS * gl.cdiv(length * R, 2 * HALF)
    for i_t in range(turns(n_tiles)):
        tile = tile_of_turn(i_t)
        i_b, i_g, first, blocks, _free = tile_of_rows(
            tile, batch, length, keys, GROUPS, R, CAUSAL, HALF, N
        )
        for i_k in range(blocks - 1, -1, -1):
            at = [i_b, i_g // SHARE, i_k * N, 0]
            stage = count % K_STAGES
            mbarrier.wait(k_empty.index(stage), ((count // K_STAGES) & 1) ^ 1)
            fetch(k_desc, at, k_smem.index(stage), k_full.index(stage), BYTES)
            if i_k == blocks - 1:
                for i in gl.static_range(2):
                    full = q_full.index(i)
                    mbarrier.wait(q_empty.index(i), (i_t & 1) ^ 1)
                    mbarrier.expect(full, HALF * D * 4)
                    rows = [i_b, (first + i * HALF) // R, i_g * R, 0]
                    load_box(q_desc, rows, full, q_all.index(i))
                    load_box(do_desc, rows, full, do_all.index(i))
            stage = count % STAGES
            mbarrier.wait(v_empty.index(stage), ((count // STAGES) & 1) ^ 1)
            fetch(v_desc, at, v_smem.index(stage), v_full.index(stage), BYTES)
            count += 1


@gluon.jit(do_not_specialize=["batch", "length", "keys"])
def attention_hopper_dq_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, batch, length, keys, stride,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    dout_batch, dout_head, dout_token, dq_batch, dq_head, dq_token,
    GROUPS: gl.constexpr, SHARE: gl.constexpr, R: gl.constexpr, D: gl.constexpr,
    SCALE: gl.constexpr, CAUSAL: gl.constexpr, HALF: gl.constexpr, N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Gradient of queries; ``lse_ptr`` and ``delta_ptr`` as for keys and values."""
    H: gl.constexpr = GROUPS * R
    KEY_HEADS: gl.constexpr = GROUPS // SHARE
    P: gl.constexpr = HALF // R
    K_STAGES: gl.constexpr = STAGES + 1
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    q_desc = describe(q_ptr, batch, length, H, q_batch, q_token, q_head, D, P, R)
    do_desc = describe(dout_ptr, batch, length, H, dout_batch, dout_token, dout_head, D, P, R)
    dq_desc = describe(dq_ptr, batch, length, H, dq_batch, dq_token, dq_head, D, P, R)
    k_desc = describe(k_ptr, batch, KEY_HEADS, keys, k_batch, k_head, k_token, D, 1, N)
    v_desc = describe(v_ptr, batch, KEY_HEADS, keys, v_batch, v_head, v_token, D, 1, N)
    q_all = gl.allocate_shared_memory(dtype, [2, 1, P, R, D], q_desc.layout)
    do_all = gl.allocate_shared_memory(dtype, [2, 1, P, R, D], do_desc.layout)
    o_all = gl.allocate_shared_memory(dtype, [2, 1, P, R, D], dq_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [K_STAGES, 1, 1, N, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, N, D], v_desc.layout)
    q_full, q_empty = barriers(2, 1), barriers(2, 1)
    k_full, k_empty = barriers(K_STAGES, 1), barriers(K_STAGES, 2)
    v_full, v_empty = barriers(STAGES, 1), barriers(STAGES, 2)
    bars = (k_full, k_empty, v_full, v_empty)
    gl.warp_specialize([
        (_compute_dq, (
            0, dq_desc, lse_ptr, delta_ptr, q_all, do_all, o_all, k_smem, v_smem, q_full, q_empty,
            bars, batch, length, keys, stride, GROUPS, R, SCALE, CAUSAL, HALF, N, STAGES,
        )),
        (_compute_dq, (
            1, dq_desc, lse_ptr, delta_ptr, q_all, do_all, o_all, k_smem, v_smem, q_full, q_empty,
            bars, batch, length, keys, stride, GROUPS, R, SCALE, CAUSAL, HALF, N, STAGES,
        )),
        (_fetch_keys, (
            q_desc, do_desc, k_desc, v_desc, q_all, do_all, k_smem, v_smem, q_full, q_empty, bars,
            batch, length, keys, GROUPS, SHARE, R, CAUSAL, HALF, N, STAGES,
        )),
    ], [4, 1], [240, 24])  # fmt: skip
