"""FLOP formulas that replace those of torch which count more than the mathematics needs.

Attention: a causal mask leaves half of the pairs. The forward pass has two products: ``S = Q K^T``
and ``O = P V`` with ``P = softmax(S)``. The gradient has four, two for each of these:
``dV = P^T dO`` and ``dP = dO V^T``, then ``dQ = dS K`` and ``dK = dS^T Q``, where
``dS = P (dP - rowsum(P dP))``. Fused kernels also compute ``S`` again as a fifth product. That is
their choice, which saves the memory of ``P``: with ``P`` stored, four are enough. Formulas of torch
before 2.13 refuse keys of fewer heads than the queries have.

Convolution: torch counts the gradient of a weight in groups as if each output channel read all
input channels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


def register() -> None:
    """Let every counter of torch's use these formulas."""
    for name in _ATTENTION:
        _replace(name, functools.partial(_attention, 1))
        _replace(f"{name}_backward", functools.partial(_attention, 2))
    _replace("convolution_backward", _convolution_backward)


def _replace(name: str, count: Callable[..., int]) -> None:
    packet: Any = getattr(torch.ops.aten, name, None)
    if packet not in flop_registry:
        return
    names = [argument.name for argument in packet.default._schema.arguments]

    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return count(**dict(zip(names, args, strict=False)), **kwargs)

    flop_registry[packet] = formula


def _attention(
    products: int, *, query: Any, key: Any, value: Any, is_causal: bool = False, **_: Any
) -> int:
    batch, heads, length, dim = query.shape
    keys = key.shape[2]
    pairs = length * keys
    if is_causal:  # query i sees the first i + 1 keys
        rising = min(length, keys)
        pairs = rising * (rising + 1) // 2 + (length - rising) * keys
    return int(2 * products * batch * heads * pairs * (dim + value.shape[3]))


def _convolution_backward(
    *, grad_output: Any, input: Any, weight: Any, transposed: bool, output_mask: Any, **_: Any
) -> int:
    """Count as much for each gradient, of the input and of the weight, as for the output."""
    positions = math.prod((input if transposed else grad_output).shape[2:])
    output = 2 * input.shape[0] * positions * math.prod(weight.shape)
    return int(output * sum(output_mask[:2]))
