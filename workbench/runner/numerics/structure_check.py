"""A variant's modules in FP32, where a fault of one layer is not hidden by rounding.

In 16 bits, an error of 2 % in a layer that adds a tenth to the residual stream is below one
rounding of the outputs. The same modules, called uncompiled with FP32 weights, must agree with the
plain model to ``LARGEST``, whatever the variant's precision is. This does not detect faults of
16-bit arithmetic, of compiled code or of caches; the outputs of the variant itself show them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from models import Model
from workbench.runner.failures import Mistake, explain, is_fatal
from workbench.runner.numerics.distances import distance
from workbench.runner.numerics.isolation import kept_state
from workbench.runner.numerics.outputs import measurable
from workbench.runner.numerics.reference import Plain, copy_choices, plain_kernels
from workbench.runner.profiling.eager import eager
from workbench.runner.roofline.ceilings import fp32_products
from workbench.runner.structures import cast_floats, map_tensors
from workbench.runner.user_models.user_model import OwnModel

LARGEST = 1e-4  # relative; FP32 kernels are off by 1e-6


@dataclass(frozen=True)
class StructureError:
    """The deviation of the variant's modules in FP32."""

    relative_error: float

    @property
    def text(self) -> str:
        """The error in words."""
        return (
            f"with FP32 weights, its modules differ by {self.relative_error:.2g}, at most "
            f"{LARGEST:.2g} expected"
        )


def find(model: Plain, put_back: Callable[[], None]) -> StructureError | str | None:
    """Return the error of the variant's modules in FP32 if it is too large, else None.

    If the modules cannot be checked, return the reason as a clause.
    """
    if why := _unsuitable(model):
        return why
    try:
        relative_error = _error(model)
    except Exception as error:  # kernels and files may take no FP32
        if is_fatal(error):
            raise
        return explain(error).sentence.rstrip(".")
    finally:
        put_back()
    if math.isnan(relative_error):
        return "with FP32 weights, some outputs are not finite"
    return None if relative_error <= LARGEST else StructureError(relative_error)


def _of_distinct_modules(model: Model, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of each module once, by its first name.

    ``functional_call`` replaces tensors by name. It would replace those of a module with two names
    twice, and put the first replacement back instead of the tensor that a captured graph reads.
    """
    modules = {name for name, _ in model.named_modules()}
    return {name: x for name, x in values.items() if name.rpartition(".")[0] in modules}


def _unsuitable(model: Plain) -> str:
    """Return why the modules of a variant cannot run with FP32 weights; empty if they can."""
    variant = model.variant
    if variant.divided is not None:
        return "its weights or its batch are split across ranks"
    if variant.quantization:
        return "its weights are quantized"
    if variant.model.adapted():
        return "its heads adapt to their inputs"
    return ""


def _error(model: Plain) -> float:
    variant = model.variant
    with torch.set_grad_enabled(variant.probe.needs_gradients), eager():
        with plain_kernels(), fp32_products(tf32=False):
            plain = model.model(torch.float32)
            copy_choices(plain, variant.model)
            restore = kept_state(plain, variant.batches, variant.situation.device)
            # Separate inputs for each call, because a model may overwrite them.
            inputs = [map_tensors(cast_floats(model.inputs(), torch.float32), torch.clone)
                      for _ in range(2)]  # fmt: skip
            expected = [y.detach().clone() for y in measurable(plain(*inputs[0]))]
            restore()
        values = {
            **dict(plain.named_parameters(remove_duplicate=False)),
            **dict(plain.named_buffers(remove_duplicate=False)),
        }
        named = {name for name, _ in variant.model.named_parameters(remove_duplicate=False)}
        if lacking := sorted(named - values.keys()):
            raise Mistake(f"the plain model has no parameter {lacking[0]}")
        values = _of_distinct_modules(variant.model, values)
        if variant.remembered is not None and isinstance(variant.model, OwnModel):
            variant.remembered.carried.put_into(variant.model, torch.float32)
        device = variant.situation.device.type
        with variant.entered(), torch.autocast(device, enabled=False), fp32_products(tf32=False):
            outputs = functional_call(variant.model, values, inputs[1], tie_weights=False)
            actual = [y.detach() for y in measurable(outputs)]
    if [y.shape for y in actual] != [y.shape for y in expected]:
        return math.inf
    return max(distance(y, exact).relative_error for y, exact in zip(actual, expected, strict=True))
