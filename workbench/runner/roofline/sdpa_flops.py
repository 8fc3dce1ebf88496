"""FLOP formulas of torch's attention operators for groups of query heads that share keys.

Formulas of torch before 2.13 refuse keys of fewer heads than the queries have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_FORWARD = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
_MARK = "counts_grouped_heads"


def register() -> None:
    """Let torch's own formulas count grouped heads; once for each formula."""
    for name in _FORWARD:
        _wrap(name, 0)
        _wrap(f"{name}_backward", 1)  # the gradient of the output comes first


def _wrap(name: str, query: int) -> None:
    operator = getattr(torch.ops.aten, name, None)
    formula = flop_registry.get(operator)
    if formula is not None and not hasattr(formula, _MARK):
        flop_registry[operator] = _grouped(formula, query)


def _grouped(formula: Callable[..., int], query: int) -> Callable[..., int]:
    """Return a formula that sees as many heads of keys and values as of queries."""

    @functools.wraps(formula)
    def count(*args: Any, **kwargs: Any) -> int:
        shapes = [x.shape if isinstance(x, torch.Tensor) else x for x in args]
        heads = shapes[query][1]
        for position in (query + 1, query + 2):
            batch, _, *trailing_sizes = shapes[position]
            shapes[position] = torch.Size((batch, heads, *trailing_sizes))
        return formula(*shapes, **kwargs)

    setattr(count, _MARK, True)
    return count
