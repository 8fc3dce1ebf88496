"""The product of a few rows with a weight matrix, and what surrounds it in a model, by Triton.

A program computes 16 outputs or so of up to 16 rows. The K products of an output are added in
``SPLIT`` sums at once, because each multiplication of a tile waits for the one before it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.core.operator import Mistake, alike, cdiv, unit_stride
from kernels.core.triton_helpers import (
    MAX_GRID,
    dot_precision,
    no_fp64,
    on_device,
    rows_of,
    sm_count,
)
from kernels.core.tuning import Key, Tile
from kernels.linear._kernels import launch_few_rows

LEAST_OUTPUTS = 16  # least outputs of a program


def check_product(
    operator: str,
    x: Tensor,
    weight: Tensor,
    optional: dict[str, tuple[Tensor | None, tuple[int, ...]]],
) -> None:
    """Raise ``Mistake`` unless ``x`` fits the weight and optional tensors have their shapes."""
    tensors = {"weight": weight} | {name: tensor for name, (tensor, _) in optional.items()}
    alike(operator, f"x {' '.join(tensors)}", x, *tensors.values())
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise Mistake(
            f"{operator}: expected x [..., K] and a weight [N, K], but got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}"
        )
    for name, (tensor, shape) in optional.items():
        if tensor is not None and tensor.shape != shape:
            raise Mistake(
                f"{operator}: with a weight {tuple(weight.shape)} {name} must be {tuple(shape)}, "
                f"but is {tuple(tensor.shape)}"
            )
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != x.dtype:
            raise Mistake(
                f"{operator}: {name} must have x's dtype, {x.dtype}, but has {tensor.dtype}"
            )


def few_rows_refusal(x: Tensor, weight: Tensor, *_: Any) -> str | None:
    """Return why the Triton kernel cannot multiply ``x`` and ``weight``."""
    if not x.numel() or not weight.numel():
        return "does not support empty tensors"
    if len(weight) > LEAST_OUTPUTS * MAX_GRID:
        return f"supports up to {LEAST_OUTPUTS * MAX_GRID} outputs, not {len(weight)}"
    return no_fp64(x)


def few_rows_tiles(
    device: int, k: int, rows: int, width: str, dtype: torch.dtype, *_: Any
) -> list[Tile]:
    """Return outputs per program, inputs per step and sum, sums, warps and stages of each tile.

    The first was measured on an H200 with 8 rows: in BF16, 768 -> 4096 takes 4.1 us (cuBLAS 5.0),
    2048 -> 768 takes 4.0 (7.3), and 768 -> 1536 takes 3.2 (3.9).
    """
    if dtype.itemsize == 4:
        return [(16, 64, 2, 2, 3), (16, 32, 4, 4, 3), (16, 32, 2, 2, 4), (32, 32, 4, 4, 3)]
    narrow = (16, 64 if k < 1024 else 128, 4, 4, 4)
    tiles = [(16, 128, 2, 2, 4), narrow] if width == "wide" else [narrow, (16, 128, 2, 2, 4)]
    return [*tiles, (16, 64, 2, 2, 4), (16, 128, 4, 4, 3), (16, 64, 8, 8, 4), (32, 64, 4, 4, 3)]


def few_rows_key(x: Tensor, weight: Tensor) -> Key:
    """Return what the tile of a product of few rows depends on."""
    n_outputs, k = weight.shape
    rows = 8 if x.numel() <= 8 * k else 16
    width = "wide" if n_outputs > 16 * sm_count(x.device.index) else "narrow"
    return x.get_device(), k, rows, width, x.dtype


def multiply_few_rows(
    tile: Tile,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    *,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    eps: float = 0.0,
) -> None:
    """Write ``residual + norm(x) W^T + b`` to ``y``, without what is None.

    ``gated``: the product's first half is a gate, and y is ``residual + silu(gate) * other half``.
    """
    k, n_outputs = weight.shape[1], y.shape[-1]
    n_rows = x.numel() // k
    block_n, block_k, split, warps, stages = tile
    rows = 8 if n_rows <= 8 else 16
    x, x_stride = rows_of(x)
    residual, residual_stride = (None, 0) if residual is None else rows_of(residual)
    weight = unit_stride(weight)
    with on_device(x):
        launch_few_rows(
            (cdiv(n_rows, rows), cdiv(n_outputs, block_n)),
            x,
            weight,
            bias if bias is None else bias.contiguous(),
            norm if norm is None else norm.contiguous(),
            residual,
            y,
            n_rows,
            n_outputs,
            x_stride,
            residual_stride,
            weight.stride(0),
            eps,
            K=k,
            HAS_BIAS=bias is not None,
            GATED=gated,
            HAS_NORM=norm is not None,
            HAS_RESIDUAL=residual is not None,
            PRECISION=dot_precision(),
            ROWS=rows,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            SPLIT=split,
            STAGES=stages,
            num_warps=warps,
        )
