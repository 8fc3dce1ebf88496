"""Products of many rows on Hopper: their launch, and the inputs that they are made for.

What follows a product, a gate or the rotation of heads, is computed before it is written. Separate
operators write the product and read it again. On an H200 with 8,192 rows in BF16, 768 -> 2 x 2,048
with a gate takes 1.03 of the time of cuBLAS's product alone. The product and a kernel for the gate
take 1.29.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels._hopper import HALF, WARPS, is_hopper
from kernels.core.autograd import are_operators
from kernels.core.launch import launcher
from kernels.core.operator import cdiv
from kernels.core.replay import replayed
from kernels.core.triton_helpers import describable, on_device, rows_of, sm_count
from kernels.linear._many_rows_kernels import linear_many_rows_kernel

HEAD_DIMS = (32, 64, 128)  # head dimensions that fill a tile's columns
COLUMNS = 64  # columns of x and of the weight in a block: 128 bytes
TOGETHER = 16  # tiles of rows that are computed together, so that they share weights in the L2
LEAST_ROWS = 2 * HALF  # least rows of a tile
WIDE, NARROW = 256, 128  # columns of a tile
NARROW_TIME = 0.54  # time of a narrow tile relative to a wide tile
_launch = launcher(linear_many_rows_kernel)


def is_for_many_rows(x: Tensor, weight: Tensor, parts: int) -> bool:
    """Return True if the kernel can multiply ``x`` [..., K] and ``weight`` [parts N, K].

    It reads and writes by tensor descriptors: rows begin at multiples of 16 bytes.
    """
    k = x.shape[-1]
    return (
        is_hopper(x.get_device())
        and x.dtype in (torch.float16, torch.bfloat16)
        and x.numel() >= LEAST_ROWS * k > 0
        and k % 8 == 0
        and len(weight) % (8 * parts) == 0
        and len(weight) > 0
    )


def _columns(rows: int, width: int, parts: int, at_once: int) -> int:
    """Return the columns of a tile: those that need the least time in all turns."""

    def time(columns: int) -> float:
        turns = cdiv(cdiv(rows, LEAST_ROWS) * cdiv(parts * width, columns), at_once)
        return turns * (1 if columns == WIDE else NARROW_TIME)

    return min(WIDE, NARROW, key=time)


def _multiply(x: Tensor, weight: Tensor, parts: int, *heads: Any, **constants: Any) -> Tensor:
    # A descriptor needs aligned rows; a view may begin anywhere.
    x, weight = (t if describable(t) else t.clone(memory_format=torch.contiguous_format)
                 for t in (x, weight))  # fmt: skip
    k, width = x.shape[-1], len(weight) // parts
    rows = x.numel() // k
    y = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    x, x_row = rows_of(x)
    cos, sin, q_norm, k_norm, length, offset = heads or (None,) * 4 + (1, 0)
    at_once = sm_count(x.device.index)
    columns = _columns(rows, width, parts, at_once)
    programs = cdiv(rows, LEAST_ROWS) * cdiv(parts * width, columns)
    with on_device(x):
        _launch((min(programs, at_once),),
            x, weight, cos, sin, q_norm, k_norm, y, rows, width, k, length, offset,
            x_row, width * weight.stride(0), weight.stride(0), 0 if cos is None else cos.stride(0),
            PARTS=parts, HALF=HALF, WIDTH=columns // parts, K=COLUMNS,
            # The output of rotated heads is as wide as the product, and takes a buffer's memory.
            STAGES=5 if columns == NARROW else 2 + parts, TOGETHER=TOGETHER, num_warps=WARPS,
            **constants,
        )  # fmt: skip
    return y


@replayed
def _gate(x: Tensor, weight: Tensor) -> Tensor:
    return _multiply(x, weight, 2, Q_HEADS=0, K_HEADS=0, D=0, EPS=0.0)


@replayed
def _turn(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    q_heads: int,
    k_heads: int,
    eps: float,
    offset: int,
) -> Tensor:
    cos, sin = cos.contiguous(), sin.contiguous()
    if q_norm is not None and k_norm is not None:
        q_norm, k_norm = q_norm.contiguous(), k_norm.contiguous()
    dim = len(weight) // (q_heads + 2 * k_heads)
    heads = {"Q_HEADS": q_heads, "K_HEADS": k_heads, "D": dim, "EPS": eps}
    return _multiply(x, weight, 1, cos, sin, q_norm, k_norm, x.shape[-2], offset, **heads)


# Torch operators, which Dynamo puts into its graph: it cannot trace Gluon's kernels.
_LIBRARY = torch.library.Library("workbench", "FRAGMENT")
for _schema, _operator, _parts in (
    ("linear_gate(Tensor x, Tensor weight) -> Tensor", _gate, 2),
    (
        "linear_turn(Tensor x, Tensor weight, Tensor cos, Tensor sin, Tensor? q_norm, "
        "Tensor? k_norm, int q_heads, int k_heads, float eps, SymInt offset) -> Tensor",
        _turn,
        1,
    ),
):
    _LIBRARY.define(_schema, tags=(torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag))
    _name = _schema.partition("(")[0]
    _LIBRARY.impl(_name, _operator, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"workbench::{_name}",
        lambda x, weight, *_, parts=_parts: x.new_empty(*x.shape[:-1], len(weight) // parts),
        lib=_LIBRARY,
    )


def gate_many_rows(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``silu(x G^T) * (x U^T)`` for the halves G and U of ``weight`` [2 F, K]: [..., F]."""
    gate = torch.ops.workbench.linear_gate if are_operators() else _gate
    return gate(x, weight)  # type: ignore[no-any-return]


def turn_many_rows(*inputs: Any) -> Tensor:
    """Return heads (B, S, X D) of tokens, X = H + 2 G, with queries and keys rotated.

    The arguments are those of ``_turn``: tokens (B, S, E), their weight (X D, E), cosines and sines
    of positions [T, D / 2], both norms' weights [D] or None, H, G, the norms' epsilon, and the
    first token's position.
    """
    turn = torch.ops.workbench.linear_turn if are_operators() else _turn
    return turn(*inputs)  # type: ignore[no-any-return]
