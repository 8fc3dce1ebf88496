"""Mamba-2's output norm: a gate, then root mean square normalisation over groups of channels.

    h = x silu(z),    y = h / sqrt(mean(h^2) + eps) * weight,    silu(z) = z / (1 + exp(-z))

Dao and Gu, "Transformers are SSMs", 2024 (arXiv 2405.21060): the norm follows the gate
(section 7.1), and each group of channels has its own mean, so that groups can be on different
devices (section 8.1). With r = 1 / sqrt(mean(h^2) + eps), n = h r and g = dy weight, the
gradients are

    dh = r (g - n mean(g n)),    dx = dh silu(z),    dz = dh x silu'(z),
    dweight = sum over rows of dy n.

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
    blank,
    cdiv,
    random_tensor,
    tensor_bytes,
    unit_stride,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    MAX_GRID,
    missing,
    no_fp64,
    on_device,
    power_of_two,
    rows_of,
    shared_bytes,
    sm_count,
)
from kernels.core.tuning import Tile, Tunable, size_class
from kernels.gated_rms_norm._kernels import (
    gated_rms_norm_backward_kernel,
    gated_rms_norm_forward_kernel,
    launch_backward,
    launch_forward,
)
from kernels.measure import peers

MAX_GROUP = 16384  # a program holds the group of one row, of three tensors, in registers


def gated_rms_norm(
    x: Tensor,
    z: Tensor,
    weight: Tensor | None = None,
    *,
    group_size: int | None = None,
    eps: float = 1e-5,
    impl: str | None = None,
) -> Tensor:
    """Gate ``x`` with silu(``z``), then normalise each group of its channels.

    ``x`` and ``z`` [..., D] of one floating dtype and any strides; ``weight`` [D], which may have
    another dtype, or None for ones; ``group_size`` divides D, None for one group of all channels.
    Returns a tensor of x's shape and dtype. ``impl``: auto, torch or triton. Raises ``Mistake`` if
    the shapes, dtypes, devices or groups do not fit together.
    """
    return run(OP, impl, x, z, weight, group_size, eps)


def _check(x: Tensor, z: Tensor, weight: Tensor | None, group_size: int | None, eps: float) -> None:
    alike("gated_rms_norm", "x z weight", x, z, weight)
    if x.dim() == 0 or z.shape != x.shape or z.dtype != x.dtype:
        raise Mistake(
            f"gated_rms_norm: x and z must have one dtype and one shape of at least one dimension, "
            f"but are {tuple(x.shape)} {x.dtype} and {tuple(z.shape)} {z.dtype}"
        )
    if weight is not None and weight.shape != x.shape[-1:]:
        raise Mistake(
            f"gated_rms_norm: weight must have shape {tuple(x.shape[-1:])}, the last dimension of "
            f"x {tuple(x.shape)}, but has {tuple(weight.shape)}"
        )
    if group_size is not None and (group_size < 1 or x.shape[-1] % group_size):
        raise Mistake(
            f"gated_rms_norm: group_size must divide the number of channels, "
            f"{x.shape[-1]}, but is {group_size}"
        )


def reference(
    x: Tensor,
    z: Tensor,
    weight: Tensor | None = None,
    group_size: int | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Compute the definition."""
    wide = accumulator(x.dtype)
    h = x.to(wide) * torch.nn.functional.silu(z.to(wide))
    group = group_size or x.shape[-1]
    groups = h.unflatten(-1, (x.shape[-1] // max(group, 1), group))
    y = (groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + eps)).flatten(-2)
    if weight is not None:
        y = y * weight.to(wide)
    return y.to(x.dtype)


def pieces(group: int) -> tuple[int, int]:
    """Return number and size of the blocks that make a group: at most three powers of two.

    A group of less than 256 channels has one block. Smaller blocks would leave fewer lanes idle,
    but threads would read less than 16 bytes each, which takes longer (1.2 times for 5,120 channels
    in five blocks).
    """
    block = min(power_of_two(group), max(256, power_of_two(cdiv(group, 3))))
    return cdiv(group, block), block


def _tile(group: int, elements: int) -> tuple[int, int]:
    """Return rows at a time for tiles of about so many elements, and a warp per 256 of a block."""
    count, block = pieces(group)
    rows = max(1, min(16, power_of_two(elements // (count * block) + 1) // 2))
    return rows, max(1, min(32, rows * block // 256))


def _forward_tiles(
    device: int, group: int, n_groups: int, x: torch.dtype, rows_class: str
) -> list[Tile]:
    """Return rows at a time and warps of each tile; the first measured on an H200.

    Where rows are few, there are more programs, and a thread holds about 16 numbers.
    """
    is_few = rows_class == "few"
    rows, warps = _tile(group, 1024 if is_few else 2048)
    if is_few:
        count, block = pieces(group)
        warps = min(32, power_of_two(rows * count * block // 512))
    warps = max(4, warps)
    tiles = [(rows, warps), (rows, max(1, warps // 2)), (rows, min(32, 2 * warps))]
    tiles += [(2 * rows, min(32, 2 * warps))] if group <= 4096 else []
    return [*tiles, *([(rows // 2, max(1, warps // 2))] if rows > 1 else [])]


def _backward_tiles(device: int, group: int, n_groups: int, x: torch.dtype, *_: Any) -> list[Tile]:
    """Return rows at a time, warps, warps per multiprocessor and pipeline stages of each tile.

    The first measured on an H200, where three stages, which hold two steps' rows in shared memory,
    and few warps with many elements save half of the time.
    """
    rows, warps = _tile(group, 1024)
    count, block = pieces(group)
    stages = min(4, 1 + shared_bytes(device) // (3 * x.itemsize * rows * count * block))
    few, more = max(8, warps), max(16, warps)
    tiles = [
        (rows, warps, few, min(3, stages)),
        (rows, warps, few, stages),
        (rows, warps, more, min(3, stages)),
        (rows, warps, more, 1),
        (rows, min(32, 2 * warps), more, min(3, stages)),
        (rows, max(1, warps // 2), few, min(3, stages)),
    ]
    return list(dict.fromkeys(tiles))


_FORWARD = Tunable("gated_rms_norm.forward", (gated_rms_norm_forward_kernel,), _forward_tiles)
_BACKWARD = Tunable("gated_rms_norm.backward", (gated_rms_norm_backward_kernel,), _backward_tiles)


@replayed
def _forward(
    x: Tensor, z: Tensor, weight: Tensor | None, group: int, eps: float, keep: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return y and, if a backward pass needs it, r [rows, groups] in FP32."""
    y, r = blank(x), None
    n_groups = x.shape[-1] // max(group, 1)
    n_rows = x.numel() // max(x.shape[-1], 1)
    if keep:
        r = torch.empty(n_rows * n_groups, dtype=torch.float32, device=x.device)
    if not y.numel():
        return y, r
    key = (x.get_device(), group, n_groups, x.dtype, size_class(n_rows))
    rows, warps = _FORWARD.tile(key, _forward, x, z, weight, group, eps)
    n_pieces, block = pieces(group)
    (x, x_stride), (z, z_stride) = rows_of(x), rows_of(z)
    with on_device(x):
        launch_forward(
            (cdiv(n_rows, rows) * n_groups,),
            x,
            z,
            weight if weight is None else unit_stride(weight),
            y,
            r,
            n_rows,
            n_groups,
            x_stride,
            z_stride,
            E=group,
            EPS=eps,
            HAS_WEIGHT=weight is not None,
            KEEP=keep,
            ROWS=rows,
            PIECES=n_pieces,
            BLOCK_E=block,
            num_warps=warps,
        )
    return y, r


@replayed
def _backward(
    dy: Tensor, x: Tensor, z: Tensor, weight: Tensor | None, r: Tensor, group: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    dx = blank(x)
    dz = blank(z)
    if not dy.numel():
        return dx, dz, None if weight is None else torch.zeros_like(weight)
    dim = x.shape[-1]
    n_rows, n_groups = x.numel() // dim, dim // group
    key = (x.get_device(), group, n_groups, x.dtype, weight is not None, size_class(n_rows))
    rows, warps, resident, stages = _BACKWARD.tile(key, _backward, dy, x, z, weight, r, group)
    per_group = max(1, resident // warps * sm_count(x.device.index) // n_groups)
    programs = min(cdiv(n_rows, rows), per_group)
    partial = dweight = None
    if weight is not None:
        weight = unit_stride(weight)
        partial = torch.empty(programs, dim, dtype=torch.float32, device=x.device)
    n_pieces, block = pieces(group)
    (x, x_stride), (z, z_stride), (dy, dy_stride) = rows_of(x), rows_of(z), rows_of(dy)
    with on_device(x):
        launch_backward(
            (programs, n_groups),
            dy,
            x,
            z,
            weight,
            r,
            dx,
            dz,
            partial,
            n_rows,
            n_groups,
            dy_stride,
            x_stride,
            z_stride,
            E=group,
            HAS_WEIGHT=weight is not None,
            ROWS=rows,
            PIECES=n_pieces,
            BLOCK_E=block,
            STAGES=stages,
            num_warps=warps,
        )
        if weight is not None and partial is not None:
            dweight = column_sum(partial, weight.dtype)
    return dx, dz, dweight


class _GatedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z: Tensor, weight: Tensor | None, group: int, eps: float, keep: bool
    ) -> Tensor:
        y, r = _forward(x, z, weight, group, eps, keep)
        ctx.save_for_backward(x, z, weight, r)
        ctx.group = group
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, z, weight, r = ctx.saved_tensors
        return *_backward(dy, x, z, weight, r, ctx.group), None, None, None


def _triton(
    x: Tensor, z: Tensor, weight: Tensor | None, group_size: int | None, eps: float
) -> Tensor:
    keep = needs_gradient(x, z, weight)
    return applied(_GatedRMSNorm, x, z, weight, group_size or x.shape[-1], eps, keep)


def _refuses(
    x: Tensor, z: Tensor, weight: Tensor | None, group_size: int | None, eps: float
) -> str | None:
    group = group_size or x.shape[-1]
    if group > MAX_GROUP:
        return f"supports groups of at most {MAX_GROUP} channels, not {group}"
    if x.shape[-1] > group * MAX_GRID:
        return f"supports up to {MAX_GRID} groups, not {x.shape[-1] // group}"
    return no_fp64(x)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    rows, dim = case.sizes["rows"], case.sizes["dim"]
    make = {"device": device, "dtype": dtype}
    weight = 1 + random_tensor(dim, seed=seed + 2, scale=0.2, **make)
    return {
        "x": random_tensor(rows, dim, seed=seed, **make),
        "z": random_tensor(rows, dim, seed=seed + 1, **make),
        "weight": weight if case.sizes.get("weight", True) else None,
        "group_size": case.sizes.get("group"),
        "eps": case.sizes.get("eps", 1e-5),
    }


def _cost(x: Tensor, z: Tensor, weight: Tensor | None, **_: Any) -> Cost:
    n, x_bytes, w_bytes = x.numel(), tensor_bytes(x), tensor_bytes(weight)
    return Cost(Work(3 * x_bytes + w_bytes, 9 * n), Work(5 * x_bytes + 2 * w_bytes, 20 * n))


def _sizes(random: Random) -> dict[str, Any]:
    # In a narrow group with a small eps the gradient is a difference of equal terms: noise.
    groups, group = random.randint(1, 4), random.randint(1, 300)
    return {
        "rows": random.randint(0, 40),
        "dim": groups * group,
        "group": group if groups > 1 else random.choice((None, group)),
        "eps": 0.01,
        "weight": random.random() < 0.8,
    }


OP = Operator(
    name="gated_rms_norm",
    function=gated_rms_norm,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(reference),
        **peers.options("gated_rms_norm"),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(Huge({"rows": (1 << 21) + 3, "dim": 1024, "group": 256}),),
    gradients=("x", "z", "weight"),
    cases=(
        Case("63x100", {"rows": 63, "dim": 100}),
        Case("1x1", {"rows": 1, "dim": 1, "eps": 0.1}),
        Case("7x1002 3 groups", {"rows": 7, "dim": 1002, "group": 334}),
        Case("130x24 no weight", {"rows": 130, "dim": 24, "group": 12, "weight": False}),
        Case("5x600", {"rows": 5, "dim": 600}),
        Case("3x1400 2 groups no weight", {"rows": 3, "dim": 1400, "group": 700, "weight": False}),
        Case("0x64", {"rows": 0, "dim": 64}),
        Case("32768x1536", {"rows": 32768, "dim": 1536}, bench=True),
        Case("16384x5120", {"rows": 16384, "dim": 5120}, bench=True),
        Case("16384x8192 8 groups", {"rows": 16384, "dim": 8192, "group": 1024}, bench=True),
    ),
)
