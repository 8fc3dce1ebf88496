"""The part of a variant that evidence reads: the interface between variants and toggles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from models import Model
from sessions.model import Scalar
from workbench.runner.batches import Batches
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.interfaces import Situation, StepRecord
from workbench.runner.profiling.probe import Probe
from workbench.runner.roofline.counter import Tally
from workbench.runner.variants.compiles import Compiles
from workbench.runner.variants.weights import Quantized
from workbench.runner.workloads import Compute, Step


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A variant that has stepped, as evidence reads it while the variant is entered.

    The facts come first, then the objects that evidence may call again. It must not change them.
    """

    situation: Situation
    record: StepRecord  # facts of the first step
    probe: Probe  # findings of a small call before the first step
    compiles: Compiles  # compiles until now
    ledger: Mapping[str, Scalar]  # sizes, and times of building
    kernel_choices: Mapping[str, str]  # the requested implementation by operator
    weights_dtype: torch.dtype
    model: Model
    batches: Batches  # batches of this rank
    all_batches: Batches  # batches of all ranks
    compute: Compute  # the computation of a step, without its update
    autocast: Callable[[Compute], Compute]  # runs a function in the precision of the steps
    step: Step
    restart: Callable[[], None]  # starts a new round of steps, if there are rounds
    restored_round: Callable[[], AbstractContextManager[None]]  # restores the current one
    optimizer: torch.optim.Optimizer | None  # None if the workload does not train
    divided: Parallel | None  # this rank's side, if there are several ranks
    plain_weights: Callable[[], Mapping[str, torch.nn.Parameter]]  # full precision, all ranks
    codes: Quantized | None  # quantized weights of linear layers
    flags: tuple[Callable[[], AbstractContextManager[Any]], ...]  # in the order of toggles
    step_tallies: list[Tally] = field(default_factory=list)  # a step's work, counted once for all
