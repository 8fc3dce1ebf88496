"""Root mean square normalisation over the last dimension.

    y = x / sqrt(mean(x^2) + eps) * weight

Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (arXiv 1910.07467), equation 4.
With r = 1 / sqrt(mean(x^2) + eps), n = x r and g = dy weight, the gradients are

    dx = r (g - n mean(g n)),    dweight = sum over rows of dy n.

Arithmetic is in FP32 whatever the inputs are; the result has x's dtype, under autocast too.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import applied, needs_gradient, once_differentiable
from kernels.core.column_sum import column_sum
from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Huge,
    Implementation,
    Inputs,
    Mistake,
    Operator,
    Work,
    accumulator,
    alike,
    always,
    blank,
    cdiv,
    random_tensor,
    tensor_bytes,
    unit_stride,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    missing,
    no_fp64,
    on_device,
    power_of_two,
    rows_of,
    shared_bytes,
    sm_count,
)
from kernels.core.tuning import Tile, Tunable, size_class
from kernels.measure import peers
from kernels.rms_norm._kernels import (
    launch_backward,
    launch_forward,
    rms_norm_backward_kernel,
    rms_norm_forward_kernel,
)

FEW_ROWS = 256  # up to here a row's latency counts more than the bandwidth
WIDE = 6144  # columns above which a step has 16 warps
MAX_DIM = 65536  # a backward program holds one row in registers


def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, *, impl: str | None = None
) -> Tensor:
    """Normalise the rows of ``x``.

    ``x`` [..., D] of any floating dtype and strides; ``weight`` [D], which may have another dtype,
    or None for ones. Returns a tensor of x's shape and dtype. ``impl``: auto, torch or triton.
    Raises ``Mistake`` if the shapes, dtypes or devices do not fit together.
    """
    return run(OP, impl, x, weight, eps)


def _check(x: Tensor, weight: Tensor | None, eps: float) -> None:
    alike("rms_norm", "x weight", x, weight)
    if x.dim() == 0:
        raise Mistake("rms_norm: x must have at least one dimension, but is a scalar")
    if weight is not None and weight.shape != x.shape[-1:]:
        raise Mistake(
            f"rms_norm: weight must have shape {tuple(x.shape[-1:])}, the last dimension of x "
            f"{tuple(x.shape)}, but has {tuple(weight.shape)}"
        )


def reference(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Compute the definition."""
    wide = x.to(accumulator(x.dtype))
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.to(wide.dtype)
    return y.to(x.dtype)


