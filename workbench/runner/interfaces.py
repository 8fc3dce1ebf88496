"""Interfaces that the packages of the runner share, below all of them.

``Situation`` is what options, sizes and availability depend on. The protocols are the parts of a
build and of a built configuration that other packages read.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

import kernels
from kernels import hardware
from models import Family, Model
from sessions.model import OWN, Configuration, Scalar
from workbench.protocol import LeftOut
from workbench.runner.batches import Batches
from workbench.runner.workloads import Compute, Workload


class Trait(enum.Enum):
    """A property that an option gives to the steps, and that other parts depend on."""

    COMPILED = "torch.compile traces the model"
    COMPILED_BLOCKS = "torch.compile traces each block separately"
    REPLAYED = "Inductor replays CUDA graphs of what it compiled"
    CAPTURED = "the complete step is one CUDA graph"
    TRITON = "bundled Triton kernels run"
    ROUNDED = "matrix products have less precision than FP32"
    TILES_TUNED = "tiles of Triton kernels are tuned in a step before the first"
    AUTOTUNED = "kernels are chosen by timings in this process"
    QUANTIZED = "linear layers have quantized weights"
    RECOMPUTED = "activations are recomputed in the backward pass"
    OFFLOADED = "activations are offloaded to host memory between the passes"
    EIGHT_BIT = "the optimizer's states have 8 bits"
    RANKS = "each step runs on several ranks"
    WEIGHTS_DIVIDED = "each rank has a shard of the layers' weights"
    OWN_REDUCTION = "gradients are reduced without DistributedDataParallel"


Traits = Mapping[str, Mapping[str, Collection[Trait]]]  # traits by toggle and option


@dataclass(frozen=True)
class Situation:
    """Facts that decide on availability; ``configuration`` names every toggle's option."""

    configuration: Configuration
    device: torch.device
    family: Family
    config: Any  # the family's configuration dataclass, as toggles have changed it
    workload: Workload
    base: Any  # ``config`` before any toggle changed it
    left_out: tuple[LeftOut, ...] = ()  # preferred options that cannot be used
    traits: Traits = field(default_factory=dict, repr=False)

    @property
    def on_gpu(self) -> bool:
        """True if the model runs on a CUDA device."""
        return bool(self.device.type == "cuda")

    @property
    def is_own_model(self) -> bool:
        """True if the model comes from the user's own file."""
        return self.family.name == OWN

    @property
    def hardware(self) -> hardware.Hardware:
        """The device's capabilities."""
        return hardware.of(self.device)

    def option(self, toggle: str) -> str:
        """Return the option requested of another toggle."""
        return self.configuration.toggles[toggle]

    def has(self, *traits: Trait) -> bool:
        """Return True if an option of a toggle has one of the traits."""
        options = self.configuration.toggles
        return any(
            not set(traits).isdisjoint(by_option.get(options[toggle], ()))
            for toggle, by_option in self.traits.items()
        )


@dataclass
class StepRecord:
    """Findings of a variant's first step. ``usage`` and ``reasons`` are as in ``kernels``."""

    usage: dict[str, dict[str, int]] = field(default_factory=dict)
    reasons: dict[str, tuple[str, str]] = field(default_factory=dict)
    tiles: list[kernels.Choice] = field(default_factory=list)
    checkpointed_blocks: int = 0
    gradient_count: int = 0  # number of parameters that have a gradient
    kept_operators: dict[str, int] = field(default_factory=dict)  # stored by a checkpoint's policy
    placed_additions: int = 0  # additions to the residual stream in place
    workspace_tensors: int = 0  # tensors that experts placed in their workspace
    facts: dict[str, Scalar] = field(default_factory=dict)  # about attention and work


class DividedBuild(Protocol):
    """The part of a build that steps of several ranks depend on."""

    situation: Situation
    weights_dtype: torch.dtype
    autocast: torch.dtype | None
    scales_loss: bool
    optimizer: dict[str, Any]
    sharding: str
    along_sequence: bool
    gradient_compression: str
    schedule: str
    micro_batches: int


@runtime_checkable
class CapturedStep(Protocol):
    """A step that is captured as one CUDA graph at its first call, and replayed from then on."""

    graph: torch.cuda.CUDAGraph | None  # None before the capture
    replays: int

    def __call__(self) -> torch.Tensor:
        """Replay the graph."""

    def uncaptured(self) -> torch.Tensor:
        """Run the step without its graph."""

    def release(self) -> None:
        """Free the graph, from any thread; the next call captures again."""


class Ranks(Protocol):
    """The ranks of a built configuration, for a call beside its steps."""

    def joint_loss(self, variant: Any) -> torch.Tensor | None:
        """Return the loss, computed with all ranks; None if a rank can compute alone."""


class MarkedVariant(Protocol):
    """The part of a built configuration that a call beside its steps reads."""

    @property
    def situation(self) -> Situation:
        """The facts that it was built for."""

    @property
    def model(self) -> Model:
        """The model of the steps."""

    @property
    def batches(self) -> Batches:
        """The batches of this rank."""

    @property
    def compute(self) -> Compute:
        """The computation of a step, without its update."""

    @property
    def divided(self) -> Ranks | None:
        """This rank's side, if there are several ranks."""

    @property
    def restart(self) -> Callable[[], None]:
        """The function that starts a new round of steps, if there are rounds."""

    @property
    def restored_round(self) -> Callable[[], AbstractContextManager[None]]:
        """The function that restores the current round after its context, if there are rounds."""


class DividedVariant(Protocol):
    """The part of a built configuration that its ranks evaluate, load and report."""

    @property
    def model(self) -> Model:
        """The model of the steps."""

    @property
    def batches(self) -> Batches:
        """The batches of this rank."""

    @property
    def record(self) -> StepRecord:
        """The facts of the first step."""

    @property
    def compute(self) -> Compute:
        """The computation of a step, without its update."""

    @property
    def autocast(self) -> Callable[[Compute], Compute]:
        """A wrapper that runs a function in the precision of the steps."""


class EnteredVariant(DividedVariant, Protocol):
    """The part of a built configuration that its ranks enter."""

    @property
    def remembered(self) -> object:
        """The state of a user's model, while its numbers are checked; None otherwise."""
