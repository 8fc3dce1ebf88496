"""Operators that torch's exporter does not know yet, in ONNX's own; each is exact.

They build a graph where torch's exporter calls them; onnxscript, whose builders they use, comes
with the extra ``onnx`` and is loaded then.
"""

# Shapes: S places of the dimension in question.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

BIAS, FRACTION_BITS = 127, 23  # exponent bias and mantissa bits of FP32
FLOAT, INT32, INT64 = 1, 6, 7  # type numbers of ONNX
POWERS = [2.0**exponent for exponent in range(1 - BIAS, BIAS + 1)]  # all that are normal
UNIT = 1 << FRACTION_BITS


class _Builders:
    """onnxscript's, imported at first use."""

    def __getattr__(self, name: str) -> Any:
        from onnxscript import opset18

        return getattr(opset18, name)


op: Any = _Builders()


def sort_stable(
    x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """Translate ``aten.sort.stable``: of equals TopK takes the first one first, either way."""
    size = op.Gather(op.Shape(x), _whole(dim))
    return op.TopK(x, size, axis=dim, largest=int(descending), sorted=1)


def cummin(x: Any, dim: int) -> Any:
    """Translate ``aten.cummin``: the least of all before, which takes a matrix of S x S."""
    rank = len(x.shape)
    order = [axis for axis in range(rank) if axis != dim % rank] + [dim % rank]
    back = [order.index(axis) for axis in range(rank)]
    moved = op.Transpose(x, perm=order)  # (..., S)
    size = op.Squeeze(op.Gather(op.Shape(moved), _whole(-1)))
    places = op.Range(_number(0), size, _number(1))
    later = op.Less(op.Unsqueeze(places, _whole(1)), places)  # (S, S)
    wide = op.Unsqueeze(moved, _whole(-2))  # (..., 1, S)
    before = op.Where(later, op.ReduceMax(wide, _whole(-1)), wide)  # (..., S, S)
    least = op.ReduceMin(before, _whole(-1))
    # Among equal values the last one counts, except values that replace later ones.
    equal = op.And(op.Equal(before, least), op.Not(later))
    last = op.ReduceMax(op.Where(equal, places, _number(-1)), _whole(-1), keepdims=0)
    values = op.Squeeze(least, _whole(-1))
    return op.Transpose(values, perm=back), op.Transpose(last, perm=back)


def view_as(x: Any, dtype: Any) -> Any:
    """Translate ``aten.view.dtype`` between FP32 and int32, for finite, non-negative numbers.

    Raises ``NotImplementedError`` for another type; the export reports its sentence as a mistake.
    """
    known = {INT32: _bits, FLOAT: _float}
    if int(dtype) not in known:
        from onnxscript import ir

        raise NotImplementedError(
            f"Tensor.view: cannot reinterpret the bits of a tensor as {ir.DataType(dtype).name}; "
            "expected torch.int32 (of FP32) or torch.float32 (of int32): convert with Tensor.to"
        )
    return known[int(dtype)](x)


def _bits(x: Any) -> Any:
    """Return the bits of a number; the exponent comes from comparisons: a logarithm would round."""
    powers = op.Constant(value_floats=POWERS)
    reached = op.Cast(op.GreaterOrEqual(op.Unsqueeze(x, _whole(-1)), powers), to=INT64)
    exponent = op.ReduceSum(reached, _whole(-1), keepdims=0)
    # Below 1 where the number is subnormal, in units of the least that is not.
    ratio = op.Div(x, op.Gather(powers, _place(exponent)))
    fraction = op.Mul(op.Sub(ratio, _is_normal(exponent)), op.Constant(value_float=float(UNIT)))
    bits = op.Add(op.Mul(exponent, _number(UNIT)), op.Cast(fraction, to=INT64))
    return op.Cast(bits, to=INT32)


def _float(bits: Any) -> Any:
    integer = op.Cast(bits, to=INT64)
    exponent, fraction = op.Div(integer, _number(UNIT)), op.Mod(integer, _number(UNIT))
    ratio = op.Div(op.Cast(fraction, to=FLOAT), op.Constant(value_float=float(UNIT)))
    power = op.Gather(op.Constant(value_floats=POWERS), _place(exponent))
    return op.Mul(power, op.Add(ratio, _is_normal(exponent)))


def _place(exponent: Any) -> Any:
    """Return the index of its power in ``POWERS``; subnormal numbers share the least normal's."""
    return op.Max(op.Sub(exponent, _number(1)), _number(0))


def _is_normal(exponent: Any) -> Any:
    return op.Cast(op.Greater(exponent, _number(0)), to=FLOAT)


def _whole(number: int) -> Any:
    return op.Constant(value_ints=[number])


def _number(number: int) -> Any:
    return op.Constant(value_int=number)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.sort.stable: sort_stable,
    torch.ops.aten.cummin.default: cummin,
    torch.ops.aten.view.dtype: view_as,
}