def _torch(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is not None and weight.dtype != x.dtype:
        return reference(x, weight, eps)  # torch's would return the wider of the two dtypes
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def _rows_class(n_rows: int) -> str:
    return "few" if n_rows <= FEW_ROWS else "many"


def _forward_tiles(
    device: int, dim: int, x: torch.dtype, other: torch.dtype | None, rows_class: str
) -> list[Tile]:
    """Return rows per program, columns per step and warps of each tile.

    The first measured on an H200. A thread holds 32 numbers of a row, or 16 where rows are few.
    Many wide rows are read twice in shorter steps, which keeps the memory busier than one step with
    a complete row in registers.
    """
    block = power_of_two(dim)
    rows = max(1, min(16, 2048 // block))
    warps = max(4, min(32, rows * block // (512 if rows_class == "few" else 1024)))
    tiles = [(rows, block, warps), (rows, block, max(1, warps // 2))]
    tiles += [(rows, block, min(32, 2 * warps))]
    tiles += [(2 * rows, block, warps), (2 * rows, block, min(32, 2 * warps))] * (block <= 4096)
    tiles += [(rows // 2, block, warps)] * (rows > 1)
    if block > 1024:
        step = min(4096, block // 2)
        steps = [(1, step, 16 if dim > WIDE else max(4, step // 512)), (1, step, 8)]
        if other is not None:
            step = step if dim > WIDE else 2048
            steps = [(1, min(step, block // 2), 8 if dim < 4096 else 16), *steps]
        is_faster = rows_class == "many" and (other is None or dim > 2048)
        tiles = [*steps, *tiles] if is_faster else [*tiles, *steps]
    return list(dict.fromkeys(tiles))


def _backward_tiles(
    device: int, dim: int, x: torch.dtype, dy: torch.dtype, dsum: torch.dtype | None, *_: Any
) -> list[Tile]:
    """Return rows per step, warps, programs per multiprocessor and pipeline stages of each tile.

    Three stages hold two steps' rows in shared memory: measured on an H200 that saves a third of
    the time. If that does not fit for all programs of a multiprocessor, there are fewer rows, then
    fewer stages: 8,192 rows of 768 in FP32, with a sum, take 38 us with 4 rows, and 54 with 8.
    """
    block, shared = power_of_two(dim), shared_bytes(device)
    row_bytes = block * sum(dtype.itemsize for dtype in (x, dy, dsum) if dtype is not None)
    most = max(1, min(32, (16384 if 1024 < block < 8192 else 8192) // block))
    per_sm = 2 if block <= 1024 else 1
    rows, stages = most, 1
    for buffers in (2, 1):
        fitting = int(0.72 * shared) // (buffers * row_bytes * per_sm)
        if fitting >= 1:
            rows, stages = min(most, power_of_two(fitting + 1) // 2), buffers + 1
            break
    warps = max(4, min(32, rows * block // (2048 if block < 8192 else 1024)))
    half = max(1, rows // 2)
    tiles = [
        (rows, warps, per_sm, stages),
        (rows, min(32, 2 * warps), per_sm, stages),
        (half, warps, 2 * per_sm, stages),
        (half, max(4, warps // 2), 2 * per_sm, stages),
        (half, warps, per_sm, stages + 1),
        (rows, warps, 2 * per_sm, max(1, stages - 1)),
    ]
    first, *rest = tiles
    return [first, *(t for t in rest if t[0] * (t[3] - 1) * row_bytes <= shared)]


_FORWARD = Tunable("rms_norm.forward", (rms_norm_forward_kernel,), _forward_tiles)
_BACKWARD = Tunable("rms_norm.backward", (rms_norm_backward_kernel,), _backward_tiles)


@replayed
def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, keep: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return, by Triton, y in x's dtype, the sum ``x + residual`` in residual's, and r [rows].

    r is in FP32, and None unless it must be kept for a backward pass.
    """
    y = blank(x)
    rest = r = None
    total = None if residual is None else blank(residual)
    dim = x.shape[-1]
    n_rows = x.numel() // max(dim, 1)
    if keep:
        r = torch.empty(n_rows, dtype=torch.float32, device=x.device)
    if y.numel():
        other = None if residual is None else residual.dtype
        key = (x.get_device(), dim, x.dtype, other, _rows_class(n_rows))
        rows, block, warps = _FORWARD.tile(key, forward, x, residual, weight, eps)
        x, x_stride = rows_of(x)
        rest_stride = 0
        if residual is not None:
            rest, rest_stride = rows_of(residual)
        with on_device(x):
            launch_forward(
                (cdiv(n_rows, rows),),
                x,
                rest,
                weight if weight is None else unit_stride(weight),
                y,
                total,
                r,
                n_rows,
                x_stride,
                rest_stride,
                D=dim,
                EPS=eps,
                HAS_WEIGHT=weight is not None,
                HAS_RESIDUAL=residual is not None,
                KEEP=keep,
                ROWS=rows,
                BLOCK_D=block,
                num_warps=warps,
            )
    return y, total, r


@replayed
def backward(
    dy: Tensor,
    dsum: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    r: Tensor,
    other_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return, by Triton, the gradients of x, plus ``dsum`` if given, and of weight.

    The first two are that of x in x's dtype and in ``other_dtype``: one tensor if that is None or
    the same.
    """
    dx = blank(x)
    cast_dx = None
    if other_dtype is not None and other_dtype != x.dtype:
        cast_dx = blank(x, other_dtype)
    if not x.numel():
        dweight = None if weight is None else torch.zeros_like(weight)
        return dx, dx if cast_dx is None else cast_dx, dweight
    dim = x.shape[-1]
    n_rows = x.numel() // dim
    other = None if dsum is None else dsum.dtype
    key = (x.get_device(), dim, x.dtype, dy.dtype, other, weight is not None, size_class(n_rows))
    arguments = (dy, dsum, x, weight, r, other_dtype)
    rows, warps, per_sm, stages = _BACKWARD.tile(key, backward, *arguments)
    programs = min(cdiv(n_rows, rows), per_sm * sm_count(x.device.index))
    partial = dweight = None
    if weight is not None:
        weight = unit_stride(weight)
        partial = torch.empty(programs, dim, dtype=torch.float32, device=x.device)
    (x, x_stride), (dy, dy_stride) = rows_of(x), rows_of(dy)
    dsum_stride = 0
    if dsum is not None:
        dsum, dsum_stride = rows_of(dsum)
    with on_device(x):
        launch_backward(
            (programs,),
            dy,
            dsum,
            x,
            weight,
            r,
            dx,
            cast_dx,
            partial,
            n_rows,
            dy_stride,
            dsum_stride,
            x_stride,
            D=dim,
            HAS_WEIGHT=weight is not None,
            HAS_RESIDUAL=dsum is not None,
            HAS_CAST=cast_dx is not None,
            ROWS=rows,
            BLOCK_D=power_of_two(dim),
            STAGES=stages,
            num_warps=warps,
        )
        if weight is not None and partial is not None:
            dweight = column_sum(partial, weight.dtype)
    return dx, dx if cast_dx is None else cast_dx, dweight


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float, keep: bool) -> Tensor:
        y, _, r = forward(x, None, weight, eps, keep)
        ctx.save_for_backward(x, weight, r)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, r = ctx.saved_tensors
        dx, _, dweight = backward(dy, None, x, weight, r)
        return dx, dweight, None, None


def _triton(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return applied(_RMSNorm, x, weight, eps, needs_gradient(x, weight))


def refuses(x: Tensor, *_: Any) -> str | None:
    """Return why the kernels do not support such rows; None if they can."""
    if x.shape[-1] > MAX_DIM:
        return f"supports rows of at most {MAX_DIM} elements, not {x.shape[-1]}"
    return no_fp64(x)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    rows, dim = case.sizes["rows"], case.sizes["dim"]
    make = {"device": device, "dtype": dtype}
    return {
        "x": random_tensor(rows, dim, seed=seed, **make),
        "weight": 1 + random_tensor(dim, seed=seed + 1, scale=0.2, **make),
        "eps": case.sizes.get("eps", 1e-6),
    }


def _cost(x: Tensor, weight: Tensor | None, eps: float) -> Cost:
    n = x.numel()
    x_bytes, w_bytes = tensor_bytes(x), tensor_bytes(weight)
    return Cost(Work(2 * x_bytes + w_bytes, 4 * n), Work(3 * x_bytes + 2 * w_bytes, 10 * n))


def _sizes(random: Random) -> dict[str, Any]:
    # With one column and a small eps the gradient is a difference of equal terms: noise.
    return {"rows": random.randint(0, 40), "dim": random.randint(1, 600), "eps": 0.01}


OP = Operator(
    name="rms_norm",
    function=rms_norm,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, refuses, replayed=True),
        "torch": Implementation(_torch),
        **peers.options("rms_norm"),
    },
    fused_by_compiler=always,
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(Huge({"rows": (1 << 21) + 3, "dim": 1024}),),
    gradients=("x", "weight"),
    cases=(
        Case("63x100", {"rows": 63, "dim": 100}),
        Case("1x1", {"rows": 1, "dim": 1, "eps": 0.1}),
        Case("7x1000", {"rows": 7, "dim": 1000}),
        Case("130x64", {"rows": 130, "dim": 64}),
        Case("0x64", {"rows": 0, "dim": 64}),
        Case("16384x768", {"rows": 16384, "dim": 768}, bench=True),
        Case("16384x2560", {"rows": 16384, "dim": 2560}, bench=True),
        Case("8192x8192", {"rows": 8192, "dim": 8192}, bench=True),
        Case("2048x768", {"rows": 2048, "dim": 768}, bench=True),
    ),
)
