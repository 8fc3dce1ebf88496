"""Gated product of many rows on Hopper, in Gluon: both halves of the product stay in registers.

One warp fetches ``K`` columns of 128 rows and of the weights of ``WIDTH`` outputs, both halves: one
of ``STAGES`` buffers. Two groups of four warps multiply 64 rows each, and gate their products. They
are at different columns, so that one multiplies while the other gates. Programs are persistent:
they go from tile to tile, and the next tile is fetched meanwhile.

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
def _describe_halves(
    ptr, rows, columns, half_stride, row_stride, ROWS: gl.constexpr, COLUMNS: gl.constexpr
):
    """Describe boxes [2, ROWS, COLUMNS] of two matrices [rows, columns]."""
    box: gl.constexpr = [2, ROWS, COLUMNS]
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(box, ptr.dtype.element_ty)
    return tma.make_tensor_descriptor(
        ptr, [2, rows, columns], [half_stride, row_stride, 1], box, layout
    )


@gluon.jit
def _first(tile, rows, width, M: gl.constexpr, WIDTH: gl.constexpr, TOGETHER: gl.constexpr):
    """Return the first row and the first output of a tile."""
    i_m, i_n = hopper_tile_coordinates(tile, gl.cdiv(rows, M), gl.cdiv(width, WIDTH), TOGETHER)
    return i_m * M, i_n * WIDTH


@gluon.jit
def _compute(
    WHICH: gl.constexpr, y_desc, x_all, w_all, y_all, full, empty, rows, width, k,
    TOGETHER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute the rows of the group of warps ``WHICH``."""
    HALF: gl.constexpr = x_all.shape[1]
    WIDTH: gl.constexpr = w_all.shape[2]
    K: gl.constexpr = w_all.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * WIDTH, 16])
    y_box = y_all.index(WHICH)
    n_blocks = gl.cdiv(k, K)
    count = 0
    n_tiles = gl.cdiv(rows, 2 * HALF) * gl.cdiv(width, WIDTH)
    for tile in range(gl.program_id(0), n_tiles, gl.num_programs(0)):
        o_m, o_n = _first(tile, rows, width, 2 * HALF, WIDTH, TOGETHER)
        b_acc = gl.zeros((HALF, 2 * WIDTH), gl.float32, layout)
        for i_k in range(n_blocks):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), (count // STAGES) & 1)
            b_x = x_all.index(2 * stage + WHICH)
            b_w = w_all.index(stage).reshape([2 * WIDTH, K]).permute((1, 0))
            b_acc = multiply(b_x, b_w, b_acc, is_async=True)
            b_acc = multiplied(1, deps=(b_acc,))  # the product before; this one may go on
            mbarrier.arrive(empty.index((count - 1) % STAGES), count=1, pred=i_k > 0)
            count += 1
        b_acc = multiplied(0, deps=(b_acc,))
        mbarrier.arrive(empty.index((count - 1) % STAGES), count=1)
        b_gate, b_up = b_acc.reshape((HALF, 2, WIDTH)).permute((0, 2, 1)).split()
        b_y = b_gate / (1.0 + gl.exp2(b_gate * -1.4426950408889634)) * b_up
        tma.store_wait(0)  # of the tile before
        meet()
        y_box.store(b_y.to(y_all.dtype))
        fence()
        meet()
        store_box(y_desc, [o_m + WHICH * HALF, o_n], y_box)
    tma.store_wait(0)


@gluon.jit
def _fetch_all(
    x_desc, w_desc, x_all, w_all, full, empty, rows, width, k,
    TOGETHER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fetch all blocks, in one warp."""
    HALF: gl.constexpr = x_all.shape[1]
    K: gl.constexpr = x_all.shape[2]
    WIDTH: gl.constexpr = w_all.shape[2]
    BYTES: gl.constexpr = 2 * (HALF + WIDTH) * K * 2
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


@gluon.jit(do_not_specialize=["rows", "width", "k"])
def gated_many_rows_kernel(
    x_ptr, w_ptr, y_ptr, rows, width, k, x_row, w_half, w_row,
    HALF: gl.constexpr, WIDTH: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr,
    TOGETHER: gl.constexpr,
):  # fmt: skip
    """Compute ``y [rows, width] = silu(x G^T) * (x U^T)``; the weight has the rows of G, then U."""
    dtype: gl.constexpr = x_ptr.dtype.element_ty
    x_desc = _describe(x_ptr, rows, k, x_row, HALF, K)
    w_desc = _describe_halves(w_ptr, width, k, w_half, w_row, WIDTH, K)
    y_desc = _describe(y_ptr, rows, width, width, HALF, WIDTH)
    x_all = gl.allocate_shared_memory(dtype, [2 * STAGES, HALF, K], x_desc.layout)
    w_all = gl.allocate_shared_memory(dtype, [STAGES, 2, WIDTH, K], w_desc.layout)
    y_all = gl.allocate_shared_memory(dtype, [2, HALF, WIDTH], y_desc.layout)
    full, empty = barriers(STAGES, 1), barriers(STAGES, 2)
    gl.warp_specialize([
        (_compute, (
            0, y_desc, x_all, w_all, y_all, full, empty, rows, width, k, TOGETHER, STAGES,
        )),
        (_compute, (
            1, y_desc, x_all, w_all, y_all, full, empty, rows, width, k, TOGETHER, STAGES,
        )),
        (_fetch_all, (
            x_desc, w_desc, x_all, w_all, full, empty, rows, width, k, TOGETHER, STAGES,
        )),
    ], [4, 1], [240, 24])  # fmt: skip
