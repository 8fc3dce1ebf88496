"""Recognition of gated feed-forward layers: SwiGLU and GEGLU, with or without tanh.

    y = down(act(gate(x)) * up(x))

A candidate has linear layers and activations as children, and no parameters of its own: three
layers, or two of which the first computes gate and up together.
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

Activation = Callable[[Tensor, Tensor], Tensor]
_ACTIVATIONS: dict[str, tuple[Activation, ...]] = {
    "swiglu": (kernels.swiglu,),
    "geglu": (
        lambda gate, up: kernels.geglu(gate, up, "tanh"),
        lambda gate, up: kernels.geglu(gate, up, "none"),
    ),
}


def patch_gated_mlp(operator: str, model: nn.Module) -> Patch:
    """Replace the gated layers that compute ``operator``: swiglu or geglu."""
    recognize = functools.partial(_recognize, operator)
    return replace_recognized(model, _is_candidate, recognize)


def _is_linear(module: nn.Module | None) -> bool:
    return isinstance(module, nn.Linear)


def _is_candidate(module: nn.Module) -> bool:
    children = [child for child in module._modules.values() if child is not None]
    linears = [child for child in children if _is_linear(child)]
    return (
        len(linears) in (2, 3)
        and not module._parameters
        and not any(probe.has_tensors(child) for child in children if not _is_linear(child))
        and not isinstance(module, (nn.Sequential, nn.ModuleList))
        and probe.parameters_of(module) == 1
        and not probe.keeps_state(module)
    )


def _recognize(operator: str, module: nn.Module, inner: Call) -> Call | None:
    linears: dict[str, Any] = {n: x for n, x in module._modules.items() if _is_linear(x)}
    sizes = probe.small_sizes(
        size for layer in linears.values() for size in (layer.in_features, layer.out_features)
    )
    with probe.exact():
        children = {
            name: _small(child, sizes) if name in linears else probe.duplicate(child)
            for name, child in module._modules.items()
            if child is not None
        }
        small = probe.miniature(module, sizes, children)
        first = next(iter(linears.values()))
        width = sizes[first.in_features]
        inputs = [torch.randn(2, 3, width, dtype=torch.float64) * scale for scale in (1.0, 30.0)]
    weights = list(small.parameters())
    for function in _proposals(linears, operator, inner):
        replaced = types.MethodType(function, small)
        exact = all(probe.agree_in_both_modes(small, replaced, [x], weights) for x in inputs)
        if exact and _has_same_dtype(small, replaced, inputs[0]):
            return function
    return None


def _has_same_dtype(small: nn.Module, replaced: Call, x: Tensor) -> bool:
    """Return True if outputs in BF16 have the original's dtype. The small copy is cast."""
    small.to(torch.bfloat16)
    same = probe.same_dtypes(small, replaced, [x.to(torch.bfloat16)])
    small.to(torch.float64)
    return same


def _small(layer: nn.Module, sizes: dict[int, int]) -> nn.Linear:
    assert isinstance(layer, nn.Linear)
    has_bias = layer.bias is not None
    linear = nn.Linear(
        sizes[layer.in_features], sizes[layer.out_features], has_bias, dtype=torch.float64
    )
    for parameter in linear.parameters():
        nn.init.normal_(parameter)
    return linear


def _proposals(linears: dict[str, Any], operator: str, inner: Call) -> Iterator[Call]:
    names = list(linears)
    for activation in _ACTIVATIONS[operator]:
        if len(names) == 3:
            for gate, up, down in itertools.permutations(names):
                shapes = [(linears[n].in_features, linears[n].out_features) for n in (gate, up)]
                if shapes[0] == shapes[1] and linears[down].in_features == shapes[0][1]:
                    yield _separate(inner, activation, gate, up, down)
        else:
            for gate_and_up, down in itertools.permutations(names):
                if linears[gate_and_up].out_features == 2 * linears[down].in_features:
                    for first in (True, False):
                        yield _joined(inner, activation, gate_and_up, down, first)


def _separate(inner: Call, activation: Activation, gate: str, up: str, down: str) -> Call:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            return inner(self, *args, **kwargs)
        (x,) = args
        hidden = activation(getattr(self, gate)(x), getattr(self, up)(x))
        return getattr(self, down)(hidden)

    return forward


def _joined(
    inner: Call, activation: Activation, gate_and_up: str, down: str, gate_is_first: bool
) -> Call:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            return inner(self, *args, **kwargs)
        first, second = getattr(self, gate_and_up)(args[0]).chunk(2, dim=-1)
        pair = (first, second) if gate_is_first else (second, first)
        return getattr(self, down)(activation(*pair))

    return forward
