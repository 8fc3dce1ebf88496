"""The changes of toggles while an arm is built, and the step that results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import kernels
from models import Model
from workbench.runner.config.data import Batches
from workbench.runner.distributed.mesh import ONE_RANK, Layout
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.roofline.ceilings import fp32_products
from workbench.runner.toggles import (
    Situation,
    Stage,
    Trait,
    all_toggles,
)
from workbench.runner.variants.training import Trainer, Weights
from workbench.runner.variants.weights import Quantized
from workbench.runner.workloads import Bench, Compute, Step

if TYPE_CHECKING:
    from workbench.runner.variants.variant import Arm


@dataclass
class Build:
    """The changes of toggles while an arm is built; applied in order of their stage."""

    situation: Situation
    phases: PhaseTracker
    weights_dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    scales_loss: bool = False
    quantization: str = ""  # the scheme of the linear layers' codes
    optimizer: dict[str, Any] = field(  # the plain loop
        default_factory=lambda: dict.fromkeys(("fused", "foreach", "capturable"), False)
    )
    kernel_choices: dict[str, str] = field(default_factory=dict)
    compile_options: dict[str, Any] = field(
        default_factory=lambda: {"dynamic": False, "fullgraph": False}
    )
    compiles_blocks: bool = False  # each block by itself, and not the whole computation
    layout: Layout = ONE_RANK  # of ranks that make a step together
    sharding: str = ""  # how these shard weights: one of ``distributed.data.SHARDING``
    along_sequence: bool = False  # split the stream between layers that ranks divide
    gradient_compression: str = "off"
    schedule: str = "1f1b"  # of a pipeline
    micro_batches: int = 0  # that pass the stages of a pipeline; 0: as many as suit them
    model: Model | None = None  # once it is built
    flags: list[Callable[[], AbstractContextManager[Any]]] = field(
        default_factory=lambda: [functools.partial(fp32_products, tf32=False)]
    )
    preparations: list[Callable[[Arm], None]] = field(default_factory=list)  # before a first step
    transforms: list[Callable[[Model], None]] = field(default_factory=list)
    compute_wrappers: list[Callable[[Compute], Compute]] = field(default_factory=list)
    step_wrappers: list[Callable[[Step], Step]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Without a toggle nothing is optimized: every operator that has a kernel runs in PyTorch.
        for name, operator in kernels.OPS.items():
            if {"torch", "triton"} <= operator.implementations.keys():
                self.kernel_choices[name] = "torch"

    def choose_kernel(self, operator: str, implementation: str) -> None:
        """Let ``operator`` run ``implementation`` in this arm; the last choice wins."""
        self.kernel_choices[operator] = implementation


@dataclass(frozen=True)
class Assembled:
    """A step, and what it works with."""

    bench: Bench
    compute: Compute
    step: Step


def apply_toggles(build: Build, before: Stage | None = None) -> None:
    """Let every toggle that is switched change the build; only those before a stage, if named."""
    for toggle in all_toggles().values():
        option = build.situation.option(toggle.name)
        if option != toggle.off and (before is None or toggle.stage < before):
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
        assert isinstance(weights, Weights), "codes cannot be trained"
        trainer = weights.trainer(build.optimizer, scales_loss=build.scales_loss)
    bench = make_bench(build, model, batches, trainer)
    compute = make_compute(build, bench, divided)
    if divided is None or trainer is None:
        step = workload.step(bench, compute)
    else:
        divided.follow(trainer)
        step = workload.step(bench, divided.loss_of_step(compute, model))
    for wrap_step in build.step_wrappers:
        step = wrap_step(step)
    if divided is not None:
        step = divided.together(step, batches)
    return Assembled(bench, compute, step)


def make_bench(
    build: Build, model: Model, batches: Batches, trainer: Trainer | None = None
) -> Bench:
    """Return what the build's workload works with; without a trainer nothing is updated."""
    situation = build.situation
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
    with _region(build):  # a KV cache is made in the dtype that will compute
        compute = build.situation.workload.compute(bench)
    compute = autocast(build)(compute if divided is None else divided.part(compute, bench.model))
    for wrap in build.compute_wrappers:
        compute = wrap(compute)
    return compute


def autocast(build: Build) -> Callable[[Compute], Compute]:
    """Return a wrapper that runs a function under the build's autocast, if it has one."""
    if build.autocast is None:
        return lambda compute: compute

    def wrap(compute: Compute) -> Compute:
        def cast(*tensors: torch.Tensor) -> torch.Tensor:
            with _region(build):
                return compute(*tensors)

        return cast

    return wrap


def _region(build: Build) -> torch.autocast:
    enabled = build.autocast is not None
    return torch.autocast(build.situation.device.type, build.autocast, enabled=enabled)
