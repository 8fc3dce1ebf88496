"""Linear layers that multiply by quantized weights: INT8 or FP8, for inference.

A layer holds its quantized weight and the scales, and no other weight, so that the model is small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from kernels.quantized_matmul import dequantize_weight
from models.builder import ModelBuilder
from models.language_model import LanguageModel
from models.layers.basic import Linear

Codes = tuple[Tensor, Tensor]  # as returned by ``kernels.quantize_weight``
# The kernels for a scheme accept on any GPU: both sizes of a weight are multiples of this.
MULTIPLE = {"int8_weight_only": 8, "int8_dynamic": 8, "fp8_tensor": 16, "fp8_row": 16}


class QuantizedLinear(nn.Linear):
    """Linear map of ``linear``, (..., in) -> (..., out), by ``kernels.quantized_matmul``.

    ``codes`` are its quantized weight and the scales; computed here if not given.
    """

    def __init__(self, linear: nn.Linear, scheme: str, codes: Codes | None = None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.scheme = scheme
        self.dtype = linear.weight.dtype
        self.was_read = False  # True if its weight was read without a call of the layer
        codes_and_scale = (
            kernels.quantize_weight(linear.weight.detach(), scheme) if codes is None else codes
        )
        self.codes_NK: Tensor
        self.scale: Tensor
        self.register_buffer("codes_NK", codes_and_scale[0], persistent=False)
        self.register_buffer("scale", codes_and_scale[1], persistent=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Dequantized weight, (out, in), recomputed in each access."""
        if not torch.compiler.is_compiling():
            self.was_read = True
        return dequantize_weight(self.codes_NK, self.scale, self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the quantized weight, and add the bias."""
        return self.part(x, 0, self.out_features)

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Compute a part of the outputs, like ``Linear.part``."""
        codes, scale, bias = self.codes_NK, self.scale, self.bias
        if (start, stop) != (0, self.out_features):
            codes, scale = codes[start:stop], scale[start:stop] if scale.dim() else scale
            bias = None if bias is None else bias[start:stop]
        y = kernels.quantized_matmul(x, codes, scale, self.scheme)
        return y if bias is None else y + bias.to(y.dtype)


def quantizable(model: nn.Module, scheme: str) -> dict[str, nn.Linear]:
    """Return the linear layers that a scheme can replace, by name.

    It cannot replace the head of a language model, layers whose sizes are not multiples of
    ``MULTIPLE``, and layers that may do more: with hooks, with their own ``forward``, or of a
    subclass of ``nn.Linear`` other than the plain one here.
    """
    head = model.head if isinstance(model, LanguageModel) else None
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and type(module) in (nn.Linear, Linear)
        and module is not head
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
        and not any(size % MULTIPLE[scheme] for size in module.weight.shape)
    }


def quantize_linears(
    model: nn.Module, scheme: str, codes: Mapping[str, Codes] | None = None
) -> list[QuantizedLinear]:
    """Replace the model's ``quantizable`` layers in place, and return the new ones.

    ``codes`` has the quantized weight and scales of each, by name, which replace its weight.
    """
    replacements: dict[nn.Module, QuantizedLinear] = {
        linear: QuantizedLinear(linear, scheme, None if codes is None else codes[name])
        for name, linear in quantizable(model, scheme).items()
    }
    for parent in list(model.modules()):
        # a shared module occurs under each of its names
        for name, child in parent._modules.items():
            if child in replacements:
                setattr(parent, name, replacements[child])
    return list(replacements.values())


@dataclass(frozen=True)
class Saving:
    """Memory that a scheme saves: how many numbers are quantized, and the bytes of the scales."""

    numbers: int
    scale_bytes: int
    widened: int  # numbers of the largest layer that is dequantized for its product


@functools.cache
def saving(family: ModelBuilder, config: Any, scheme: str) -> Saving:
    """Compute the saving for a configuration's model; only its structure is built."""
    weights = [linear.weight for linear in quantizable(family.build(config), scheme).values()]
    scales = [1 if scheme == "fp8_tensor" else len(weight) for weight in weights]
    sizes = [weight.numel() for weight in weights]
    widened = max(sizes, default=0) if scheme == "int8_weight_only" else 0
    return Saving(sum(sizes), 4 * sum(scales), widened)


def expected_error(scheme: str, products: int) -> float:
    """Return the relative error of that many equal roundings, if they are independent.

    The error of one is measured: the scheme's definition on normal numbers, 256 in each sum. As a
    random walk they add up to the root of their number.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    x, weight = torch.randn(2, 256, 256, generator=generator).unbind()
    exact = x.double() @ weight.double().T
    product = kernels.quantized_matmul(
        x, *kernels.quantize_weight(weight, scheme), scheme, impl="torch"
    )
    return float((product - exact).norm() / exact.norm()) * math.sqrt(products)
