"""The plain model of a variant's own weights: every operator in PyTorch, on the variant's batch.

It is the reference in FP64, where that fits, else in FP32; and in the variant's own precision it
shows how far rounding alone takes a model from that reference.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import kernels
from models import Model
from models.layers.fake_quantized import fake_quantize_as
from models.layers.quantized_linear import quantize_linears
from models.model import Promise
from workbench.runner.batches import Tensors
from workbench.runner.failures import Mistake, is_fatal
from workbench.runner.instruments.memory import free_bytes
from workbench.runner.interfaces import Situation
from workbench.runner.model_state import rng
from workbench.runner.model_state.carried_state import NotCarried
from workbench.runner.numerics import routing_ties
from workbench.runner.numerics.isolation import constants_of, kept_state, share
from workbench.runner.numerics.outputs import measurable
from workbench.runner.numerics.routing_ties import Nudge, nudged
from workbench.runner.profiling.eager import eager
from workbench.runner.roofline.ceilings import fp32_products
from workbench.runner.structures import cast_floats, kind, map_tensors, tensors
from workbench.runner.training.trainer import Parameters
from workbench.runner.user_models import user_model
from workbench.runner.variants.variant import Variant
from workbench.runner.workloads import Compute

_ROOM = 4  # times the reference's weights and outputs must be free for it


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model for the batch, and the loss if it is trained."""

    values: torch.Tensor
    loss: float | None
    promise: Promise | None = None
    several: tuple[torch.Tensor, ...] = ()  # all outputs, if the model returns more than one
    drew: bool = False  # the model drew random numbers
    carries: bool = False  # it changed its buffers

    @classmethod
    def of(cls, output: Any, loss: float | None, promise: Promise | None = None) -> Outputs:
        """Return the outputs that a model gives; raises ``Mistake`` if nothing is comparable."""
        comparable = tuple(measurable(output))
        if not comparable:
            raise Mistake("the outputs hold no floating-point numbers that could be compared")
        return cls(comparable[0], loss, promise, comparable if len(comparable) > 1 else ())

    @property
    def all(self) -> tuple[torch.Tensor, ...]:
        """Each output."""
        return self.several or (self.values,)

    @property
    def largest(self) -> float:
        """The largest absolute value of the outputs that are finite."""
        return max(map(_largest, self.all))

    def at(self, index: int) -> Outputs:
        """Return a copy whose ``values`` are the output ``index``."""
        return replace(self, values=self.all[index])


def _largest(values: torch.Tensor) -> float:
    if values.dtype.itemsize == 1:  # torch has no norms in FP8
        values = values.float()
    largest = float(torch.linalg.vector_norm(values, math.inf))  # needs no copy
    if math.isfinite(largest):
        return largest
    return float(torch.linalg.vector_norm(values.nan_to_num(0, 0, 0), math.inf))


