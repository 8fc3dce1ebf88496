"""The step that results from a build: toggles are applied, and the model's parts put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from models import Model
from workbench.runner.batches import Batches
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.training.trainer import Trainer, Weights
from workbench.runner.variants.build import Build
from workbench.runner.variants.weights import Quantized
from workbench.runner.workloads import Bench, Compute, Step


@dataclass(frozen=True)
class Assembled:
    """A step, and what it works with."""

    bench: Bench
    trainer: Trainer | None
    compute: Compute
    step: Step


class Change(Protocol):
    """The part of a toggle that a build reads."""

    @property
    def name(self) -> str:
        """The toggle's name."""

    @property
    def off(self) -> str:
        """The option that changes nothing."""

    @property
    def apply(self) -> Callable[[str, Build], None]:
        """The function of an option and a build, which it changes."""


def apply_toggles(build: Build, toggles: Iterable[Change]) -> None:
    """Let every toggle that is switched change the build; they come in order of their stages."""
    for toggle in toggles:
        option = build.situation.option(toggle.name)
        if option != toggle.off:
            toggle.apply(option, build)


def assemble(
    build: Build,
    model: Model,
    weights: Weights | Quantized,
    batches: Batches,
    divided: Parallel | None = None,
) -> Assembled:
    """Return the step of a transformed model; call it inside the build's flags.

    ``batches`` are those of this rank, where the step is divided.
    """
    workload, trainer = build.situation.workload, None
    if divided is not None:
        divided.shard(model)
        weights = divided.weights.own
    if workload.trains:
        assert isinstance(weights, Weights), "quantized weights cannot be trained"
        trainer = weights.trainer(build.optimizer, scales_loss=build.scales_loss)
    bench = make_bench(build.situation, model, batches, trainer)
    compute = make_compute(build, bench, divided)
    if divided is None or trainer is None:
        step = workload.step(bench, compute)
    else:
        divided.attach(trainer)
        step = workload.step(bench, divided.loss_of_step(compute, model))
    if divided is not None:
        step = divided.counting_traffic(step)
    for wrap_step in build.step_wrappers:
        step = wrap_step(step)
    if divided is not None:
        step = divided.on_all_ranks(step, batches)
    return Assembled(bench, trainer, compute, step)


def make_bench(
    situation: Situation, model: Model, batches: Batches, trainer: Trainer | None = None
) -> Bench:
    """Return the inputs of a situation's steps; without a trainer nothing is updated."""
    configuration = situation.configuration
    return Bench(
        model,
        batches,
        configuration.settings,
        trainer,
        configuration.seed,
        getattr(situation.config, "vocabulary", 0),
        compiled=situation.has(Trait.COMPILED),
    )


def make_compute(build: Build, bench: Bench, divided: Parallel | None = None) -> Compute:
    """Return what a step computes, under autocast and with the build's wrappers around it."""
    device_type = build.situation.device.type
    with _region(build.autocast, device_type):  # a KV cache is made in the dtype that will compute
        compute = build.situation.workload.compute(bench)
    if divided is not None:
        compute = divided.local_compute(compute, bench.model)
    compute = autocast(build.autocast, device_type)(compute)
    for wrap in build.compute_wrappers:
        compute = wrap(compute)
    return compute


def autocast(dtype: torch.dtype | None, device_type: str) -> Callable[[Compute], Compute]:
    """Return a wrapper that runs a function under autocast to ``dtype``, if it is given."""
    if dtype is None:
        return lambda compute: compute

    def wrap(compute: Compute) -> Compute:
        def cast(*tensors: torch.Tensor) -> torch.Tensor:
            with _region(dtype, device_type):
                return compute(*tensors)

        return cast

    return wrap


def _region(dtype: torch.dtype | None, device_type: str) -> torch.autocast:
    return torch.autocast(device_type, dtype, enabled=dtype is not None)
