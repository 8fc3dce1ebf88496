"""The FLOP formula of torch's grouped matrix product, which torch's own counter lacks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula


def grouped_flops(a_shape: Any, b_shape: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a grouped product, whose groups share rows or columns of 2D sides."""
    (*left, m, k), (*right, _k, n) = a_shape, b_shape
    groups = math.prod(left) if left and right else 1
    return int(2 * groups * m * n * k)


if torch.ops.aten._grouped_mm not in flop_registry:
    register_flop_formula(torch.ops.aten._grouped_mm)(grouped_flops)
