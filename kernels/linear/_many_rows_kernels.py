"""Products of many rows on Hopper, in Gluon, with what follows them: they stay in registers.

One warp fetches ``K`` columns of 128 rows, and of the weights of ``WIDTH`` outputs: one of
``STAGES`` buffers. A gated product has two weights for each output, so that ``PARTS`` is 2. Two
groups of four warps multiply 64 rows each, and then gate or rotate their products. Programs are
persistent: they go from tile to tile, and the next tile is fetched meanwhile. Each task describes
the matrices that it reads or writes, because all tasks can do so at the same time.

``count`` is the number of blocks that a program has read: it decides which buffer a block is in,
and the phase of that buffer's barriers.
"""

from kernels._hopper import (
    barriers,
    fence,
    load_box,
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
def _describe(ptr, rows, columns, row_stride, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Describe boxes [ROWS, COLUMNS] of a matrix [rows, columns]."""
    box: gl.constexpr = [ROWS, COLUMNS]
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(box, ptr.dtype.element_ty)
    return tma.make_tensor_descriptor(ptr, [rows, columns], [row_stride, 1], box, layout)


@gluon.jit
def _describe_parts(
    ptr, rows, columns, part_stride, row_stride,
    PARTS: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """Describe boxes [PARTS, ROWS, COLUMNS] of so many matrices [rows, columns]."""
    box: gl.constexpr = [PARTS, ROWS, COLUMNS]
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(box, ptr.dtype.element_ty)
    return tma.make_tensor_descriptor(
        ptr, [PARTS, rows, columns], [part_stride, row_stride, 1], box, layout
    )


@gluon.jit
def _first(tile, rows, width, M: gl.constexpr, WIDTH: gl.constexpr, TOGETHER: gl.constexpr):
    """Return the first row and the first output of a tile."""
    i_m, i_n = hopper_tile_coordinates(tile, gl.cdiv(rows, M), gl.cdiv(width, WIDTH), TOGETHER)
    return i_m * M, i_n * WIDTH


@gluon.jit
def _gate(b_acc):
    """Return ``silu(gate) * up`` of the halves of a block's columns."""
    ROWS: gl.constexpr = b_acc.shape[0]
    WIDTH: gl.constexpr = b_acc.shape[1] // 2
    b_gate, b_up = b_acc.reshape((ROWS, 2, WIDTH)).permute((0, 2, 1)).split()
    return b_gate / (1.0 + gl.exp2(b_gate * -1.4426950408889634)) * b_up


@gluon.jit
def _halves(b_acc, D: gl.constexpr):
    """Return both halves [ROWS, HEADS, D / 2] of the heads in a block's columns."""
    ROWS: gl.constexpr = b_acc.shape[0]
    HEADS: gl.constexpr = b_acc.shape[1] // D
    return b_acc.reshape((ROWS, HEADS, 2, D // 2)).permute((0, 1, 3, 2)).split()


@gluon.jit
def _angles(b_acc, o_m, cos_ptr, sin_ptr, length, offset, table_stride, D: gl.constexpr):
    """Return cosines and sines [ROWS, 1, D / 2], in the layout of the halves of ``b_acc``.

    Rows, from ``o_m`` on, are tokens of sequences of that ``length``, from position ``offset`` on.
    The values of ``b_acc`` are not used.
    """
    b_a, _ = _halves(b_acc, D)
    table: gl.constexpr = gl.SliceLayout(1, b_a.type.layout)  # [ROWS, D / 2]
    o_row = o_m + gl.arange(0, b_a.shape[0], layout=gl.SliceLayout(1, table))
    o_r = gl.arange(0, D // 2, layout=gl.SliceLayout(0, table))
    o_t = (o_row % length + offset)[:, None] * table_stride + o_r[None, :]
    b_cos = gl.load(cos_ptr + o_t).to(gl.float32).expand_dims(1)
    return b_cos, gl.load(sin_ptr + o_t).to(gl.float32).expand_dims(1)


@gluon.jit
def _turn(
    b_acc, b_cos, b_sin, o_n, q_norm_ptr, k_norm_ptr,
    Q_HEADS: gl.constexpr, K_HEADS: gl.constexpr, D: gl.constexpr, EPS: gl.constexpr,
):  # fmt: skip
    """Return the heads of a block with queries and keys normalised and rotated, values unchanged.

    Its first column, ``o_n``, is the start of a head.
    """
    ROWS: gl.constexpr = b_acc.shape[0]
    HEADS: gl.constexpr = b_acc.shape[1] // D
    R: gl.constexpr = D // 2
    b_a, b_b = _halves(b_acc, D)
    gain: gl.constexpr = gl.SliceLayout(0, b_a.type.layout)  # [HEADS, R]
    o_head = o_n // D + gl.arange(0, HEADS, layout=gl.SliceLayout(1, gain))
    m_turn = (o_head < Q_HEADS + K_HEADS).expand_dims(1).expand_dims(0)
    b_c = b_a
    b_d = b_b
    if q_norm_ptr is not None:
        b_square = gl.sum(b_a * b_a, axis=2) + gl.sum(b_b * b_b, axis=2)
        b_factor = gl.rsqrt(b_square * (1.0 / D) + EPS).expand_dims(2)
        o_g = gl.arange(0, R, layout=gl.SliceLayout(0, gain))[None, :]
        m_key = (o_head >= Q_HEADS)[:, None]
        b_q = gl.load(q_norm_ptr + o_g).to(gl.float32)
        b_k = gl.load(k_norm_ptr + o_g).to(gl.float32)
        b_c = b_a * b_factor * gl.where(m_key, b_k, b_q).expand_dims(0)
        b_q = gl.load(q_norm_ptr + R + o_g).to(gl.float32)
        b_k = gl.load(k_norm_ptr + R + o_g).to(gl.float32)
        b_d = b_b * b_factor * gl.where(m_key, b_k, b_q).expand_dims(0)
    b_e = gl.where(m_turn, b_c * b_cos - b_d * b_sin, b_a)
    b_f = gl.where(m_turn, b_d * b_cos + b_c * b_sin, b_b)
    return gl.join(b_e, b_f).permute((0, 1, 3, 2)).reshape((ROWS, HEADS * D))


@gluon.jit
def _compute(
    WHICH: gl.constexpr, y_ptr, x_all, w_all, y_all, full, empty, rows, width, k,
    cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, length, offset, table_stride,
    Q_HEADS: gl.constexpr, K_HEADS: gl.constexpr, D: gl.constexpr, EPS: gl.constexpr,
    TOGETHER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute the rows of the group of warps ``WHICH``."""
    HALF: gl.constexpr = x_all.shape[1]
    PARTS: gl.constexpr = w_all.shape[1]
    WIDTH: gl.constexpr = w_all.shape[2]
    K: gl.constexpr = w_all.shape[3]
    N: gl.constexpr = PARTS * WIDTH
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    y_box = y_all.index(WHICH)
    y_desc = _describe(y_ptr, rows, width, width, HALF, WIDTH)
    n_blocks = gl.cdiv(k, K)
    count = 0
    n_tiles = gl.cdiv(rows, 2 * HALF) * gl.cdiv(width, WIDTH)
    for tile in range(gl.program_id(0), n_tiles, gl.num_programs(0)):
        o_m, o_n = _first(tile, rows, width, 2 * HALF, WIDTH, TOGETHER)
        o_m += WHICH * HALF
        b_acc = gl.zeros((HALF, N), gl.float32, layout)
        if PARTS == 1:  # loaded while blocks are multiplied
            b_cos, b_sin = _angles(
                b_acc, o_m, cos_ptr, sin_ptr, length, offset, table_stride, D
            )  # fmt: skip
        for i_k in range(n_blocks):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), (count // STAGES) & 1)
            b_w = w_all.index(stage).reshape([N, K]).permute((1, 0))
            b_acc = multiply(x_all.index(2 * stage + WHICH), b_w, b_acc, is_async=True)
            b_acc = multiplied(1, deps=(b_acc,))  # the product before; this one may go on
            mbarrier.arrive(empty.index((count - 1) % STAGES), count=1, pred=i_k > 0)
            count += 1
        b_acc = multiplied(0, deps=(b_acc,))
        mbarrier.arrive(empty.index((count - 1) % STAGES), count=1)
        if PARTS == 2:
            b_y = _gate(b_acc)
        else:
            b_y = _turn(
                b_acc, b_cos, b_sin, o_n, q_norm_ptr, k_norm_ptr, Q_HEADS, K_HEADS, D, EPS
            )  # fmt: skip
        tma.store_wait(0)  # the previous tile
        meet()
        y_box.store(b_y.to(y_all.dtype))
        fence()
        meet()
        store_box(y_desc, [o_m, o_n], y_box)
    tma.store_wait(0)


@gluon.jit
def _fetch_all(
    x_all, w_all, full, empty, x_ptr, w_ptr, x_row, w_part, w_row, rows, width, k,
    TOGETHER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fetch all blocks, in one warp."""
    HALF: gl.constexpr = x_all.shape[1]
    PARTS: gl.constexpr = w_all.shape[1]
    WIDTH: gl.constexpr = w_all.shape[2]
    K: gl.constexpr = w_all.shape[3]
    BYTES: gl.constexpr = (2 * HALF + PARTS * WIDTH) * K * 2
    x_desc = _describe(x_ptr, rows, k, x_row, HALF, K)
    w_desc = _describe_parts(w_ptr, width, k, w_part, w_row, PARTS, WIDTH, K)
    count = 0
    n_tiles = gl.cdiv(rows, 2 * HALF) * gl.cdiv(width, WIDTH)
    for tile in range(gl.program_id(0), n_tiles, gl.num_programs(0)):
        o_m, o_n = _first(tile, rows, width, 2 * HALF, WIDTH, TOGETHER)
        for i_k in range(gl.cdiv(k, K)):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
            arrived = full.index(stage)
            mbarrier.expect(arrived, BYTES)
            load_box(w_desc, [0, o_n, i_k * K], arrived, w_all.index(stage))
            for i in gl.static_range(2):
                load_box(x_desc, [o_m + i * HALF, i_k * K], arrived, x_all.index(2 * stage + i))
            count += 1


@gluon.jit(do_not_specialize=["rows", "width", "k", "length", "offset"])
def linear_many_rows_kernel(
    x_ptr, w_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, y_ptr, rows, width, k, length, offset,
    x_row, w_part, w_row, table_stride,
    Q_HEADS: gl.constexpr, K_HEADS: gl.constexpr, D: gl.constexpr, EPS: gl.constexpr,
    PARTS: gl.constexpr, HALF: gl.constexpr, WIDTH: gl.constexpr, K: gl.constexpr,
    STAGES: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    """Compute ``y [rows, width]``, a gated product (two ``PARTS``) or one of rotated heads.

    A gated product has no heads: their arguments are None and 0.
    """
    dtype: gl.constexpr = x_ptr.dtype.element_ty
    x_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF, K], dtype)
    w_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([PARTS, WIDTH, K], dtype)
    y_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF, WIDTH], dtype)
    x_all = gl.allocate_shared_memory(dtype, [2 * STAGES, HALF, K], x_layout)
    w_all = gl.allocate_shared_memory(dtype, [STAGES, PARTS, WIDTH, K], w_layout)
    y_all = gl.allocate_shared_memory(dtype, [2, HALF, WIDTH], y_layout)
    full, empty = barriers(STAGES, 1), barriers(STAGES, 2)
    gl.warp_specialize([
        (_compute, (
            0, y_ptr, x_all, w_all, y_all, full, empty, rows, width, k, cos_ptr, sin_ptr,
            q_norm_ptr, k_norm_ptr, length, offset, table_stride, Q_HEADS, K_HEADS, D, EPS,
            TOGETHER, STAGES,
        )),
        (_compute, (
            1, y_ptr, x_all, w_all, y_all, full, empty, rows, width, k, cos_ptr, sin_ptr,
            q_norm_ptr, k_norm_ptr, length, offset, table_stride, Q_HEADS, K_HEADS, D, EPS,
            TOGETHER, STAGES,
        )),
        (_fetch_all, (
            x_all, w_all, full, empty, x_ptr, w_ptr, x_row, w_part, w_row, rows, width, k,
            TOGETHER, STAGES,
        )),
    ], [4, 1], [240, 24])  # fmt: skip
