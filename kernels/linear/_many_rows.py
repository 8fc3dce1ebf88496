"""The gated product of many rows on Hopper: its launch, and the inputs that it is made for.

Separate operators write the product, which is twice as wide as the result, and read it again. On an
H200 with 8,192 rows in BF16, 768 -> 2 x 2,048 takes 89 us, a product by cuBLAS 86, and with a
kernel for the gate 111.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels._hopper import HALF, WARPS, is_hopper
from kernels.core.autograd import are_operators
from kernels.core.launch import launcher
from kernels.core.operator import cdiv
from kernels.core.replay import replayed
from kernels.core.triton_helpers import describable, on_device, rows_of, sm_count
from kernels.linear._many_rows_kernels import gated_many_rows_kernel

COLUMNS = 64  # of x and of the weight in a block: 128 bytes
TOGETHER = 16  # tiles of rows that are computed together, so that they share weights in the L2
LEAST_ROWS = 2 * HALF  # of a tile
NARROW_COST = 0.51  # time of a tile of 64 outputs, if 128 take 1
_launch = launcher(gated_many_rows_kernel)


def is_for_many_rows(x: Tensor, weight: Tensor) -> bool:
    """Return True if the kernel can gate the product of ``x`` [..., K] and ``weight`` [2 F, K].

    It reads by tensor descriptors: rows begin at multiples of 16 bytes.
    """
    k = x.shape[-1]
    return (
        is_hopper(x.get_device())
        and x.dtype.itemsize == 2
        and x.is_floating_point()
        and x.numel() >= LEAST_ROWS * k > 0
        and k % 8 == 0
        and len(weight) % 16 == 0
        and len(weight) > 0
    )


def _tile(rows: int, width: int, at_once: int) -> tuple[int, int]:
    """Return outputs and buffers of a tile: those that need the least time in all turns."""

    def time(tile: tuple[int, int]) -> float:
        turns = cdiv(cdiv(rows, LEAST_ROWS) * cdiv(width, tile[0]), at_once)
        return turns * (1 if tile[0] == 128 else NARROW_COST)

    return min((128, 4), (64, 5), key=time)


@replayed
def _gate(x: Tensor, weight: Tensor) -> Tensor:
    # A descriptor needs aligned rows; a view may begin anywhere.
    x, weight = (t if describable(t) else t.clone(memory_format=torch.contiguous_format)
                 for t in (x, weight))  # fmt: skip
    k, width = x.shape[-1], len(weight) // 2
    rows = x.numel() // k
    y = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    at_once = sm_count(x.device.index)
    outputs, stages = _tile(rows, width, at_once)
    x, x_row = rows_of(x)
    programs = cdiv(rows, LEAST_ROWS) * cdiv(width, outputs)
    with on_device(x):
        _launch((min(programs, at_once),),
            x, weight, y, rows, width, k, x_row, width * weight.stride(0), weight.stride(0),
            HALF=HALF, WIDTH=outputs, K=COLUMNS, STAGES=stages, TOGETHER=TOGETHER,
            num_warps=WARPS,
        )  # fmt: skip
    return y


# A torch operator, which Dynamo puts into its graph: it cannot trace Gluon's kernels.
_LIBRARY = torch.library.Library("workbench", "FRAGMENT")
_LIBRARY.define(
    "gated_product(Tensor x, Tensor weight) -> Tensor",
    tags=(torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag),
)
_LIBRARY.impl("gated_product", _gate, "CompositeExplicitAutograd")
torch.library.register_fake(
    "workbench::gated_product",
    lambda x, weight: x.new_empty(*x.shape[:-1], len(weight) // 2),
    lib=_LIBRARY,
)


def gate_many_rows(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``silu(x G^T) * (x U^T)`` for the halves G and U of ``weight`` [2 F, K]: [..., F]."""
    gate = torch.ops.workbench.gated_product if are_operators() else _gate
    return gate(x, weight)  # type: ignore[no-any-return]
