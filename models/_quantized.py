"""Linear layers that multiply by codes of their weights: INT8 or FP8, for inference.

A layer keeps its weight beside the codes, so that models that share weights go on sharing them; it
is read only to make the codes, again when training has changed it since.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import kernels
from models._language_model import LanguageModel
from models._layers import Linear

# What the kernels for a scheme take on any GPU: both sizes of a weight are multiples of this.
MULTIPLE = {"int8_weight_only": 8, "int8_dynamic": 8, "fp8_tensor": 16, "fp8_row": 16}


class QuantizedLinear(nn.Linear):
    """The linear map of ``linear``, (..., in) -> (..., out), by ``kernels.quantized_matmul``."""

    def __init__(self, linear: nn.Linear, scheme: str) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scheme = scheme
        codes, scale = kernels.quantize_weight(self.weight.detach(), scheme)
        self.codes_NK: Tensor
        self.scale: Tensor
        self.register_buffer("codes_NK", codes, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self._seen = self.weight._version

    def forward(self, x: Tensor) -> Tensor:
        """The product with the codes, and the bias."""
        y = kernels.quantized_matmul(x, self.codes_NK, self.scale, self.scheme)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    @torch.no_grad()
    def refresh(self) -> bool:
        """Make the codes anew, in place, if the weight has changed; returns whether it had."""
        if self._seen == self.weight._version:
            return False
        codes, scale = kernels.quantize_weight(self.weight.detach(), self.scheme)
        self.codes_NK.copy_(codes)
        self.scale.copy_(scale)
        self._seen = self.weight._version
        return True


def quantize_linears(model: nn.Module, scheme: str) -> list[QuantizedLinear]:
    """Replace the model's linear layers in place, and return those that stand there now.

    Left alone are the head of a language model, layers whose sizes are no multiples of
    ``MULTIPLE``, and subclasses of ``nn.Linear`` that are not ours, which may do more.
    """
    head = model.head if isinstance(model, LanguageModel) else None
    made: dict[nn.Module, QuantizedLinear] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # which names a shared one each time
            if type(child) not in (nn.Linear, Linear) or child is head:
                continue
            assert isinstance(child, nn.Linear)
            if any(size % MULTIPLE[scheme] for size in child.weight.shape):
                continue
            if child not in made:
                made[child] = QuantizedLinear(child, scheme)
            setattr(parent, name, made[child])
    return list(made.values())


def expected_error(scheme: str, products: int) -> float:
    """Relative error that so many roundings of one size add up to if they are independent.

    That of one is measured: the scheme's definition on normal numbers, 256 in each sum. As a random
    walk they add up to the root of their number.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    x, weight = torch.randn(2, 256, 256, generator=generator).unbind()
    exact = x.double() @ weight.double().T
    found = kernels.quantized_matmul(
        x, *kernels.quantize_weight(weight, scheme), scheme, impl="torch"
    )
    return float((found - exact).norm() / exact.norm()) * math.sqrt(products)
