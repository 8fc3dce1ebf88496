"""Linear layers that train with the rounding of INT8 weights: quantization-aware training.

The forward pass multiplies by the weight rounded to 8 bits. The gradient passes the rounding
unchanged (the straight-through estimator of Bengio et al. 2013, arXiv 1308.3432), so that
the full-precision weight learns to be rounded (Jacob et al. 2017, arXiv 1712.05877).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

import kernels
from kernels.quantized_matmul import dequantize_weight
from models.layers.quantized_linear import quantizable

SCHEME = "int8_weight_only"  # has one scale for each row of a weight


def fake_quantized(weight: Tensor) -> Tensor:
    """Return the weight rounded to 8 bits, with the gradient of the weight."""
    exact = weight.detach()
    rounded = dequantize_weight(*kernels.quantize_weight(exact, SCHEME), exact.dtype)
    return weight + (rounded - exact)


class FakeQuantizedLinear(nn.Linear):
    """The linear map of ``linear`` by its rounded weight, around the same parameters."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the rounded weight and add the bias."""
        return functional.linear(x, fake_quantized(self.weight), self.bias)

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Compute the same as ``Linear.part``, because each row has its own scale."""
        bias = None if self.bias is None else self.bias[start:stop]
        return functional.linear(x, fake_quantized(self.weight[start:stop]), bias)


def fake_quantize(model: nn.Module) -> None:
    """Replace the model's ``quantizable`` linear layers in place; its parameters stay."""
    replacements = {
        linear: FakeQuantizedLinear(linear) for linear in quantizable(model, SCHEME).values()
    }
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in replacements:
                setattr(parent, name, replacements[child])


def fake_quantize_as(model: nn.Module, other: nn.Module) -> None:
    """Replace the model's layers if ``other`` has such layers, for a comparison with it."""
    if any(isinstance(module, FakeQuantizedLinear) for module in other.modules()):
        fake_quantize(model)
