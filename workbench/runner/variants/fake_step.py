"""A configuration's step on fake tensors: nothing is computed or allocated.

Model, optimizer and batches consist of torch's fake tensors, which have shape, dtype and device.
Toggles are applied as in a variant, except those that act only on the built step (compilation,
graphs); the caller must account for these.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec
import torch
from torch import nn

import kernels
from models import Model
from models.execution import checkpointing
from models.layers.quantized_linear import quantize_linears
from workbench.runner.batches import SYNTHETIC
from workbench.runner.data import batches_of
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.interfaces import Situation
from workbench.runner.profiling.eager import eager
from workbench.runner.roofline.counter import Tally
from workbench.runner.training.trainer import Weights
from workbench.runner.variants.assembly import Change, apply_toggles, assemble
from workbench.runner.variants.build import Build


def count(situation: Situation, toggles: Iterable[Change]) -> Tally:
    """Return the FLOPs, bytes and operators of one step.

    ``toggles`` are those that change what a step computes, not how it is compiled or captured.
    Raises ``counter.NotCounted``, or an error of torch if a step depends on values.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # slow to load, with all of Dynamo

    # The bytes of a file change no work, and fake tensors cannot hold them to be validated.
    configuration = msgspec.structs.replace(situation.configuration, data=SYNTHETIC)
    situation = dataclasses.replace(situation, configuration=configuration)
    build = Build(situation, PhaseTracker(lambda phase: None))
    apply_toggles(build, toggles)
    model = situation.family.build(situation.config, dtype=build.weights_dtype)
    filled = situation.workload.filled(situation.configuration.settings)
    tally = Tally(situation.device, filled, checkpointing.saves)
    with FakeTensorMode(allow_non_fake_inputs=True), contextlib.ExitStack() as stack:
        _materialize(model, situation.device)
        if build.quantization:
            quantize_linears(model, build.quantization)
        model.share_rope_cache(False)
        stack.enter_context(eager())  # an optimizer may compile its step, which fails here
        stack.enter_context(tally.looking())
        for transform in build.transforms:
            transform(model)
        model.train(situation.workload.trains)
        for flag in build.flags:
            stack.enter_context(flag())
        stack.enter_context(kernels.using(**build.kernel_choices))
        weights = Weights(model.weights())
        batches = batches_of(build.situation, build.weights_dtype)
        assembled = assemble(build, model, weights, batches)
        trainer = assembled.trainer
        if trainer is not None and trainer.scaler is not None:
            trainer.scaler = _SteppingScaler(situation.device.type)
        with tally.counting(None if trainer is None else trainer.optimizer):
            assembled.step()
    return tally


class _SteppingScaler(torch.amp.GradScaler):
    """A loss scaler that never skips an update, as on most steps.

    A plain one reads from the device whether a gradient overflowed, unless the optimizer is fused.
    """

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: Any, *args: Any, **kwargs: Any
    ) -> float | None:
        return optimizer.step(*args, **kwargs)


def _materialize(model: Model, device: torch.device) -> None:
    """Give a model without values fake parameters and constants on ``device``."""
    fakes: dict[int, nn.Parameter] = {}  # by the id of the old parameter, as they may be tied
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if id(old) not in fakes:
                empty = torch.empty(old.shape, dtype=old.dtype, device=device)
                fakes[id(old)] = nn.Parameter(empty, requires_grad=old.requires_grad)
                fakes[id(old)].__dict__.update(old.__dict__)
            setattr(module, name, fakes[id(old)])
    for module in model.modules():
        if hasattr(module, "rebuild_buffers"):
            module.rebuild_buffers(device)
