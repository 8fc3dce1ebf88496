"""Recognition of functions that rotate queries and keys by their positions.

A candidate is a function that a module's method calls, whose name says so, with the arguments (q,
k, cos, sin). Whether pairs are halves or neighbours is decided by its results. The operator reads
every other column of the tables; eager calls confirm that the columns between are equal.
"""

from __future__ import annotations

import inspect
import re
import types
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from kernels.core.operator import autocast_dtype
from workbench.runner.foreign import probe
from workbench.runner.foreign.patches import Call, Patch
from workbench.runner.foreign.rebinding import Rebinder

_NAME = re.compile(r"rot|rope", re.IGNORECASE)
_CHECKED_CALLS = 64  # first calls whose tables are read, for which the host waits for the GPU
_SHAPE = (2, 4, 6, 8)  # batch, heads, positions, elements


def patch_rope(model: nn.Module) -> Patch:
    """Replace the rotation that attention modules call."""
    return Rebinder(_replace).patch(model, "rope")


def _replace(value: Any) -> Any:
    if not isinstance(value, types.FunctionType) or not _NAME.search(value.__name__):
        return value
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except ValueError:
        return value
    required = [p for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD]
    if len(required) != 4:
        return value
    for interleaved in (False, True):
        rotation = _Rotation(value, interleaved)
        ranks = [r for r in (2, 3) if _agrees(value, rotation, _inputs(interleaved, r))]
        if ranks:
            rotation.ranks = frozenset(ranks)
            rotation.takes_wide_tables = _agrees_with_wide_tables(value, rotation)
            return rotation.function()
    return value


def _agrees(value: types.FunctionType, rotation: _Rotation, inputs: list[Tensor]) -> bool:
    q, k, cos, sin = inputs  # the tables need no gradient

    def original(q: Tensor, k: Tensor) -> Any:
        return value(q, k, cos, sin)

    return probe.agree(original, lambda q, k: rotation.direct(q, k, cos, sin), [q, k], [])


def _agrees_with_wide_tables(value: types.FunctionType, rotation: _Rotation) -> bool:
    """Return True if FP32 tables leave BF16 queries in BF16, as the operator does."""
    q, k, cos, sin = _inputs(rotation.interleaved, max(rotation.ranks))
    inputs = [q.bfloat16(), k.bfloat16(), cos.float(), sin.float()]
    return probe.same_dtypes(value, rotation.direct, inputs)


def _inputs(interleaved: bool, rank: int) -> list[Tensor]:
    """Return queries, keys of fewer heads, and tables [S, D] or [1, S, D] of random angles."""
    batch, heads, length, dim = _SHAPE
    generator = torch.Generator().manual_seed(3)
    draw = {"generator": generator, "dtype": torch.float64}
    angles = torch.rand(length, dim // 2, **draw) * 6
    table = angles.repeat_interleave(2, 1) if interleaved else torch.cat([angles, angles], 1)
    table = table[None] if rank == 3 else table
    q, k = (torch.randn(batch, n, length, dim, **draw) for n in (heads, heads // 2))
    return [q, k, table.cos(), table.sin()]


class _Rotation:
    """The operator in place of a function; calls that do not fit go to the function."""

    def __init__(self, original: types.FunctionType, interleaved: bool) -> None:
        self._original = original
        self.interleaved = interleaved
        self.ranks: frozenset[int] = frozenset()  # numbers of dimensions of the tables
        self.takes_wide_tables = False
        self.is_trusted = True
        self.checked_calls = 0

    def direct(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate by the operator; the tables get no gradient."""
        tables = (cos, sin) if cos.dim() == 2 else (cos[0], sin[0])
        return kernels.rope(q, k, *tables, interleaved=self.interleaved)

    def function(self) -> Call:
        """Return a plain function, which code of others may treat as one."""

        def rotate(*args: Any, **kwargs: Any) -> Any:
            if len(args) != 4 or kwargs or not self.fits(*args):
                return self._original(*args, **kwargs)
            return self.direct(*args)

        return rotate

    def fits(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
        """Return True if the operator computes this call: one table for all rows of the batch."""
        alike = cos.dim() in self.ranks and cos.shape == sin.shape
        alike = alike and (cos.dim() == 2 or len(cos) == 1) and not cos.requires_grad
        alike = alike and q.dim() == k.dim() == 4 and q.dtype == k.dtype and len(q) == len(k)
        alike = alike and self._keeps_dtype(q, cos, sin)
        if not alike or not cos.shape[-2:] == q.shape[2:] == k.shape[2:]:
            return False
        if self.is_trusted and self.checked_calls < _CHECKED_CALLS and not _is_traced(q):
            self.checked_calls += 1
            self.is_trusted = self._has_equal_columns(cos) and self._has_equal_columns(sin)
        return self.is_trusted

    def _keeps_dtype(self, q: Tensor, cos: Tensor, sin: Tensor) -> bool:
        """Return True if the function returns q's dtype, or autocast casts to it what it returns.

        Attention casts its inputs under autocast. Elsewhere it would compute in FP32.
        """
        is_same = cos.dtype == sin.dtype == q.dtype
        return is_same or self.takes_wide_tables or autocast_dtype(q) == q.dtype

    def _has_equal_columns(self, table: Tensor) -> bool:
        half = table.shape[-1] // 2
        if self.interleaved:
            return torch.equal(table[..., ::2], table[..., 1::2])
        return torch.equal(table[..., :half], table[..., half:])


def _is_traced(x: Tensor) -> bool:
    """Return True if tensors cannot be read: in compilation, in a capture, on fake tensors."""
    if torch.compiler.is_compiling() or type(x) is not Tensor:
        return True
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
