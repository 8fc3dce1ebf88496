"""Parts that our Gluon kernels for Hopper share: names of its instructions, reads and writes.

One warp fetches blocks by the tensor memory accelerator into shared memory, where a barrier counts
the bytes that have arrived. Two groups of ``WARPS`` warps, with ``HALF`` rows of a tile each, use
them.
"""

from kernels import hardware
from kernels.core.operator import traced_as_constant
from kernels.core.triton_helpers import GLUON, gl, gluon, hopper

HALF, WARPS = 64, 4  # rows and warps of each of the two groups
mbarrier, tma = hopper.mbarrier, hopper.tma
fence, multiply, multiplied = (
    hopper.fence_async_shared, hopper.warpgroup_mma, hopper.warpgroup_mma_wait,
)  # fmt: skip
# Triton 3.6 has other names for these.
meet = getattr(gl, "barrier", None) or gl.thread_barrier
load_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@traced_as_constant
def is_hopper(device: int) -> bool:
    """Return True if a GPU multiplies by warp groups from shared memory; later ones do not."""
    return GLUON and device >= 0 and hardware.of_gpu(device).capability[0] == 9


@gluon.jit
def describe(
    ptr, batch, rows, columns, in_batch, in_row, in_column,
    D: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """Describe boxes [1, ROWS, COLUMNS, D] of a tensor [batch, rows, columns, D] by strides."""
    box: gl.constexpr = [1, ROWS, COLUMNS, D]
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(box, ptr.dtype.element_ty)
    shape = [batch, rows, columns, D]
    return tma.make_tensor_descriptor(ptr, shape, [in_batch, in_row, in_column, 1], box, layout)


@gluon.jit
def barriers(NUMBER: gl.constexpr, COUNT: gl.constexpr):
    """Allocate ``NUMBER`` barriers, each for that many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(made.index(i), count=COUNT)
    return made


@gluon.jit
def fetch(desc, at, box, full, BYTES: gl.constexpr):
    """Begin to fetch one block, and let ``full`` wait for it."""
    mbarrier.expect(full, BYTES)
    load_box(desc, at, full, box)


@gluon.jit
def store_block(b_x, desc, at, box):
    """Write a block through shared memory, after the previous write from there is complete."""
    ROWS: gl.constexpr = b_x.shape[0]
    D: gl.constexpr = b_x.shape[1]
    tma.store_wait(0)
    meet()
    box.reshape([ROWS, D]).store(b_x.to(box.dtype))
    fence()
    meet()
    store_box(desc, at, box)
