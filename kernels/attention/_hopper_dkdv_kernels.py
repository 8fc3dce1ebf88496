"""Attention's backward kernel for Hopper over keys, in Gluon: gradients of keys and values.

As in all kernels here nothing is added atomically: this one goes over blocks of rows for 128 keys,
that in ``_hopper_dq_kernels`` over blocks of keys for 128 rows. Normalisers and products ``out
dout`` are in the order of the packed rows of a group, so that they can be fetched like blocks.
"""

from kernels._hopper import (
    barriers,
    describe,
    load_box,
    mbarrier,
    multiplied,
    multiply,
    store_block,
    tma,
)
from kernels.attention._hopper_kernels import tile_of_turn, turns
from kernels.attention._order import hopper_tile_coordinates
from kernels.core.triton_helpers import gl, gluon


@gluon.jit
def _tile_of_keys(
    tile, batch, length, keys, window,
    GROUPS: gl.constexpr, TOGETHER: gl.constexpr, R: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, HALF: gl.constexpr, M: gl.constexpr,
):  # fmt: skip
    """Return a tile's sample, group and first key, and the range of row blocks that see its keys.

    The last four results are bounds of blocks: they need a mask from the first on, none from the
    second on, one again from the third on; the fourth is the end.
    """
    n_blocks = gl.cdiv(keys, 2 * HALF)
    i_bg, i_block = hopper_tile_coordinates(tile, batch * GROUPS, n_blocks, TOGETHER)
    first = i_block * (2 * HALF)  # the first keys are seen by most rows
    end = gl.cdiv(length * R, M)
    low = first * 0
    full = low
    edge = end
    if CAUSAL:
        s_first = first - (keys - length)
        s_last = s_first + 2 * HALF - 1
        low = gl.maximum(s_first, 0) * R // M
        if WINDOW:  # keys that no row sees still have one block
            end = gl.minimum(end, gl.cdiv(gl.maximum(s_last + window, 0) * R, M))
            end = gl.maximum(end, low + 1)
            edge = gl.minimum(end, gl.maximum(s_first + window, 0) * R // M)
        full = gl.minimum(gl.cdiv(gl.maximum(s_last, 0) * R, M), end)
        edge = gl.maximum(edge, full)
    return i_bg // GROUPS, i_bg % GROUPS, first, low, full, edge, end


@gluon.jit
def _rows_of(i, low, full, edge, end, SHARE: gl.constexpr, WINDOW: gl.constexpr):
    """Return the group and the block of a program's step ``i``; steps count from ``low``.

    The blocks that need a mask come first, for every group, then the others for every group.
    """
    if SHARE == 1 and not WINDOW:
        return 0, i
    some = full - low + end - edge
    masked = i - low < SHARE * some
    number = gl.where(masked, some, edge - full)
    i = i - low - gl.where(masked, 0, SHARE * some)
    i_m = gl.where(masked, low, full) + i % number
    if WINDOW:
        i_m += gl.where(masked & (i_m >= full), edge - full, 0)
    return i // number, i_m


@gluon.jit
def _add_rows(
    b_dk, b_dv, b_ds, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, bars, count, start,
    more, o_k, length, keys, window,
    R: gl.constexpr, LOG2: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
    FIRST: gl.constexpr, M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Process block ``count`` of the rows, from ``start`` on; add the block before to dk.

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
        if WINDOW:
            b_p = gl.where(o_k[:, None] > o_p[None, :] - window, b_p, 0.0)
    b_w = gl.convert_layout(b_p.to(q_smem.dtype), p_layout)
    b_dv = multiply(b_w, b_do, b_dv, is_async=True)
    if FIRST:
        b_dp = multiplied(1, deps=(b_dp,))
    else:
        b_dk, b_dp, b_ds = multiplied(1, deps=(b_dk, b_dp, b_ds))
        mbarrier.arrive(empty.index(before), count=1)
    b_delta = delta_smem.index(stage).reshape([M]).load(columns)
    b_ds = b_p * (b_dp - b_delta[None, :])
    # Here, for the reason given in the forward kernel.
    mbarrier.wait(q_full.index(after), ((count + 1) // STAGES) & 1, pred=more)
    mbarrier.wait(do_full.index(after), ((count + 1) // STAGES) & 1, pred=more)
    b_dv, b_w = multiplied(0, deps=(b_dv, b_w))
    return b_dk, b_dv, b_ds


@gluon.jit
def _compute_dkdv(
    WHICH: gl.constexpr, dk_desc, dv_desc, k_all, v_all, o_all, q_smem, do_smem, lse_smem,
    delta_smem, kv_full, kv_empty, bars, batch, length, keys, window,
    SETS: gl.constexpr, TOGETHER: gl.constexpr, SHARE: gl.constexpr, R: gl.constexpr,
    SCALE: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, HALF: gl.constexpr,
    M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute gradients of keys and values, in one group of warps."""
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
        i_b, i_g, first, low, full, edge, end = _tile_of_keys(
            tile, batch, length, keys, window, SETS, TOGETHER, R, CAUSAL, WINDOW, HALF, M
        )
        last = low + SHARE * (end - low)
        masked = last - SHARE * (edge - full)
        first += WHICH * HALF
        o_k = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, s_layout))
        b_dk = gl.zeros((HALF, D), gl.float32, o_layout)
        b_dv = gl.zeros((HALF, D), gl.float32, o_layout)
        b_ds = gl.zeros((HALF, M), gl.float32, s_layout)
        mbarrier.wait(kv_full.index(WHICH), i_t & 1)
        _, i_m = _rows_of(low, low, full, edge, end, SHARE, WINDOW)
        b_dk, b_dv, b_ds = _add_rows(
            b_dk, b_dv, b_ds, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, bars,
            count, i_m * M, low + 1 < last, o_k, length, keys, window,
            R, LOG2, WINDOW, CAUSAL, True, M, STAGES,
        )  # fmt: skip
        count += 1
        for i in range(low + 1, masked):
            _, i_m = _rows_of(i, low, full, edge, end, SHARE, WINDOW)
            b_dk, b_dv, b_ds = _add_rows(
                b_dk, b_dv, b_ds, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, bars,
                count, i_m * M, i + 1 < last, o_k, length, keys, window,
                R, LOG2, WINDOW, True, False, M, STAGES,
            )  # fmt: skip
            count += 1
        for i in range(gl.maximum(low + 1, masked), last):
            _, i_m = _rows_of(i, low, full, edge, end, SHARE, WINDOW)
            b_dk, b_dv, b_ds = _add_rows(
                b_dk, b_dv, b_ds, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, bars,
                count, i_m * M, i + 1 < last, o_k, length, keys, window,
                R, LOG2, WINDOW, False, False, M, STAGES,
            )  # fmt: skip
            count += 1
        before = (count + STAGES - 1) % STAGES
        b_w = gl.convert_layout(b_ds.to(q_smem.dtype), gl.DotOperandLayout(0, o_layout, 2))
        b_dk = multiply(b_w, q_smem.index(before).reshape([M, D]), b_dk, is_async=True)
        b_dk, b_w = multiplied(0, deps=(b_dk, b_w))
        mbarrier.arrive(bars[2].index(before), count=1)
        mbarrier.arrive(kv_empty.index(WHICH), count=1)
        store_block(b_dk * SCALE, dk_desc, [i_b, i_g, first, 0], o_all.index(WHICH))
        store_block(b_dv, dv_desc, [i_b, i_g, first, 0], o_all.index(WHICH))
    tma.store_wait(0)


@gluon.jit
def _fetch_rows(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, k_all, v_all, q_smem, do_smem, lse_smem,
    delta_smem, kv_full, kv_empty, bars, batch, length, keys, window,
    SETS: gl.constexpr, TOGETHER: gl.constexpr, SPLIT: gl.constexpr, SHARE: gl.constexpr,
    R: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, HALF: gl.constexpr,
    M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fetch blocks for the gradients of keys and values, in one warp."""
    q_full, do_full, empty = bars
    D: gl.constexpr = k_all.shape[4]
    BYTES: gl.constexpr = M * D * 2 + M * 4
    count = 0
    n_tiles = batch * SETS * gl.cdiv(keys, 2 * HALF)
    for i_t in range(turns(n_tiles)):
        tile = tile_of_turn(i_t)
        i_b, i_g, first, low, full, edge, end = _tile_of_keys(
            tile, batch, length, keys, window, SETS, TOGETHER, R, CAUSAL, WINDOW, HALF, M
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
            i_s, i_m = _rows_of(i, low, full, edge, end, SHARE, WINDOW)
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
    """Make a descriptor of ``M`` numbers in FP32 of a matrix [groups, rows]."""
    layout: gl.constexpr = gl.NVMMASharedLayout(0, 32, 2)
    return tma.make_tensor_descriptor(ptr, [groups, rows], [stride, 1], [1, M], layout)


@gluon.jit(do_not_specialize=["batch", "length", "keys", "window"])
def attention_hopper_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    batch, length, keys, window, stride,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    dout_batch, dout_head, dout_token, dk_batch, dk_head, dk_token, dv_batch, dv_head, dv_token,
    GROUPS: gl.constexpr, TOGETHER: gl.constexpr, SPLIT: gl.constexpr, SHARE: gl.constexpr,
    R: gl.constexpr, D: gl.constexpr, SCALE: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, HALF: gl.constexpr, M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv; ``lse_ptr`` and ``delta_ptr`` are packed, ``stride`` apart.

    A program goes over a set of ``SHARE`` groups. ``SPLIT`` sets have the same keys and values;
    each makes its part of their gradients.
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
            kv_full, kv_empty, bars, batch, length, keys, window,
            SETS, TOGETHER, SHARE, R, SCALE, CAUSAL, WINDOW, HALF, M, STAGES,
        )),
        (_compute_dkdv, (
            1, dk_desc, dv_desc, k_all, v_all, o_all, q_smem, do_smem, lse_smem, delta_smem,
            kv_full, kv_empty, bars, batch, length, keys, window,
            SETS, TOGETHER, SHARE, R, SCALE, CAUSAL, WINDOW, HALF, M, STAGES,
        )),
        (_fetch_rows, (
            q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, k_all, v_all, q_smem, do_smem,
            lse_smem, delta_smem, kv_full, kv_empty, bars, batch, length, keys, window,
            SETS, TOGETHER, SPLIT, SHARE, R, CAUSAL, WINDOW, HALF, M, STAGES,
        )),
    ], [4, 1], [240, 24])  # fmt: skip
