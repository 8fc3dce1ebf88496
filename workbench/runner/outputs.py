"""The tensors that a step's output holds: one, or several where a model of one's own gives a tuple,
a list, a dict or a dataclass of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def tensors(output: Any) -> list[Tensor]:
    """All tensors of ``output``, in its order, however deep they lie; of anything else none."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        inner = list(output.values())
    elif isinstance(output, list | tuple):
        inner = list(output)
    elif is_dataclass(output):
        inner = [getattr(output, field.name) for field in fields(output)]
    else:
        inner = []
    return [found for each in inner for found in tensors(each)]


def measurable(output: Any) -> list[Tensor]:
    """Those of floating-point numbers; complex ones as pairs of reals, in a last axis of two.

    Whole numbers (positions, choices) are none: there is no rounding of them to compare with.
    """
    real = [
        torch.view_as_real(each.resolve_conj()) if each.is_complex() else each
        for each in tensors(output)
    ]
    return [each for each in real if each.is_floating_point() and each.numel()]
