"""Attention's forward kernel for Hopper, in Gluon, with a separate task for each warp group.

The schedule is FlashAttention-3's (Shah et al. 2024, arXiv 2407.08608). One warp fetches queries,
keys and values by the tensor memory accelerator. Two groups of four warps have 64 packed rows each
(as in ``_flash_kernels``): while they compute the exponents of one block of scores, the weights of
the block before are multiplied by their values. Programs are persistent: they go from tile to tile,
those with most keys first.

A group has ``R`` heads, a power of two, whose rows are packed; ``SHARE`` consecutive groups have
the same keys and values. Blocks of keys are read from the last to the first. ``count`` is the
number of blocks that a program has read: it decides which of the ``STAGES`` buffers a block is in,
and the phase of that buffer's barriers. Queries have ``TURNS`` buffers: with two, those of the next
tile are fetched while the values of this one are added.
"""

from kernels._hopper import (
    barriers,
    describe,
    fence,
    fetch,
    mbarrier,
    meet,
    multiplied,
    multiply,
    store_box,
    tma,
)
from kernels.attention._order import hopper_tile_coordinates
from kernels.core.triton_helpers import gl, gluon


@gluon.jit
def tile_of_turn(i_t):
    """Return the tile of a program in its turn ``i_t``: forwards and backwards alternately.

    So the program with the longest tile of a turn has the shortest of the next.
    """
    last = gl.num_programs(0) - 1
    i_p = gl.program_id(0)
    return i_t * (last + 1) + gl.where(i_t % 2 == 0, i_p, last - i_p)


@gluon.jit
def turns(n_tiles):
    """Return how many turns a program has."""
    full = n_tiles // gl.num_programs(0)
    return full + (tile_of_turn(full) < n_tiles).to(gl.int32)