@dataclass(frozen=True)
class Plain:
    """Plain models of one variant, built for every call, in the mode of the variant's model."""

    variant: Variant
    situation: Situation
    weights: Parameters

    @fp32_products(tf32=False)
    def reference(self) -> tuple[Outputs, str]:
        """Return the outputs in the widest dtype that fits, and that dtype's name."""
        with plain_kernels():
            if self._fits(torch.float64):
                try:
                    outputs = self._outputs_of(self.model(torch.float64))
                    # An operator may compute in FP32 for any input: report the dtype of the result.
                    return outputs, str(outputs.values.dtype).removeprefix("torch.")
                except Exception as error:  # the user's own model may support only FP32
                    if is_fatal(error) or isinstance(error, NotCarried):
                        raise
            return self._outputs_of(self.model(torch.float32)), "float32"

    @fp32_products(tf32=False)
    def moved(self, dtype: torch.dtype, nudge: Nudge) -> Outputs:
        """Return the reference's outputs in ``dtype``, of weights that are nudged."""
        with plain_kernels():
            return self._outputs_of(self.model(dtype, nudge))

    def outputs(
        self, adapted: bool = True, *, again: bool = False, quantized: bool = True
    ) -> Outputs:
        """Return the outputs in the variant's precision and flags, with its choices if ``adapted``.

        ``again``: of the same model after a call for another batch, with its state put back.
        """
        model = self.model(None)
        if adapted:
            copy_choices(model, self.variant.model)
        if self.variant.quantization and quantized:
            quantize_linears(model, self.variant.quantization)
        with contextlib.ExitStack() as stack:
            for flag in self.variant.flags:
                stack.enter_context(flag())
            with plain_kernels():
                if again:
                    self._outputs_of(model, self.variant.autocast, self.variant.batches.following())
                return self._outputs_of(model, self.variant.autocast)

    def model(self, dtype: torch.dtype | None, nudge: Nudge = routing_ties.NONE) -> Model:
        """Return a model of these weights, or of copies of them in another dtype."""
        weights: dict[str, torch.Tensor] = dict(self.weights)
        if dtype is not None:
            cast = {n: x.detach().to(kind(x, dtype)) for n, x in self.weights.items()}
            cast = constants_of(self.variant.remembered, cast, dtype)
            weights = {n: nudged(x, nudge, index) for index, (n, x) in enumerate(cast.items())}
            for name, value in weights.items():  # as in the variant, for a model that needs them
                value.requires_grad_(self.weights[name].requires_grad)
        model = share(self.situation, self.variant.model, self.variant.remembered, weights, dtype)
        fake_quantize_as(model, self.variant.model)
        model.train(self.situation.workload.trains)
        rng.copy_modes(model, self.variant.model)
        return model

    def _outputs_of(
        self,
        model: Model,
        wrap: Callable[[Compute], Compute] = lambda compute: compute,
        batch: tuple[Tensors, Tensors] | None = None,
    ) -> Outputs:
        """Return a model's outputs for a batch (the variant's current one) without any cache."""
        batches, workload = self.variant.batches, self.situation.workload
        dtype = user_model.precision(model.parameters())
        batch_inputs, targets = batch or (batches.inputs, batches.targets)
        inputs = self.inputs(cast_floats(batch_inputs, dtype))
        # Code that the user's file compiles itself has one recompile limit for all its copies.
        with torch.set_grad_enabled(self.variant.probe.needs_gradients), eager():
            put_back = kept_state(model, batches, self.situation.device)
            carried = {name: tensor.clone() for name, tensor in model.carried().items()}
            before = rng.states(model, self.situation.device)
            hooks, parameters = count_hooks(model), dict(model.named_parameters())
            values = wrap(model)(*inputs)
            if count_hooks(model) != hooks:
                raise NotCarried("calls of the model register hooks")
            if any(parameters.get(name, p) is not p for name, p in model.named_parameters()):
                raise NotCarried("calls of the model replace or swap parameters")
            drew = rng.states(model, self.situation.device) != before  # ``put_back`` restores some
            carries = not all(torch.equal(carried[n], x) for n, x in model.carried().items())
            loss = None
            values = map_tensors(values, lambda x: x.detach().clone())
            put_back()
            if workload.trains:
                before = rng.states(model, self.situation.device)
                value = wrap(model.loss)(*cast_floats(batch_inputs, dtype), *targets)
                loss = float(value.detach())
                drew |= rng.states(model, self.situation.device) != before
                put_back()
        values = self.compared(values)
        promise = None if workload.decodes else model.promise()
        return replace(Outputs.of(values, loss, promise), drew=drew, carries=carries)

    def inputs(self, inputs: Tensors | None = None) -> Tensors:
        """Return the inputs of the model: in decoding, the prompt and one more token."""
        inputs = self.variant.batches.inputs if inputs is None else inputs
        if not self.situation.workload.decodes:
            return inputs
        (tokens,) = inputs
        return (torch.cat([tokens, tokens[:, -1:]], dim=1),)

    def compared(self, values: Any) -> Any:
        """Return the part of the outputs that the workload gives too."""
        workload = self.situation.workload
        return values[:, -1:] if workload.decodes or workload.name == "prefill" else values

    def _fits(self, dtype: torch.dtype) -> bool:
        """Return True if weights and outputs in ``dtype`` leave most of the memory free."""
        numbers = sum({id(weight): weight.numel() for weight in self.weights.values()}.values())
        per_token = int(getattr(self.situation.config, "vocabulary", 1))  # outputs of a token
        numbers += sum(x.numel() for x in tensors(self.variant.batches.inputs)) * per_token
        return _ROOM * numbers * dtype.itemsize < free_bytes(self.situation.device)


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """Use PyTorch's implementation for every operator that has one there."""
    plain = {name: "torch" for name, op in kernels.OPS.items() if "torch" in op.implementations}
    with kernels.using(**plain):
        yield


def count_hooks(model: Model) -> int:
    """Return how many hooks the model's modules have."""
    return sum(
        len(hooks)
        for module in model.modules()
        for name, hooks in vars(module).items()
        if name.endswith("_hooks") and isinstance(hooks, dict)
    )


def copy_choices(model: Model, other: Model) -> None:
    """Copy the choices of a model that adapts to another model of its structure."""
    for name, tensor in other.adapted().items():
        model.adapted()[name].copy_(tensor)
