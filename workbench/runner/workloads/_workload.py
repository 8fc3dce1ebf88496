"""What a workload is: its settings, and what one step of it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from models import LanguageModel
from sessions.model import Scalar
from workbench.protocol import Field, WorkloadInfo

if TYPE_CHECKING:
    from workbench.runner.data import Batches
    from workbench.runner.training import Trainer

Compute = Callable[..., torch.Tensor]
Step = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Bench:
    """What a step works with. ``compute`` is the workload's own, wrapped (autocast, compile)."""

    model: LanguageModel
    batches: Batches
    settings: Mapping[str, Scalar]
    trainer: Trainer | None  # None where nothing is trained


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of step.

    ``compute(bench)`` is the part that autocast and torch.compile act on; ``step(bench, compute)``
    makes the whole step of it, which a CUDA graph captures. ``tokens(settings)`` is the number of
    tokens that one step processes; ``sequence(settings)`` the longest position a model must hold.
    """

    name: str
    title: str
    help: str
    fields: tuple[Field, ...]
    trains: bool
    feeds: bool  # whether every step reads a new batch
    tokens: Callable[[Mapping[str, Scalar]], int]
    sequence: Callable[[Mapping[str, Scalar]], int]
    compute: Callable[[Bench], Compute]
    step: Callable[[Bench, Compute], Step]

    def info(self) -> WorkloadInfo:
        """How the window sees this workload."""
        return WorkloadInfo(
            name=self.name, title=self.title, help=self.help.strip(), fields=list(self.fields)
        )


BATCH = Field(
    name="batch",
    title="Batch",
    help="Sequences per step.",
    default=4,
    minimum=1,
    maximum=65536,
)
SEQUENCE = Field(
    name="sequence",
    title="Sequence",
    help="Tokens per sequence.",
    default=128,
    minimum=1,
    maximum=1048576,
)


def whole_sequences(settings: Mapping[str, Scalar]) -> int:
    """Tokens of a step that processes ``batch`` sequences of ``sequence`` tokens."""
    return int(settings["batch"]) * int(settings["sequence"])


def sequence_length(settings: Mapping[str, Scalar]) -> int:
    """The longest position of such a step."""
    return int(settings["sequence"])
