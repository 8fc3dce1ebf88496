"""The mixture by torch's grouped products, with our kernels between them.

The choices are sorted, activated, weighted and summed by the kernels of ``_order`` and
``_products``; all products of more than one row are ``torch._grouped_mm``, whose tiles are larger
than ours. It gains where experts are wide: 4096 x 14336 and 2,048 rows an expert.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels._gated import gated
from kernels.core.autograd import once_differentiable
from kernels.core.triton_helpers import as_rows, on_device
from kernels.moe_experts._autograd import combine, sizes_of, slope
from kernels.moe_experts._order import Order, by_expert
from kernels.moe_experts._plain import aligned, grouped_product

WIDE = 4096  # width of experts from which on these products were faster than ours on an H100


def _rows(x_ND: Tensor, order: Order, k: int) -> Tensor:
    """Return the token of each row; rows behind the last expert's hold any token."""
    choice_A = order.table[: order.n_choices].clamp(0, order.n_choices - 1)
    return x_ND.index_select(0, choice_A // k)


def _product(
    rows: Tensor, matrices: Tensor, order: Order, experts: int, *, transposed: bool = False
) -> Tensor:
    """Return the rows times their experts' matrices, or their ``transposed``, which are no copy."""
    ends_E = order.table[order.first_at + 1 : order.first_at + 1 + experts]
    matrices = aligned(matrices)
    matrices = matrices.transpose(1, 2) if transposed else matrices
    return grouped_product(aligned(rows), matrices, aligned(ends_E))


def _weight_gradient(a: Tensor, b: Tensor, order: Order, experts: int) -> Tensor:
    """Return a^T b of each expert's rows."""
    ends_E = order.table[order.first_at + 1 : order.first_at + 1 + experts]
    return grouped_product(a.t(), b, aligned(ends_E))


class GroupedExperts(torch.autograd.Function):
    """Autograd function of the experts; arguments as in ``Experts``, without a workspace."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        index: Tensor,
        weight: Tensor,
        gate: Tensor,
        up: Tensor | None,
        down: Tensor,
    ) -> Tensor:
        """Return the mixture."""
        weight, x_ND = weight.contiguous(), as_rows(x)
        sizes = sizes_of(x, index, down)
        with on_device(x):
            order = by_expert(index, sizes.experts, sizes.m, None)
            rows_AD = _rows(x_ND, order, sizes.k)
            both = _product(rows_AD, gate, order, sizes.experts, transposed=True)
            if up is not None:
                half = _product(rows_AD, up, order, sizes.experts, transposed=True)
                both = torch.cat((both, half), 1)
            hidden = gated(both, None, "silu")
            rows = _product(hidden, down, order, sizes.experts, transposed=True)
            y = combine(rows, order, weight, x, sizes)
        ctx.save_for_backward(x, weight, gate, up, down, both, order.table)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the inputs that need one."""
        need_x, _, _, need_gate, need_up, need_down = ctx.needs_input_grad
        x, weight, gate, up, down, both, table = ctx.saved_tensors
        x_ND, dy_ND = as_rows(x), as_rows(dy)
        sizes = sizes_of(x, weight, down)
        experts, width = sizes.experts, sizes.width
        order = Order.of(table, weight.numel(), experts, sizes.m)
        dx = dgate = dup = ddown = None
        with on_device(x):
            dy_AD = _rows(dy_ND, order, sizes.k)
            hidden = _product(dy_AD, down, order, experts)
            dboth, dweight = slope(hidden, order, weight, both, experts)
            # From here on hidden is what was computed forward, times the routing weight.
            parts = [(dboth, gate)]
            if up is not None:
                parts = [(dboth[:, :width], gate), (dboth[:, width:], up)]
            if need_x:
                rows = sum(_product(d, matrices, order, experts) for d, matrices in parts)
                dx = combine(rows, order, None, x, sizes)
            if need_down:
                ddown = _weight_gradient(dy_AD, hidden, order, experts)
            if need_gate or need_up:
                rows_AD = _rows(x_ND, order, sizes.k)
                slopes = [_weight_gradient(d, rows_AD, order, experts) for d, _ in parts]
                dgate, dup = slopes[0], slopes[1] if up is not None else None
        return dx, None, dweight, dgate, dup, ddown
