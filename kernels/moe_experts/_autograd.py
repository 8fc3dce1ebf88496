"""The mixture's forward and backward pass in Triton: launches and the autograd function."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels._autograd import once_differentiable
from kernels._operator import blank, cdiv, unit_stride
from kernels._triton import (
    as_rows,
    dot_precision,
    on_device,
    power_of_two,
    shared_bytes,
)
from kernels._tuning import Tile, Tunable
from kernels._workspace import Workspace, room
from kernels.moe_experts._order import Order, by_expert
from kernels.moe_experts._products import (
    launch_combine,
    launch_hidden,
    launch_product,
    launch_slope,
    launch_weight,
    moe_experts_hidden_kernel,
    moe_experts_product_kernel,
    moe_experts_weight_kernel,
)


def _rows_per_block(n_choices: int, n_experts: int, wide: bool) -> int:
    """At most what an expert has on average, so that few rows of a block are not there."""
    average = power_of_two(n_choices // n_experts + 1) // 2
    return max(16, min(64 if wide else 128, average))


def _tiles(
    n: int,
    n_wide: int,
    operands: int,
    extra: int,
    device: int,
    dtype: torch.dtype,
    m: int,
    columns: int,
    *_: Any,
) -> list[Tile]:
    """Columns of a program, depth of a step, warps and stages; the rows are ``m``.

    The first for ``operands`` right sides of ``n`` columns each, or ``n_wide`` in FP32, but no more
    than there are; ``extra`` stages beyond those that the memory holds.
    """
    wide, memory = dtype == torch.float32, shared_bytes(device) - 2048
    most = max(16, power_of_two(columns))
    widest = min(n_wide if wide else n, most)
    block = 32 if wide else 64

    def fitting(n: int, block: int) -> int:
        return max(1, min(4, memory // ((m + operands * n) * block * dtype.itemsize)))

    warps = 8 if m * widest * operands > 8192 else 4
    stages = fitting(widest, block)
    # In 16 bits tiles narrower than 64 may read out of bounds on Hopper (see ssd_scan), which would
    # end the process.
    least = 16 if wide else 64
    half = max(min(least, widest), widest // 2)
    tiles = [(widest, block, warps, stages), (widest, block, 12 - warps, stages)]
    tiles += [(widest, block, warps, stages - 1)] if stages > 1 else []
    tiles += [(half, block, warps, fitting(half, block)), (half, block, 4, fitting(half, block))]
    tiles += [(widest, 16, warps, fitting(widest, 16))] if wide else []
    return [(n, block, warps, stages + extra) for n, block, warps, stages in tiles]


_hidden_tiles = partial(_tiles, 128, 32, 2, 0)
_product_tiles = partial(_tiles, 256, 64, 1, 0)
_weight_tiles = partial(_tiles, 256, 64, 1, 2)  # it is loaded ahead which tokens the rows are of
_HIDDEN = Tunable("moe_experts.hidden", (moe_experts_hidden_kernel,), _hidden_tiles, dots=True)
_PRODUCT = Tunable("moe_experts.product", (moe_experts_product_kernel,), _product_tiles, dots=True)
_WEIGHT = Tunable("moe_experts.weight", (moe_experts_weight_kernel,), _weight_tiles, dots=True)


def _options(m: int, tile: Tile) -> dict[str, Any]:
    n, block, warps, stages = tile
    return {
        "M": m, "N": n, "BLOCK": block, "PRECISION": dot_precision(),
        "num_warps": warps, "num_stages": stages,
    }  # fmt: skip


class _Sizes(NamedTuple):
    """The sizes of one call: tokens, their width D, choices K of each, experts E, their width F."""

    tokens: int
    dim: int
    k: int
    experts: int
    width: int


def _sizes(x_ND: Tensor, index: Tensor, down: Tensor) -> _Sizes:
    tokens, dim = x_ND.shape
    return _Sizes(tokens, dim, index.shape[-1], down.shape[0], down.shape[2])


def _halves(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gate and up [E, F, D] with contiguous rows, from two tensors or from the packed one."""
    gate = unit_stride(gate)
    if up is not None:
        return gate, unit_stride(up)
    width = gate.shape[1] // 2
    return gate[:, :width], gate[:, width:]


def _hidden(
    x: Tensor,
    order: Order,
    gate: Tensor,
    up: Tensor,
    sizes: _Sizes,
    m: int,
    keep: bool,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Tensor | None]:
    hidden = room(workspace, "hidden", (len(order.choice), sizes.width), x.dtype, x.device)
    both = torch.empty(len(hidden), 2 * sizes.width, **_like(x)) if keep else None
    key = (x.get_device(), x.dtype, m, sizes.width, sizes.dim, keep)
    tile = _HIDDEN.tile(key, _hidden, x, order, gate, up, sizes, m, keep)
    n_blocks = order.block.shape[1]
    launch_hidden((n_blocks * cdiv(sizes.width, tile[0]),),
        x, order.choice, order.block, gate, up, hidden, both, n_blocks,
        x.stride(0), *gate.stride()[:2], *up.stride()[:2],
        D=sizes.dim, F=sizes.width, K=sizes.k, KEEP=keep, **_options(m, tile),
    )  # fmt: skip
    return hidden, both


def _like(x: Tensor) -> dict[str, Any]:
    return {"dtype": x.dtype, "device": x.device}