@gluon.jit
def tile_of_rows(
    tile, batch, length, keys, window,
    GROUPS: gl.constexpr, TOGETHER: gl.constexpr, R: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, HALF: gl.constexpr, N: gl.constexpr,
):  # fmt: skip
    """Return a tile's sample, group and first row, and the range of key blocks that it sees.

    The last four results are bounds of blocks: they need a mask from the first on, none from the
    second on, one again from the third on; the fourth is the end.
    """
    n_blocks = gl.cdiv(length * R, 2 * HALF)
    i_bg, i_block = hopper_tile_coordinates(tile, batch * GROUPS, n_blocks, TOGETHER)
    first = (n_blocks - 1 - i_block) * (2 * HALF)
    low = first * 0
    full = low
    edge = keys
    high = keys
    if CAUSAL:
        p_first = keys - length + first // R
        p_last = keys - length + gl.minimum((first + 2 * HALF - 1) // R, length - 1)
        edge = gl.minimum(keys, p_first + 1)
        high = gl.minimum(keys, p_last + 1)
        if WINDOW:
            low = gl.maximum(p_first - window + 1, 0) // N
            full = gl.minimum(gl.cdiv(gl.maximum(p_last - window + 1, 0), N), edge // N)
    return i_bg // GROUPS, i_bg % GROUPS, first, low, full, edge // N, gl.cdiv(high, N)


@gluon.jit
def part_of_keys(PART: gl.constexpr, low, full, edge, end):
    """Return the last and the first of a tile's blocks of keys before ``end``, of one part.

    Parts are read in turn: masked at the end, then free, then masked by the window.
    """
    if PART == 0:
        return end - 1, gl.minimum(edge, end)
    if PART == 1:
        return gl.minimum(edge, end) - 1, gl.minimum(full, end)
    return gl.minimum(full, end) - 1, low


@gluon.jit
def seen(b_s, o_p, start, keys, window, CAUSAL: gl.constexpr, WINDOW: gl.constexpr):
    """Return a mask of the keys from ``start`` on that the rows at positions ``o_p`` see."""
    o_k = start + gl.arange(0, b_s.shape[1], layout=gl.SliceLayout(0, b_s.type.layout))
    m_s = (o_k < keys)[None, :] & (o_p >= o_p)[:, None]
    if CAUSAL:
        m_s = m_s & (o_k[None, :] <= o_p[:, None])
    if WINDOW:
        m_s = m_s & (o_k[None, :] > o_p[:, None] - window)
    return m_s


@gluon.jit
def _weigh(
    b_s, b_m, b_l, o_p, start, keys, window,
    SCALE: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
    N: gl.constexpr,
):  # fmt: skip
    """Return weights of one block of scores, the factor for the sums before, and the new sums."""
    if MASKED:
        b_s = gl.where(seen(b_s, o_p, start, keys, window, CAUSAL, WINDOW), b_s, float("-inf"))
    b_top = gl.maximum(b_m, gl.max(b_s, axis=1) * SCALE)
    b_safe = b_top
    if MASKED:  # a row that has seen nothing yet must not subtract infinities
        b_safe = gl.where(b_top == float("-inf"), 0.0, b_top)
    b_p = gl.exp2(b_s * SCALE - b_safe[:, None])
    b_shrink = gl.exp2(b_m - b_safe)
    return b_p, b_shrink, b_top, b_l * b_shrink + gl.sum(b_p, axis=1)


@gluon.jit
def _await_keys(k_full, count, more, STAGES: gl.constexpr):
    """Wait for block ``count`` of the keys, if there are ``more``."""
    mbarrier.wait(k_full.index(count % STAGES), (count // STAGES) & 1, pred=more)


@gluon.jit
def _score(q_smem, k_smem, count, N: gl.constexpr, STAGES: gl.constexpr):
    """Begin to multiply the queries by block ``count`` of the keys, which has arrived."""
    HALF: gl.constexpr = q_smem.shape[0]
    D: gl.constexpr = q_smem.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    b_s = gl.zeros((HALF, N), gl.float32, layout)
    b_k = k_smem.index(count % STAGES).reshape([N, D]).permute((1, 0))
    return multiply(q_smem, b_k, b_s, use_acc=False, is_async=True)


@gluon.jit
def _add_values(b_acc, b_p, v_smem, v_full, count, STAGES: gl.constexpr):
    """Begin to add block ``count`` of the values, by their weights."""
    N: gl.constexpr = v_smem.shape[3]
    D: gl.constexpr = v_smem.shape[4]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    mbarrier.wait(v_full.index(count % STAGES), (count // STAGES) & 1)
    b_p = gl.convert_layout(b_p.to(v_smem.dtype), gl.DotOperandLayout(0, layout, 2))
    b_v = v_smem.index(count % STAGES).reshape([N, D])
    return multiply(b_p, b_v, b_acc, is_async=True), b_p


@gluon.jit
def _step(
    b_acc, b_p, b_m, b_l, o_p, q_smem, k_smem, v_smem, bars, count, start, more, keys, window,
    SCALE: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
    N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Process block ``count`` of the keys, from ``start`` on, and the values of the block before.

    ``more``: there is a block after.
    """
    k_full, k_empty, v_full, v_empty = bars
    b_s = _score(q_smem, k_smem, count, N, STAGES)
    b_acc, b_p = _add_values(b_acc, b_p, v_smem, v_full, count - 1, STAGES)
    b_s = multiplied(1, deps=(b_s,))
    mbarrier.arrive(k_empty.index(count % STAGES), count=1)
    b_w, b_shrink, b_m, b_l = _weigh(
        b_s, b_m, b_l, o_p, start, keys, window, SCALE, CAUSAL, WINDOW, MASKED, N
    )
    # The wait for the next keys is here and not where they are used: the assembler would otherwise
    # move the wait for the values above the exponents, and nothing would overlap with these.
    _await_keys(k_full, count + 1, more, STAGES)
    b_acc, b_p = multiplied(0, deps=(b_acc, b_p))
    mbarrier.arrive(v_empty.index((count - 1) % STAGES), count=1)
    b_shrink = gl.convert_layout(b_shrink, gl.SliceLayout(1, b_acc.type.layout))
    return b_acc * b_shrink[:, None], b_w, b_m, b_l


@gluon.jit
def _compute(
    WHICH: gl.constexpr, out_desc, lse_ptr, q_all, o_all, k_smem, v_smem, q_full, q_empty, bars,
    batch, length, keys, window,
    GROUPS: gl.constexpr, TOGETHER: gl.constexpr, R: gl.constexpr, SCALE: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr, KEEP: gl.constexpr, HALF: gl.constexpr,
    N: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """Compute the rows of the group of warps ``WHICH``."""
    k_full, k_empty, v_full, v_empty = bars
    D: gl.constexpr = q_all.shape[4]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    o_box = o_all.index(WHICH)
    count = 0
    n_tiles = batch * GROUPS * gl.cdiv(length * R, 2 * HALF)
    for i_t in range(turns(n_tiles)):
        tile = tile_of_turn(i_t)
        i_b, i_g, first, low, full, edge, end = tile_of_rows(
            tile, batch, length, keys, window, GROUPS, TOGETHER, R, CAUSAL, WINDOW, HALF, N
        )
        o_m = first + WHICH * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(1, s_layout))
        o_p = keys - length + o_m // R
        b_m = gl.full((HALF,), float("-inf"), gl.float32, gl.SliceLayout(1, s_layout))
        b_l = gl.full((HALF,), 0.0, gl.float32, gl.SliceLayout(1, s_layout))
        b_acc = gl.zeros((HALF, D), gl.float32, o_layout)
        i_q = 2 * (i_t % TURNS) + WHICH
        q_smem = q_all.index(i_q).reshape([HALF, D])
        mbarrier.wait(q_full.index(i_q), (i_t // TURNS) & 1)
        _await_keys(k_full, count, True, STAGES)
        b_s = _score(q_smem, k_smem, count, N, STAGES)
        b_s = multiplied(0, deps=(b_s,))
        mbarrier.arrive(k_empty.index(count % STAGES), count=1)
        b_p, _, b_m, b_l = _weigh(
            b_s, b_m, b_l, o_p, (end - 1) * N, keys, window, SCALE, CAUSAL, WINDOW, True, N
        )
        _await_keys(k_full, count + 1, end - 1 > low, STAGES)
        count += 1
        for PART in gl.static_range(2 + WINDOW):
            last, least = part_of_keys(PART, low, full, edge, end - 1)
            for i_k in range(last, least - 1, -1):
                b_acc, b_p, b_m, b_l = _step(
                    b_acc, b_p, b_m, b_l, o_p, q_smem, k_smem, v_smem, bars, count, i_k * N,
                    i_k > low, keys, window, SCALE, CAUSAL, WINDOW, PART != 1, N, STAGES,
                )  # fmt: skip
                count += 1
        mbarrier.arrive(q_empty.index(i_q), count=1)
        b_acc, b_p = _add_values(b_acc, b_p, v_smem, v_full, count - 1, STAGES)
        b_some = b_l > 0
        if KEEP:  # an infinite normaliser makes every weight of the backward pass zero
            b_lse = gl.where(b_some, b_m + gl.log2(b_l), float("inf"))
            o_s = o_m // R
            i_n = (i_b.to(gl.int64) * GROUPS * R + i_g * R + o_m % R) * length + o_s
            gl.store(lse_ptr + i_n, b_lse, mask=o_s < length)
        b_share = gl.convert_layout(1.0 / gl.where(b_some, b_l, 1.0), gl.SliceLayout(1, o_layout))
        tma.store_wait(0)  # the previous tile
        meet()
        b_acc, b_p = multiplied(0, deps=(b_acc, b_p))
        mbarrier.arrive(v_empty.index((count - 1) % STAGES), count=1)
        o_box.reshape([HALF, D]).store((b_acc * b_share[:, None]).to(o_all.dtype))
        fence()
        meet()
        at = [i_b, (first + WHICH * HALF) // R, i_g * R, 0]
        store_box(out_desc, at, o_box)
    tma.store_wait(0)


@gluon.jit
def _fetch_all(
    q_desc, k_desc, v_desc, q_all, k_smem, v_smem, q_full, q_empty, bars, batch, length, keys,
    window,
    GROUPS: gl.constexpr, TOGETHER: gl.constexpr, SHARE: gl.constexpr, R: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr, HALF: gl.constexpr, N: gl.constexpr,
    STAGES: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """Fetch all blocks of the forward pass, in one warp."""
    k_full, k_empty, v_full, v_empty = bars
    D: gl.constexpr = q_all.shape[4]
    BYTES: gl.constexpr = N * D * 2  # bytes of keys or values
    count = 0
    n_tiles = batch * GROUPS * gl.cdiv(length * R, 2 * HALF)
    for i_t in range(turns(n_tiles)):
        tile = tile_of_turn(i_t)
        i_b, i_g, first, low, _full, _edge, end = tile_of_rows(
            tile, batch, length, keys, window, GROUPS, TOGETHER, R, CAUSAL, WINDOW, HALF, N
        )
        for i_k in range(end - 1, low - 1, -1):
            stage = count % STAGES
            before = ((count // STAGES) & 1) ^ 1
            mbarrier.wait(k_empty.index(stage), before)
            from_keys = [i_b, i_g // SHARE, i_k * N, 0]
            fetch(k_desc, from_keys, k_smem.index(stage), k_full.index(stage), BYTES)
            if i_k == end - 1:  # after the keys, which do not wait for the tile before
                for i in gl.static_range(2):
                    i_q = 2 * (i_t % TURNS) + i
                    mbarrier.wait(q_empty.index(i_q), ((i_t // TURNS) & 1) ^ 1)
                    at = [i_b, (first + i * HALF) // R, i_g * R, 0]
                    fetch(q_desc, at, q_all.index(i_q), q_full.index(i_q), HALF * D * 2)
            mbarrier.wait(v_empty.index(stage), before)
            fetch(v_desc, from_keys, v_smem.index(stage), v_full.index(stage), BYTES)
            count += 1


@gluon.jit(do_not_specialize=["batch", "length", "keys", "window"])
def attention_hopper_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, batch, length, keys, window,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    out_batch, out_head, out_token,
    GROUPS: gl.constexpr, TOGETHER: gl.constexpr, SHARE: gl.constexpr, R: gl.constexpr,
    D: gl.constexpr, SCALE: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    KEEP: gl.constexpr, HALF: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
    TURNS: gl.constexpr,
):  # fmt: skip
    """Compute attention like ``attention_forward_kernel``, without split keys.

    A causal query must see one key at least. A ``WINDOW`` needs a causal mask.
    """
    H: gl.constexpr = GROUPS * R
    KEY_HEADS: gl.constexpr = GROUPS // SHARE
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    q_desc = describe(q_ptr, batch, length, H, q_batch, q_token, q_head, D, HALF // R, R)
    o_desc = describe(out_ptr, batch, length, H, out_batch, out_token, out_head, D, HALF // R, R)
    k_desc = describe(k_ptr, batch, KEY_HEADS, keys, k_batch, k_head, k_token, D, 1, N)
    v_desc = describe(v_ptr, batch, KEY_HEADS, keys, v_batch, v_head, v_token, D, 1, N)
    q_all = gl.allocate_shared_memory(dtype, [2 * TURNS, 1, HALF // R, R, D], q_desc.layout)
    o_all = gl.allocate_shared_memory(dtype, [2, 1, HALF // R, R, D], o_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, N, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, N, D], v_desc.layout)
    q_full, q_empty = barriers(2 * TURNS, 1), barriers(2 * TURNS, 1)
    k_full, v_full = barriers(STAGES, 1), barriers(STAGES, 1)
    k_empty, v_empty = barriers(STAGES, 2), barriers(STAGES, 2)
    bars = (k_full, k_empty, v_full, v_empty)
    LOG2: gl.constexpr = SCALE * 1.4426950408889634
    gl.warp_specialize([
        (_compute, (
            0, o_desc, lse_ptr, q_all, o_all, k_smem, v_smem, q_full, q_empty, bars,
            batch, length, keys, window,
            GROUPS, TOGETHER, R, LOG2, CAUSAL, WINDOW, KEEP, HALF, N, STAGES, TURNS,
        )),
        (_compute, (
            1, o_desc, lse_ptr, q_all, o_all, k_smem, v_smem, q_full, q_empty, bars,
            batch, length, keys, window,
            GROUPS, TOGETHER, R, LOG2, CAUSAL, WINDOW, KEEP, HALF, N, STAGES, TURNS,
        )),
        (_fetch_all, (
            q_desc, k_desc, v_desc, q_all, k_smem, v_smem, q_full, q_empty, bars,
            batch, length, keys, window,
            GROUPS, TOGETHER, SHARE, R, CAUSAL, WINDOW, HALF, N, STAGES, TURNS,
        )),
    ], [4, 1], [240, 24])  # fmt: skip
