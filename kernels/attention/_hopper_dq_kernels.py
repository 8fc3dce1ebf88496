"""Attention's backward kernel for Hopper over queries, in Gluon: their gradient.

Like ``_hopper_dkdv_kernels``, with queries and keys exchanged.
"""

from kernels._hopper import (
    barriers,
    describe,
    fetch,
    load_box,
    mbarrier,
    multiplied,
    multiply,
    store_block,
    tma,
)
from kernels.attention._hopper_kernels import part_of_keys, seen, tile_of_rows, tile_of_turn, turns
from kernels.core.triton_helpers import gl, gluon


@gluon.jit
def _add_keys(
    b_dq, b_ds, q_smem, do_smem, k_smem, v_smem, bars, count, start, more, o_p, b_lse, b_delta,
    keys, window,
    LOG2: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
    FIRST: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Process block ``count`` of the keys, from ``start`` on; meanwhile add the block before.

    ``FIRST``: there is none before, ``more``: there is one after. There is one more buffer of keys
    than of values.
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
        b_p = gl.where(seen(b_s, o_p, start, keys, window, CAUSAL, WINDOW), b_p, 0.0)
    b_ds = b_p * (b_dp - b_delta[:, None])
    # Here, for the reason given in the forward kernel.
    after = count + 1
    mbarrier.wait(k_full.index(after % K_STAGES), (after // K_STAGES) & 1, pred=more)
    if not FIRST:
        b_dq, b_w = multiplied(0, deps=(b_dq, b_w))
        mbarrier.arrive(k_empty.index((count - 1) % K_STAGES), count=1)
    return b_dq, b_ds


@gluon.jit
def _compute_dq(
    WHICH: gl.constexpr, dq_desc, lse_ptr, delta_ptr, q_all, do_all, o_all, k_smem, v_smem,
    q_full, q_empty, bars, batch, length, keys, window, stride,
    GROUPS: gl.constexpr, TOGETHER: gl.constexpr, R: gl.constexpr, SCALE: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr, HALF: gl.constexpr, N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Compute gradients of queries, in one group of warps."""
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
        i_b, i_g, first, low, full, edge, end = tile_of_rows(
            tile, batch, length, keys, window, GROUPS, TOGETHER, R, CAUSAL, WINDOW, HALF, N
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
            b_dq, b_ds, q_smem, do_smem, k_smem, v_smem, bars, count, (end - 1) * N, end - 1 > low,
            o_p, b_lse, b_delta, keys, window, LOG2, CAUSAL, WINDOW, True, True, N, STAGES,
        )  # fmt: skip
        count += 1
        for PART in gl.static_range(2 + WINDOW):
            last, least = part_of_keys(PART, low, full, edge, end - 1)
            for i_k in range(last, least - 1, -1):
                b_dq, b_ds = _add_keys(
                    b_dq, b_ds, q_smem, do_smem, k_smem, v_smem, bars, count, i_k * N, i_k > low,
                    o_p, b_lse, b_delta, keys, window, LOG2, CAUSAL, WINDOW, PART != 1, False, N,
                    STAGES,
                )  # fmt: skip
                count += 1
        mbarrier.arrive(q_empty.index(WHICH), count=1)
        before = (count - 1) % (STAGES + 1)
        b_w = gl.convert_layout(b_ds.to(q_all.dtype), gl.DotOperandLayout(0, o_layout, 2))
        b_dq = multiply(b_w, k_smem.index(before).reshape([N, D]), b_dq, is_async=True)
        b_dq, b_w = multiplied(0, deps=(b_dq, b_w))
        mbarrier.arrive(bars[1].index(before), count=1)
        store_block(b_dq * SCALE, dq_desc, [i_b, first // R, i_g * R, 0], o_all.index(WHICH))
    tma.store_wait(0)


@gluon.jit
def _fetch_keys(
    q_desc, do_desc, k_desc, v_desc, q_all, do_all, k_smem, v_smem, q_full, q_empty, bars,
    batch, length, keys, window,
    GROUPS: gl.constexpr, TOGETHER: gl.constexpr, SHARE: gl.constexpr, R: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr, HALF: gl.constexpr, N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Fetch blocks for the gradients of queries, in one warp."""
    k_full, k_empty, v_full, v_empty = bars
    K_STAGES: gl.constexpr = STAGES + 1
    D: gl.constexpr = q_all.shape[4]
    BYTES: gl.constexpr = N * D * 2
    count = 0
    n_tiles = batch * GROUPS * gl.cdiv(length * R, 2 * HALF)
    for i_t in range(turns(n_tiles)):
        tile = tile_of_turn(i_t)
        i_b, i_g, first, low, _full, _edge, end = tile_of_rows(
            tile, batch, length, keys, window, GROUPS, TOGETHER, R, CAUSAL, WINDOW, HALF, N
        )
        for i_k in range(end - 1, low - 1, -1):
            at = [i_b, i_g // SHARE, i_k * N, 0]
            stage = count % K_STAGES
            mbarrier.wait(k_empty.index(stage), ((count // K_STAGES) & 1) ^ 1)
            fetch(k_desc, at, k_smem.index(stage), k_full.index(stage), BYTES)
            if i_k == end - 1:
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


@gluon.jit(do_not_specialize=["batch", "length", "keys", "window"])
def attention_hopper_dq_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, batch, length, keys, window, stride,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    dout_batch, dout_head, dout_token, dq_batch, dq_head, dq_token,
    GROUPS: gl.constexpr, TOGETHER: gl.constexpr, SHARE: gl.constexpr, R: gl.constexpr,
    D: gl.constexpr, SCALE: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    HALF: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute the gradient of queries; ``lse_ptr`` and ``delta_ptr`` as for keys."""
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
            bars, batch, length, keys, window, stride,
            GROUPS, TOGETHER, R, SCALE, CAUSAL, WINDOW, HALF, N, STAGES,
        )),
        (_compute_dq, (
            1, dq_desc, lse_ptr, delta_ptr, q_all, do_all, o_all, k_smem, v_smem, q_full, q_empty,
            bars, batch, length, keys, window, stride,
            GROUPS, TOGETHER, R, SCALE, CAUSAL, WINDOW, HALF, N, STAGES,
        )),
        (_fetch_keys, (
            q_desc, do_desc, k_desc, v_desc, q_all, do_all, k_smem, v_smem, q_full, q_empty, bars,
            batch, length, keys, window,
            GROUPS, TOGETHER, SHARE, R, CAUSAL, WINDOW, HALF, N, STAGES,
        )),
    ], [4, 1], [240, 24])  # fmt: skip
