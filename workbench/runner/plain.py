"""The plain model of an arm's own weights: every operator in PyTorch, on the batch of the arm.

It is the reference in FP64, where that fits, else in FP32; and in the arm's own precision it shows
how far rounding alone takes a model from that reference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch

import kernels
from models import Model
from models.model import Promise
from models.quantized_linear import quantize_linears
from workbench.runner import draws, own, ties
from workbench.runner.arm import Arm
from workbench.runner.ceilings import fp32_products
from workbench.runner.compiles import eager
from workbench.runner.failures import Mistake, is_fatal
from workbench.runner.outputs import measurable
from workbench.runner.ties import Nudge, nudged
from workbench.runner.toggles import Situation
from workbench.runner.weights import Parameters
from workbench.runner.workloads import Compute

_ROOM = 4  # times the reference's weights and outputs must be free for it


@dataclass(frozen=True)
class Outputs:
    """What a model gives for the batch: outputs, and the loss where it is trained."""

    values: torch.Tensor
    loss: float | None
    promise: Promise | None = None
    several: tuple[torch.Tensor, ...] = ()  # where the model gives more than ``values``
    drew: bool = False  # random numbers
    carries: bool = False  # what it leaves in buffers is another

    @classmethod
    def of(cls, output: Any, loss: float | None, promise: Promise | None = None) -> Outputs:
        """Of whatever a model gives; raises ``Mistake`` where nothing of it can be compared."""
        found = tuple(measurable(output))
        if not found:
            raise Mistake("the outputs hold no floating-point numbers, which could be compared")
        return cls(found[0], loss, promise, found if len(found) > 1 else ())

    @property
    def all(self) -> tuple[torch.Tensor, ...]:
        """Each output."""
        return self.several or (self.values,)

    def at(self, place: int) -> Outputs:
        """The same with this output for ``values``."""
        return replace(self, values=self.all[place])


@dataclass(frozen=True)
class Plain:
    """Plain models of one arm, made anew for every call, in the mode that the arm's model is in."""

    arm: Arm
    situation: Situation
    weights: Parameters

    @fp32_products(tf32=False)
    def reference(self) -> tuple[Outputs, str]:
        """The outputs in the widest dtype that fits, and that dtype's name."""
        with plain_kernels():
            if self._fits(torch.float64):
                try:
                    outputs = self._given(self._model(torch.float64))
                    # An operator may compute in FP32 whatever it is given: say what came out.
                    return outputs, str(outputs.values.dtype).removeprefix("torch.")
                except Exception as error:  # a model of one's own may know FP32 alone
                    if is_fatal(error):
                        raise
            return self._given(self._model(torch.float32)), "float32"

    @fp32_products(tf32=False)
    def moved(self, dtype: torch.dtype, nudge: Nudge) -> Outputs:
        """The reference's outputs in ``dtype``, of weights that are nudged."""
        with plain_kernels():
            return self._given(self._model(dtype, nudge))

    def outputs(self, adapted: bool = True, *, again: bool = False) -> Outputs:
        """Those in the arm's own precision and flags, and with its choices if ``adapted``.

        ``again``: of the same model's second call, with the buffers that it had in the first.
        """
        model = self._model(None)
        if adapted:
            take_choices(model, self.arm.model)
        if self.arm.quantization:
            quantize_linears(model, self.arm.quantization)
        with contextlib.ExitStack() as stack:
            for flag in self.arm.flags:
                stack.enter_context(flag())
            with plain_kernels():
                if again:
                    self._given(model, self.arm.autocast)
                return self._given(model, self.arm.autocast)

    def _model(self, dtype: torch.dtype | None, nudge: Nudge = ties.NONE) -> Model:
        """Around these weights, or around copies of them in another dtype."""
        held = {
            name: tensor
            if dtype is None
            else nudged(tensor.detach().to(own.kind(tensor, dtype)), nudge, place)
            for place, (name, tensor) in enumerate(self.weights.items())
        }
        model: Model = self.situation.family.share(self.situation.config, held)
        model.train(self.situation.workload.trains)
        draws.take_modes(model, self.arm.model)
        return model

    def _given(
        self, model: Model, wrap: Callable[[Compute], Compute] = lambda compute: compute
    ) -> Outputs:
        """What a model gives for the batch of the arm's workload, without any cache."""
        arm, workload = self.arm, self.situation.workload
        dtype = own.precision(model.parameters())
        inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in arm.batches.inputs)
        if workload.decodes:
            (tokens,) = inputs
            inputs = (torch.cat([tokens, tokens[:, -1:]], dim=1),)
        # What a person's file compiles by itself has one budget of recompiles for all copies of it.
        with torch.no_grad(), eager():
            carry(model, arm.model.carried())
            carried = {name: tensor.clone() for name, tensor in model.carried().items()}
            before = draws.states(model, self.situation.device)
            values = wrap(model)(*inputs)
            carries = not all(torch.equal(carried[n], x) for n, x in model.carried().items())
            loss = None
            if workload.trains:
                carry(model, arm.model.carried())
                loss = float(wrap(model.loss)(*inputs, *arm.batches.targets))
            drew = draws.states(model, self.situation.device) != before
        if workload.decodes or workload.name == "prefill":
            values = values[:, -1:]
        promise = None if workload.decodes else model.promise()
        return replace(Outputs.of(values, loss, promise), drew=drew, carries=carries)

    def _fits(self, dtype: torch.dtype) -> bool:
        """Whether weights and outputs in ``dtype`` leave most of the memory free."""
        numbers = sum({id(each): each.numel() for each in self.weights.values()}.values())
        each = int(getattr(self.situation.config, "vocabulary", 1))  # outputs of a token
        numbers += sum(x.numel() for x in self.arm.batches.inputs) * each
        return _ROOM * numbers * dtype.itemsize < free_bytes(self.situation)


def free_bytes(situation: Situation) -> int:
    """Of the device's memory, or of the host's where that computes."""
    if situation.on_gpu:
        return int(torch.cuda.mem_get_info(situation.device)[0])
    return int(psutil.virtual_memory().available)


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """Every operator in PyTorch that has an implementation there."""
    plain = {name: "torch" for name, op in kernels.OPS.items() if "torch" in op.implementations}
    with kernels.using(**plain):
        yield


def take_choices(model: Model, other: Model) -> None:
    """Let a model that adapts go on from what another of its structure has chosen."""
    for name, tensor in other.adapted().items():
        model.adapted()[name].copy_(tensor)


def carry(model: Model, values: Mapping[str, torch.Tensor]) -> None:
    """Let a model go on from what calls have left, of itself or of another of its structure."""
    if isinstance(model, own.OwnModel):
        model.carry(values)
        return
    for name, tensor in values.items():
        model.carried()[name].copy_(tensor)