def _product(
    a: Tensor,
    order: Order,
    b: Tensor,
    m: int,
    second: Tensor | None = None,
    transposed: bool = False,
    k: int = 0,
    workspace: Workspace | None = None,
) -> Tensor:
    """The rows ``a``, or with ``k`` the tokens, times their experts' ``b`` [E, R, columns].

    ``transposed``: b is [E, columns, R]. ``second``: plus the next R columns of a times that.
    """
    depth, columns = (b.shape[2], b.shape[1]) if transposed else (b.shape[1], b.shape[2])
    out = room(workspace, "rows", (len(order.choice), columns), a.dtype, a.device)
    key = (
        a.get_device(), a.dtype, m, columns, depth, second is not None, transposed, k > 0,
    )  # fmt: skip
    tile = _PRODUCT.tile(key, _product, a, order, b, m, second, transposed, k)
    n_blocks = order.block.shape[1]
    other = b if second is None else second
    launch_product((n_blocks * cdiv(columns, tile[0]),),
        a, b, second, order.choice, order.block, out, n_blocks, a.stride(0),
        *b.stride()[:2], *other.stride()[:2],
        J=columns, R=depth, K=k, TRANSPOSED=transposed, TOKENS=k > 0, TWO=second is not None,
        **_options(m, tile),
    )  # fmt: skip
    return out


def _slope(
    dhidden: Tensor, order: Order, weight: Tensor, both: Tensor, experts: int
) -> tuple[Tensor, Tensor]:
    """The gradients of both halves before the activation and of the routing weights."""
    n_rows, width = dhidden.shape
    dboth = blank(both)
    dweight = torch.zeros(weight.shape, **_like(weight))  # of a dropped choice it stays zero
    block = min(1024, power_of_two(width))
    rows = max(1, min(16, 2048 // block))
    launch_slope((cdiv(n_rows, rows),),
        dhidden, both, order.choice, order.first, weight, dboth, dweight,
        E=experts, F=width, ROWS=rows, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return dboth, dweight


def _weight_gradient(
    tokens: Tensor, rows: Tensor, order: Order, like: Tensor, k: int, tokens_first: bool
) -> Tensor:
    """Of the weights [E, P, Q]: tokens^T rows of each expert, or rows^T tokens."""
    out = blank(like)
    experts, p, q = like.shape
    a, b = (tokens, rows) if tokens_first else (rows, tokens)
    wide = a.dtype == torch.float32
    m = max(16, min(64 if wide else 128, power_of_two(p)))
    key = (a.get_device(), a.dtype, m, q, tokens_first)
    tile = _WEIGHT.tile(key, _weight_gradient, tokens, rows, order, like, k, tokens_first)
    launch_weight((experts * cdiv(p, m) * cdiv(q, tile[0]),),
        a, b, order.choice, order.first, out, a.stride(0), b.stride(0), *out.stride()[:2],
        P=p, Q=q, K=k, TOKENS_A=tokens_first, **_options(m, tile),
    )  # fmt: skip
    return out


def _combine(
    rows: Tensor,
    order: Order,
    weight: Tensor | None,
    n_tokens: int,
    k: int,
    workspace: Workspace | None = None,
) -> Tensor:
    dim = rows.shape[1]
    out = room(workspace, "out", (n_tokens, dim), rows.dtype, rows.device)
    block = min(1024, power_of_two(dim))
    n_rows = max(1, min(16, 2048 // block))
    launch_combine((cdiv(n_tokens, n_rows), cdiv(dim, block)),
        rows, order.row, weight, out, n_tokens,
        D=dim, K=k, WEIGHTED=weight is not None, ROWS=n_rows, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


class Experts(torch.autograd.Function):
    """Of x, index, weight, gate, up, down as in ``moe_experts``, whether gradients follow, and a
    workspace where they do not.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        index: Tensor,
        weight: Tensor,
        gate: Tensor,
        up: Tensor | None,
        down: Tensor,
        keep: bool,
        workspace: Workspace | None,
    ) -> Tensor:
        """The mixture."""
        x_ND, weight = as_rows(x), weight.contiguous()
        sizes = _sizes(x_ND, index, down)
        m = _rows_per_block(index.numel(), sizes.experts, x.dtype == torch.float32)
        with on_device(x):
            order = by_expert(index, sizes.experts, m, workspace)
            hidden, both = _hidden(x_ND, order, *_halves(gate, up), sizes, m, keep, workspace)
            rows = _product(
                hidden, order, unit_stride(down), m, transposed=True, workspace=workspace
            )
            y = _combine(rows, order, weight, sizes.tokens, sizes.k, workspace)
        ctx.save_for_backward(x, weight, gate, up, down, both, *order)
        ctx.m = m
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients."""
        x, weight, gate, up, down, both, *tensors = ctx.saved_tensors
        order, m = Order(*tensors), ctx.m
        x_ND, dy_ND = as_rows(x), as_rows(dy)
        sizes = _sizes(x_ND, weight, down)
        gate_EFD, up_EFD = _halves(gate, up)
        k, width = sizes.k, sizes.width
        need_x, _, _, need_gate, need_up, need_down, *_ = ctx.needs_input_grad
        dx = dgate = dup = ddown = None
        with on_device(x):
            hidden = _product(dy_ND, order, unit_stride(down), m, k=k)
            dboth, dweight = _slope(hidden, order, weight, both, sizes.experts)
            # From here on hidden is what was computed forward, times the routing weight.
            if need_x:
                rows = _product(dboth, order, gate_EFD, m, second=up_EFD)
                dx = _combine(rows, order, None, sizes.tokens, k).view(x.shape)
            if need_down:
                ddown = _weight_gradient(dy_ND, hidden, order, down, k, True)
            if need_gate:
                dgates = dboth if up is None else dboth[:, :width]
                dgate = _weight_gradient(x_ND, dgates, order, gate, k, False)
            if need_up:
                dup = _weight_gradient(x_ND, dboth[:, width:], order, up, k, False)
        return dx, None, dweight, dgate, dup, ddown, None, None
