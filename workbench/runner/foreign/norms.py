"""Recognition of root mean square norms, and of Mamba-2's norm behind a gate.

    y = x / sqrt(mean(x^2) + eps) * (offset + weight),    offset 0 (Llama) or 1 (Gemma)

A candidate has no children and at most one parameter, a vector. Which eps, offset and output dtype
it has is decided by its own results.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from workbench.runner.foreign import probe
from workbench.runner.foreign.patches import Call, Patch, replace_recognized

_SMALL = 24  # elements of a row on which a candidate is tried; divisible by groups of 1, 2, 3, 4
_USUAL_EPS = (1e-6, 1e-5, 1e-8, 1e-12)
_SCALES = (1.0, 2e-3, 1e2)  # small enough that eps and its position matter


def patch_rms_norm(model: nn.Module) -> Patch:
    """Replace every root mean square norm."""
    recognize = functools.partial(_recognize, _rms_proposals, 1)
    return replace_recognized(model, functools.partial(_is_candidate, 1), recognize)


def patch_gated_rms_norm(model: nn.Module) -> Patch:
    """Replace every root mean square norm behind a gate."""
    recognize = functools.partial(_recognize, _gated_proposals, 2)
    return replace_recognized(model, functools.partial(_is_candidate, 2), recognize)


def _is_candidate(n_inputs: int, module: nn.Module) -> bool:
    parameters = [x for x in module._parameters.values() if x is not None]
    plain = not module._modules and len(parameters) <= 1 and all(x.dim() == 1 for x in parameters)
    known = isinstance(module, (nn.LayerNorm, nn.Embedding, nn.Dropout, nn.Identity))
    takes = probe.parameters_of(module) == n_inputs
    return plain and bool(parameters) and takes and not known and not probe.keeps_state(module)


def _recognize(
    proposals: Callable[..., Iterator[Call]],
    n_inputs: int,
    module: nn.Module,
    inner: Call,
) -> Call | None:
    """Return the first proposal that computes what the module computes."""
    name, weight = next((n, x) for n, x in module._parameters.items() if x is not None)
    size = weight.numel()
    groups = {g: size // g for g in (1, 2, 3, 4, 6, 8) if size % g == 0}
    sizes = {size: _SMALL} | {part: _SMALL // g for g, part in groups.items() if _SMALL % g == 0}
    with probe.exact():
        small = probe.miniature(module, sizes, {})
        inputs = [_inputs(n_inputs, scale, torch.float64) for scale in _SCALES]
        narrow = [
            (probe.miniature(module, sizes, {}, dtype), _inputs(n_inputs, scale, torch.bfloat16))
            for dtype in (torch.bfloat16, torch.float32)
            for scale in (1.0, 0.05)
        ]
        wide = probe.miniature(module, sizes, {}, torch.bfloat16)
        wide_inputs = _inputs(n_inputs, 1.0, torch.float32)
    for function in proposals(module, name, inner):
        replaced = types.MethodType(function, small)
        weights = list(small.parameters())
        exact = all(
            probe.agree_in_both_modes(small, replaced, values, weights) for values in inputs
        )
        if exact and all(
            probe.agree_rounded(rounded, types.MethodType(function, rounded), values)
            for rounded, values in narrow
        ):
            takes_wide = probe.agree_rounded(wide, types.MethodType(function, wide), wide_inputs)
            return function if takes_wide else _of_narrow_inputs(inner, name, function)
    return None


def _of_narrow_inputs(inner: Call, name: str, function: Call) -> Call:
    """Return a function that leaves inputs of a wider dtype than the weight to the original."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        dtype = getattr(self, name).dtype
        is_wide = bool(args) and torch.promote_types(args[0].dtype, dtype) != dtype
        return (inner if is_wide else function)(self, *args, **kwargs)

    return forward


def _inputs(count: int, scale: float, dtype: torch.dtype) -> list[Tensor]:
    scales = [scale] + [1.0] * (count - 1)
    return [(torch.randn(2, 3, _SMALL) * factor).to(dtype) for factor in scales]


def _eps_of(module: nn.Module) -> Iterator[float | str]:
    """Yield possible values of eps; without one, the dtype whose eps is used (``_value``)."""
    candidates = [x for x in vars(module).values() if isinstance(x, float) and 0 < x <= 0.1]
    if getattr(module, "eps", 0) is None:
        yield from ("own", "accumulator")
    yield from dict.fromkeys((*candidates, *_USUAL_EPS))


def _rms_proposals(module: nn.Module, name: str, inner: Call) -> Iterator[Call]:
    offsets, promotes = (0.0, 1.0), (False, True)
    for eps, offset, wide in itertools.product(_eps_of(module), offsets, promotes):
        yield _rms_forward(inner, name, eps, offset, wide)


def _gated_proposals(module: nn.Module, name: str, inner: Call) -> Iterator[Call]:
    groups = [None, *(n for n, value in vars(module).items() if _is_size(value))]
    for eps, group, wide in itertools.product(_eps_of(module), groups, (False, True)):
        yield _gated_forward(inner, name, eps, group, wide)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _rms_forward(inner: Call, name: str, eps: float | str, offset: float, promotes: bool) -> Call:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            return inner(self, *args, **kwargs)
        (x,) = args
        weight = getattr(self, name)
        scale = weight
        if offset:  # in BF16 the sum of 1 and a weight below 0.004 would be 1
            scale = weight.to(torch.promote_types(weight.dtype, torch.float32)) + offset
        y = kernels.rms_norm(x, scale, _value(eps, x))
        return y.to(torch.promote_types(x.dtype, weight.dtype)) if promotes else y

    return forward


def _gated_forward(
    inner: Call, name: str, eps: float | str, group: str | None, promotes: bool
) -> Call:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        arguments = [*args, *kwargs.values()]
        if len(args) < 1 or len(arguments) != 2 or any(x is None for x in arguments):
            return inner(self, *args, **kwargs)
        x, gate = arguments
        weight = getattr(self, name)
        size = None if group is None else getattr(self, group)
        y = kernels.gated_rms_norm(x, gate.to(x.dtype), weight, group_size=size, eps=_value(eps, x))
        return y.to(torch.promote_types(x.dtype, weight.dtype)) if promotes else y

    return forward


def _value(eps: float | str, x: Tensor) -> float:
    """Return eps: as given, or that of x's own dtype, or of the dtype in which sums accumulate."""
    if isinstance(eps, float):
        return eps
    is_narrow = x.dtype in (torch.float16, torch.bfloat16)
    return torch.finfo(torch.float32 if eps == "accumulator" and is_narrow else x.dtype).eps
