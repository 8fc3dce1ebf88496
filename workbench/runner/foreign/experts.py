"""Recognition of a mixture's experts whose weights are stacked.

    forward(x [T, D], index [T, K], weight [T, K]),    y = down_e (silu(gate_e x) * (up_e x))

A candidate has no children but activations, and two parameters of three dimensions: gate and up
together, and down, as ``torch.nn.Linear`` has them or transposed.
"""

from __future__ import annotations

import itertools
import types
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from workbench.runner.foreign import probe
from workbench.runner.foreign.patches import Call, Patch, replace_recognized

_TOKENS, _CHOSEN = 6, 2


def patch_experts(model: nn.Module) -> Patch:
    """Replace every mixture of experts."""
    return replace_recognized(model, _is_candidate, _recognize)


def _is_candidate(module: nn.Module) -> bool:
    parameters = [x for x in module._parameters.values() if x is not None]
    return (
        len(parameters) == 2
        and all(x.dim() == 3 for x in parameters)
        and parameters[0].shape[0] == parameters[1].shape[0]
        and not any(probe.has_tensors(child) for child in module.children())
        and not probe.keeps_state(module)
    )


def _recognize(module: nn.Module, inner: Call) -> Call | None:
    for first, second in itertools.permutations(module._parameters):
        for transposed in (False, True):
            shape = _shape(module, first, second, transposed)
            if shape is None:
                continue
            experts, width, hidden = shape
            sizes = probe.small_sizes([experts, width, hidden, 2 * hidden])
            with probe.exact():
                children = {name: probe.duplicate(x) for name, x in module._modules.items()}
                small = probe.miniature(module, sizes, children)
                inputs = _inputs(sizes[experts], sizes[width])
            _choose_plain_way(small)
            function = _forward(inner, first, second, transposed)
            replaced = types.MethodType(function, small)
            weights = list(small.parameters())
            if not probe.agree_in_both_modes(small, replaced, inputs, weights):
                continue
            if _has_same_dtype(small, replaced, inputs, torch.bfloat16):
                takes_wide = _has_same_dtype(small, replaced, inputs, torch.float32)
                return function if takes_wide else _of_one_dtype(inner, function)
    return None


def _has_same_dtype(
    small: nn.Module, replaced: Call, inputs: list[Tensor], dtype: torch.dtype
) -> bool:
    """Return True if outputs in BF16, for routing weights of ``dtype``, have the same dtype."""
    x, index, weight = inputs
    small.to(torch.bfloat16)
    return probe.same_dtypes(small, replaced, [x.bfloat16(), index, weight.to(dtype)])


def _of_one_dtype(inner: Call, function: Call) -> Call:
    """Return a function that leaves routing weights of another dtype to the original."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in args if isinstance(x, Tensor) and x.is_floating_point()]
        is_mixed = len({x.dtype for x in tensors}) > 1
        return (inner if is_mixed else function)(self, *args, **kwargs)

    return forward


def _shape(
    module: nn.Module, first: str, second: str, transposed: bool
) -> tuple[int, int, int] | None:
    """Return experts, width and hidden size, if the shapes fit together."""
    joined, down = (list(getattr(module, name).shape) for name in (first, second))
    if transposed:
        joined[1:], down[1:] = joined[:0:-1], down[:0:-1]
    experts, gate_and_up, width = joined
    return (
        None
        if down != [experts, width, gate_and_up // 2] or gate_and_up % 2
        else (experts, width, gate_and_up // 2)
    )


def _choose_plain_way(small: nn.Module) -> None:
    """Make experts of transformers use their loop: their grouped product lacks FP64."""
    config = getattr(small, "config", None)  # the miniature's own copy
    if config is not None and "_experts_implementation_internal" in vars(config):
        vars(config)["_experts_implementation_internal"] = "eager"


def _inputs(experts: int, width: int) -> list[Tensor]:
    order = torch.rand(_TOKENS, experts).argsort(1)
    return [
        torch.randn(_TOKENS, width, dtype=torch.float64),
        order[:, :_CHOSEN].contiguous(),
        torch.rand(_TOKENS, _CHOSEN, dtype=torch.float64),
    ]


def _forward(inner: Call, first: str, second: str, transposed: bool) -> Call:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 3 or kwargs or args[0].dim() != 2:
            return inner(self, *args, **kwargs)
        x, index, weight = args
        joined, down = getattr(self, first), getattr(self, second)
        if transposed:
            joined, down = joined.transpose(1, 2), down.transpose(1, 2)
        return kernels.moe_experts(x, index, weight, joined, None, down)

    return forward
