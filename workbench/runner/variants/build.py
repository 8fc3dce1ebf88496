"""A build: the changes of toggles while a variant is built."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

import kernels
from models import Model
from sessions.model import Scalar
from workbench.runner.distributed.mesh import ONE_RANK, Layout, chunks_of
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.interfaces import MarkedVariant, Situation
from workbench.runner.loading import Loading
from workbench.runner.roofline.ceilings import fp32_products
from workbench.runner.workloads import Compute, Step

Preparation = Callable[[MarkedVariant], Mapping[str, Scalar]]  # returns facts for the ledger


class Precedence(enum.IntEnum):
    """The strength of a choice of an operator's implementation, whatever the order of toggles."""

    DEFAULT = 0  # no toggle chose
    REPLACED = 1  # the operator replaces modules of a user's model
    ALL_OPERATORS = 2
    OPERATOR = 3  # the operator's own toggle chose


@dataclass
class Build:
    """The changes that toggles make to a variant before it is built, in order of their stage."""

    situation: Situation
    phases: PhaseTracker
    weights_dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    scales_loss: bool = False
    quantization: str = ""  # the scheme of the linear layers' quantized weights
    optimizer: dict[str, Any] = field(  # the plain loop
        default_factory=lambda: dict.fromkeys(("fused", "foreach", "capturable"), False)
    )
    kernel_choices: dict[str, str] = field(default_factory=dict)
    compile_options: dict[str, Any] = field(
        default_factory=lambda: {"dynamic": False, "fullgraph": False}
    )
    compiles_blocks: bool = False  # each block separately, not the complete computation
    layout: Layout = ONE_RANK  # how the ranks of a step are arranged
    sharding: str = ""  # how these shard weights: one of ``distributed.data.SHARDING``
    along_sequence: bool = False  # split the residual stream between sharded layers
    gradient_compression: str = "off"
    schedule: str = "1f1b"  # order of a pipeline's micro-batches
    micro_batches: int = 0  # number in a pipeline; 0: chosen automatically
    loading: Loading | None = None  # reads batches from a file; None: they lie on the device
    model: Model | None = None  # once it is built
    flags: list[Callable[[], AbstractContextManager[Any]]] = field(
        default_factory=lambda: [functools.partial(fp32_products, tf32=False)]
    )
    preparations: list[Preparation] = field(default_factory=list)  # called before the first step
    transforms: list[Callable[[Model], None]] = field(default_factory=list)
    compute_wrappers: list[Callable[[Compute], Compute]] = field(default_factory=list)
    step_wrappers: list[Callable[[Step], Step]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._precedence: dict[str, Precedence] = {}  # precedence of the choice, by operator
        # Without a toggle nothing is optimized: every operator that has a kernel runs in PyTorch.
        for name, operator in kernels.OPS.items():
            if {"torch", "triton"} <= operator.implementations.keys():
                self.kernel_choices[name] = "torch"

    @property
    def chunks(self) -> int:
        """The number of chunks of each stage of a pipeline."""
        return chunks_of(self.layout, self.schedule)

    def choose_kernel(
        self,
        operator: str,
        implementation: str,
        precedence: Precedence = Precedence.OPERATOR,
    ) -> None:
        """Let ``operator`` run ``implementation``, unless a stronger choice names another one.

        Of equally strong choices the last one wins.
        """
        if precedence < self._precedence.get(operator, Precedence.DEFAULT):
            return
        self.kernel_choices[operator] = implementation
        self._precedence[operator] = precedence
