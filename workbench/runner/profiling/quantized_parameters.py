"""Detection of users' models that read a quantized weight as a parameter, which it is not.

A quantized layer has no parameter ``weight``: ``parameters()`` in a forward pass would leave it
out, without an error. The attribute ``layer.weight`` is the dequantized weight and works.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from models.errors import ConfigurationError
from models.layers.quantized_linear import QuantizedLinear

# Properties of a parameter that are the same without quantization.
_SAFE = frozenset(
    getattr(torch.Tensor, name).__get__ for name in ("dtype", "device", "is_cuda", "layout")
) | {Tensor.is_floating_point, Tensor.is_complex, torch.is_floating_point, torch.is_complex}
_SAME = frozenset({Tensor.detach, Tensor.requires_grad_})  # ``state_dict`` calls these


class MissingWeight(Tensor):
    """Stand-in for the parameter of a quantized layer, without values."""

    layer: str

    @staticmethod
    def __new__(cls, layer: str, like: QuantizedLinear) -> Self:
        """Create the stand-in for the weight of the layer with this name."""
        dtype, device = like.dtype, like.codes_NK.device
        weight = torch.full((), torch.nan, dtype=dtype, device=device).expand(like.codes_NK.shape)
        stand_in = weight.as_subclass(cls)
        stand_in.layer = layer
        return stand_in

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return properties that do not depend on the values; raise ``ConfigurationError`` else."""
        if func in _SAFE:
            return super().__torch_function__(func, types, args, kwargs or {})
        weight = next((x for x in args if isinstance(x, MissingWeight)), None)
        if func in _SAME and weight is not None:
            return weight
        layer = "a linear layer" if weight is None else weight.layer
        raise ConfigurationError(
            f"own: the model reads the weight of {layer} as a parameter, for example from "
            "parameters() or state_dict(), but quantized layers have none; call the layer or use "
            "its attribute weight, or switch quantization off"
        )


@contextlib.contextmanager
def guarded(layers: Mapping[str, QuantizedLinear]) -> Iterator[None]:
    """Raise ``ConfigurationError`` if the model reads a weight of these layers as a parameter.

    From then on ``was_read`` says if it reads the attribute ``weight``.
    """
    own: list[dict[str, nn.Parameter | None]] = [layer._parameters for layer in layers.values()]
    for name, layer in layers.items():
        rest = dict(layer._parameters)
        layer._parameters.clear()
        layer._parameters["weight"] = MissingWeight(name, layer)  # type: ignore[assignment]
        layer._parameters.update(rest)  # the weight stays first, as in a linear layer
        layer.was_read = False
    try:
        yield
    finally:
        for parameters in own:
            parameters.pop("weight", None)
