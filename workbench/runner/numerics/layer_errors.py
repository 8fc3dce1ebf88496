"""Systematic errors of single layers, which rounding hides in the distance of the outputs.

In 16 bits the outputs of a right model are off by 1 %, and an error of 2 % in one layer adds little
to that. But it points somewhere: along the derivative of the outputs with respect to that layer's
scale, J. Rounding errors are spread over all outputs, and their projection on J is small. So the
error e of the outputs is read as an error of layer l of <e, J_l> / |J_l|^2.

One backward pass gives <e, J_l> for all layers. |J_l| is measured by backward passes of random
vectors, whose projections have its mean square. What rounding does to a projection is measured on
the plain model in the variant's precision.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.runner.failures import explain, is_fatal, lacks_memory
from workbench.runner.numerics.outputs import measurable
from workbench.runner.numerics.reference import Outputs, Plain, plain_kernels
from workbench.runner.numerics.shared_reference import StoredResults
from workbench.runner.profiling.eager import eager
from workbench.runner.roofline.ceilings import fp32_products
from workbench.runner.structures import cast_floats

SMALLEST = 0.01  # share of a layer's scale; smaller deviations are no error
COARSE = 1e-4  # a tolerance below this shows such an error without this check
_PROBES = 6
_DEVIATIONS = 5.0  # standard deviations within which all projections of rounding errors should be
Projections = dict[str, float]  # by layer


@dataclass(frozen=True)
class LayerError:
    """Error of a layer's scale and its tolerance, both relative to the scale."""

    layer: str
    error: float
    allowed: float

    @property
    def text(self) -> str:
        """The error in words."""
        return (
            f"the scale of layer {self.layer} is off by {self.error:+.1%}, at most "
            f"{self.allowed:.1%} expected"
        )


@fp32_products(tf32=False)
def find(
    model: Plain,
    actual: Outputs,
    plain: Outputs,
    reference: Outputs,
    output_index: int,
    stored: StoredResults,
) -> LayerError | str | None:
    """Return the layer with the largest error by its tolerance if that is exceeded, else None.

    ``output_index``: which of several outputs is looked at. ``stored``: projections of the plain
    model. If derivatives are impossible (memory, or an operator without a backward pass), return
    why, as a clause.
    """
    exact = reference.all[output_index].double()
    errors = [torch.nan_to_num(outputs.all[output_index].double() - exact, 0.0, 0.0, 0.0)
              for outputs in (actual, plain)]  # fmt: skip
    deviation = float(errors[1].square().mean().sqrt())
    if not bool(errors[0].any()):
        return None
    if not deviation:
        return "the plain model has no rounding error to compare with"
    why = ""
    for checkpointing in ("none", "full"):  # activations of all blocks may not fit
        try:
            return _find(model, errors, deviation, output_index, checkpointing, stored)
        except Exception as error:
            if is_fatal(error):
                raise
            why = explain(error).sentence.rstrip(".")
            if not lacks_memory(error):
                break
        gc.collect()
    return why


def _find(
    model: Plain,
    errors: list[Tensor],
    deviation: float,
    output_index: int,
    checkpointing: str,
    stored: StoredResults,
) -> LayerError | str | None:
    with plain_kernels(), torch.enable_grad(), eager():
        output, layers = _differentiable(model, output_index, checkpointing)
        vectors = [error.to(output.dtype).reshape(output.shape) for error in errors]
        rounding, squares = stored.get(
            ("projections", output_index),
            lambda: (_project(output, layers, vectors[1]), _squares(output, layers)),
        )
        actual = _project(output, layers, vectors[0])
    return _worst(actual, rounding, squares, deviation)


def _squares(output: Tensor, layers: Mapping[str, list[Tensor]]) -> Projections:
    """Return the mean square of the products with random vectors, by layer."""
    generator = torch.Generator(output.device).manual_seed(0)
    squares = dict.fromkeys(layers, 0.0)
    for _ in range(_PROBES):
        probe = torch.randn(
            output.shape, dtype=output.dtype, device=output.device, generator=generator
        )
        for layer, product in _project(output, layers, probe).items():
            squares[layer] += product * product / _PROBES
    return squares


def _worst(
    actual: Projections, rounding: Projections, squares: Projections, deviation: float
) -> LayerError | str | None:
    sensitive_layers = {layer for layer, square in squares.items() if square > 0}
    if not sensitive_layers:
        return "no layer's scale affects the outputs"
    mean = sum(rounding[x] ** 2 / squares[x] for x in sensitive_layers) / len(sensitive_layers)
    spread = max(deviation, math.sqrt(mean))
    layers = []
    for layer in sensitive_layers:
        error = (actual[layer] - rounding[layer]) / squares[layer]
        chance = _DEVIATIONS * spread / math.sqrt(squares[layer])
        allowed = max(SMALLEST, abs(rounding[layer]) / squares[layer] + chance)
        layers.append(LayerError(layer, error, allowed))
    worst = max(layers, key=lambda suspect: abs(suspect.error) / suspect.allowed)
    return worst if abs(worst.error) > worst.allowed else None


def _differentiable(
    model: Plain, output_index: int, checkpointing: str
) -> tuple[Tensor, Mapping[str, list[Tensor]]]:
    """Return an output of the plain model in FP32, and the parameters of each layer."""
    built = model.model(torch.float32)
    built.set_checkpointing(checkpointing)
    layers: dict[str, list[Tensor]] = {}
    for name, parameter in built.named_parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(True)
            layers.setdefault(name.rpartition(".")[0], []).append(parameter)
    inputs = cast_floats(model.inputs(), torch.float32)
    values = built(*inputs)
    return measurable(model.compared(values))[output_index], layers


def _project(output: Tensor, layers: Mapping[str, list[Tensor]], vector: Tensor) -> Projections:
    """Return the product of a vector with the derivative by each layer's scale."""
    parameters = [parameter for of_layer in layers.values() for parameter in of_layer]
    gradients = torch.autograd.grad(
        output, parameters, vector, retain_graph=True, allow_unused=True
    )
    by_parameter = {
        id(parameter): 0.0 if gradient is None else float((parameter.detach() * gradient).sum())
        for parameter, gradient in zip(parameters, gradients, strict=True)
    }
    return {
        layer: sum(by_parameter[id(parameter)] for parameter in of_layer)
        for layer, of_layer in layers.items()
    }
