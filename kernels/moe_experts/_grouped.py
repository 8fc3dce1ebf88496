"""The mixture by torch's grouped products, with our kernels between them.

The choices are sorted, activated, weighted and summed by the kernels of ``_order``, ``_gated`` and
``_products``. All matrix products are ``torch._grouped_mm``, whose tiles are larger than ours. With
8 experts of 4096 x 14336 and 2,048 rows each, the backward pass took 19.2 ms in place of our 32.3
on an H100. The forward pass then still copied the weights, and took 19.3 ms in place of 15.9.
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

WIDE = 4096  # width of experts from which on ``auto`` prefers these products; measured at 14336


def _rows(x_ND: Tensor, order: Order, k: int) -> Tensor:
    """Return the token of each row; rows behind the last expert's hold any token."""
    choice_A = order.table[: order.n_choices].clamp(0, order.n_choices - 1)
    return x_ND.index_select(0, choice_A // k)


def _ends(order: Order, experts: int) -> Tensor:
    """Return where the rows of each expert end."""
    return aligned(order.table[order.first_at + 1 : order.first_at + 1 + experts])


def _product(rows: Tensor, matrices: Tensor, ends_E: Tensor, *, transposed: bool = False) -> Tensor:
    """Return the rows times their experts' matrices, or their ``transposed``, without a copy."""
    matrices = aligned(matrices)
    matrices = matrices.transpose(1, 2) if transposed else matrices
    return grouped_product(aligned(rows), matrices, ends_E)


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
            ends_E, rows_AD = _ends(order, sizes.experts), _rows(x_ND, order, sizes.k)
            both = _product(rows_AD, gate, ends_E, transposed=True)
            if up is not None:
                both = torch.cat((both, _product(rows_AD, up, ends_E, transposed=True)), 1)
            hidden = gated(both, None, "silu")
            rows = _product(hidden, down, ends_E, transposed=True)
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
            ends_E, dy_AD = _ends(order, experts), _rows(dy_ND, order, sizes.k)
            hidden = _product(dy_AD, down, ends_E)
            dboth, dweight = slope(hidden, order, weight, both, experts)
            # From here on hidden is what was computed forward, times the routing weight.
            parts = [(dboth, gate)]
            if up is not None:
                parts = [(dboth[:, :width], gate), (dboth[:, width:], up)]
            if need_x:
                rows = sum(_product(d, matrices, ends_E) for d, matrices in parts)
                dx = combine(rows, order, None, x, sizes)
            if need_down:
                ddown = grouped_product(dy_AD.t(), hidden, ends_E)
            if need_gate or need_up:
                rows_AD = _rows(x_ND, order, sizes.k)
                slopes = [grouped_product(d.t(), rows_AD, ends_E) for d, _ in parts]
                dgate, dup = slopes[0], slopes[1] if up is not None else None
        return dx, None, dweight, dgate, dup, ddown
