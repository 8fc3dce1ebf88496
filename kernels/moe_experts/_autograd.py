"""The mixture's forward and backward pass in Triton: launches and the autograd function."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.core.autograd import once_differentiable
from kernels.core.operator import blank, cdiv, unit_stride
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    as_rows,
    dot_precision,
    on_device,
    power_of_two,
    shared_bytes,
)
from kernels.core.tuning import Tile, Tunable
from kernels.core.workspace import Workspace, scratch
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
    """Return the rows of a block: at most an expert's average, so that few of them are empty."""
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
    """Return tiles: columns of a program, depth of a step, warps and stages; the rows are ``m``.

    The first one has ``n`` columns (``n_wide`` in FP32) of each of ``operands`` right sides, at
    most ``columns``. ``extra`` stages are added to those that the shared memory holds.
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


class _Sizes(NamedTuple):
    """Sizes of one call.

    Tokens, their width D, choices K of each token, experts E, their width F, rows of a block, and
    the precision of FP32 products.
    """

    tokens: int
    dim: int
    k: int
    experts: int
    width: int
    m: int
    precision: str


def sizes_of(x: Tensor, routing: Tensor, down: Tensor) -> _Sizes:
    """Return the sizes of a call; ``routing`` is any tensor with one number per choice."""
    experts, dim, width = down.shape
    k, n_choices = routing.shape[-1], routing.numel()
    m = _rows_per_block(n_choices, experts, x.dtype == torch.float32)
    return _Sizes(n_choices // k, dim, k, experts, width, m, dot_precision())


def _halves(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return gate and up [E, F, D], rows contiguous, from two tensors or the packed one."""
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
    keep: bool,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Tensor | None]:
    _, dim, k, _, width, m, precision = sizes
    hidden = scratch(workspace, "hidden", (order.n_choices, width), x.dtype, x.device)
    both = None
    if keep:
        both = torch.empty(order.n_choices, 2 * width, dtype=x.dtype, device=x.device)
    key = (x.get_device(), x.dtype, m, width, dim, keep)
    n, block, warps, stages = _HIDDEN.tile(key, _hidden, x, order, gate, up, sizes, keep)
    launch_hidden((order.n_blocks * cdiv(width, n),),
        x, order.table, gate, up, hidden, both, order.block_at, order.n_blocks,
        x.stride(0), *gate.stride()[:2], *up.stride()[:2],
        D=dim, F=width, K=k, KEEP=keep,
        M=m, N=n, BLOCK=block, PRECISION=precision, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return hidden, both


def _product(
    a: Tensor,
    order: Order,
    b: Tensor,
    sizes: _Sizes,
    second: Tensor | None = None,
    transposed: bool = False,
    tokens: bool = False,
    workspace: Workspace | None = None,
) -> Tensor:
    """Return the rows ``a``, or ``tokens``, times their experts' ``b`` [E, R, columns].

    ``transposed``: b is [E, columns, R]. ``second``: plus the next R columns of a times that.
    """
    m = sizes.m
    _, depth, columns = b.shape
    if transposed:
        depth, columns = columns, depth
    out = scratch(workspace, "rows", (order.n_choices, columns), a.dtype, a.device)
    key = (
        a.get_device(), a.dtype, m, columns, depth, second is not None, transposed, tokens,
    )  # fmt: skip
    n, block, warps, stages = _PRODUCT.tile(
        key, _product, a, order, b, sizes, second, transposed, tokens
    )
    other = b if second is None else second
    launch_product((order.n_blocks * cdiv(columns, n),),
        a, b, second, order.table, out, order.block_at, order.n_blocks, a.stride(0),
        *b.stride()[:2], *other.stride()[:2],
        J=columns, R=depth, K=sizes.k, TRANSPOSED=transposed, TOKENS=tokens,
        TWO=second is not None,
        M=m, N=n, BLOCK=block, PRECISION=sizes.precision, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def slope(
    dhidden: Tensor, order: Order, weight: Tensor, both: Tensor, experts: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of both halves before the activation and of the routing weights."""
    n_rows, width = dhidden.shape
    dboth = blank(both)
    dweight = torch.zeros_like(weight)  # zero for a dropped choice
    block = min(1024, power_of_two(width))
    rows = max(1, min(16, 2048 // block))
    launch_slope((cdiv(n_rows, rows),),
        dhidden, both, order.table, weight, dboth, dweight, order.first_at,
        E=experts, F=width, ROWS=rows, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return dboth, dweight


def _weight_gradient(
    tokens: Tensor,
    rows: Tensor,
    order: Order,
    like: Tensor,
    sizes: _Sizes,
    tokens_first: bool,
    rows_at: int = 0,
) -> Tensor:
    """Compute the weights' gradient [E, P, Q]: tokens^T rows of each expert, or rows^T tokens.

    Only the rows' columns from ``rows_at`` on are read.
    """
    out = blank(like)
    experts, p, q = like.shape
    a, b = (tokens, rows) if tokens_first else (rows, tokens)
    wide = a.dtype == torch.float32
    m = max(16, min(64 if wide else 128, power_of_two(p)))
    key = (a.get_device(), a.dtype, m, q, tokens_first)
    n, block, warps, stages = _WEIGHT.tile(
        key, _weight_gradient, tokens, rows, order, like, sizes, tokens_first, rows_at
    )
    launch_weight((experts * cdiv(p, m) * cdiv(q, n),),
        a, b, order.table, out, order.first_at, rows_at, a.stride(0), b.stride(0),
        *out.stride()[:2],
        P=p, Q=q, K=sizes.k, TOKENS_A=tokens_first,
        M=m, N=n, BLOCK=block, PRECISION=sizes.precision, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def combine(
    rows: Tensor,
    order: Order,
    weight: Tensor | None,
    like: Tensor,
    sizes: _Sizes,
    workspace: Workspace | None = None,
) -> Tensor:
    """Return the sum of each token's rows, of the shape of ``like``."""
    dim, n_tokens = sizes.dim, sizes.tokens
    out = scratch(workspace, "out", like.shape, rows.dtype, rows.device)
    block = min(1024, power_of_two(dim))
    n_rows = max(1, min(16, 2048 // block))
    launch_combine((cdiv(n_tokens, n_rows), cdiv(dim, block)),
        rows, order.table, weight, out, order.row_at, n_tokens,
        D=dim, K=sizes.k, WEIGHTED=weight is not None, ROWS=n_rows, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


@replayed
def _forward(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    keep: bool,
    workspace: Workspace | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the mixture; with ``keep`` the rows before the activation; the table of the order."""
    x_ND = as_rows(x)
    sizes = sizes_of(x, index, down)
    with on_device(x):
        order = by_expert(index, sizes.experts, sizes.m, workspace)
        hidden, both = _hidden(x_ND, order, *_halves(gate, up), sizes, keep, workspace)
        rows = _product(
            hidden, order, unit_stride(down), sizes, transposed=True, workspace=workspace
        )
        y = combine(rows, order, weight, x, sizes, workspace)
    return y, both, order.table


@replayed
def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    both: Tensor,
    table: Tensor,
    need_x: bool,
    need_gate: bool,
    need_up: bool,
    need_down: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, weight, gate, up and down."""
    x_ND, dy_ND = as_rows(x), as_rows(dy)
    sizes = sizes_of(x, weight, down)
    order = Order.of(table, weight.numel(), sizes.experts, sizes.m)
    gate_EFD, up_EFD = _halves(gate, up)
    dx = dgate = dup = ddown = None
    with on_device(x):
        hidden = _product(dy_ND, order, unit_stride(down), sizes, tokens=True)
        dboth, dweight = slope(hidden, order, weight, both, sizes.experts)
        # From here on hidden is what was computed forward, times the routing weight.
        if need_x:
            rows = _product(dboth, order, gate_EFD, sizes, second=up_EFD)
            dx = combine(rows, order, None, x, sizes)
        if need_down:
            ddown = _weight_gradient(dy_ND, hidden, order, down, sizes, True)
        if need_gate:
            dgate = _weight_gradient(x_ND, dboth, order, gate, sizes, False)
        if need_up:
            dup = _weight_gradient(x_ND, dboth, order, up, sizes, False, sizes.width)
    return dx, dweight, dgate, dup, ddown


class Experts(torch.autograd.Function):
    """Autograd function of the experts.

    Arguments: x, index, weight, gate, up, down as in ``moe_experts``, whether gradients follow,
    and a workspace if they do not.
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
        """Return the mixture."""
        weight = weight.contiguous()
        y, both, table = _forward(x, index, weight, gate, up, down, keep, workspace)
        ctx.save_for_backward(x, weight, gate, up, down, both, table)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the inputs that need one."""
        need_x, _, _, need_gate, need_up, need_down, *_ = ctx.needs_input_grad
        x, weight, gate, up, down, both, table = ctx.saved_tensors
        dx, *rest = _backward(
            dy, x, weight, gate, up, down, both, table, need_x, need_gate, need_up, need_down
        )
        return dx, None, *rest, None, None
