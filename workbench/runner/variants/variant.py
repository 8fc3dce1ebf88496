"""An arm: one configuration built and ready to step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

import kernels
from models import Model
from models.execution.checkpointing import kept_operators, reset_kept_operators
from sessions.model import Evidence, Scalar
from workbench.runner.batches import Batches
from workbench.runner.decoding.decoder import Decoder
from workbench.runner.decoding.rounds import Rounds
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.interfaces import Situation, StepRecord
from workbench.runner.model_state.carried_state import Remembered
from workbench.runner.profiling.probe import Probe
from workbench.runner.training.trainer import Parameters, Trainer, Weights
from workbench.runner.variants.attention_facts import attention_facts
from workbench.runner.variants.build import Preparation
from workbench.runner.variants.compiles import Compiles
from workbench.runner.variants.flops import counting_flops
from workbench.runner.variants.observed import Observed
from workbench.runner.variants.weights import Quantized, WeightSets
from workbench.runner.workloads import Compute, Step


@dataclass
class Arm:
    """A configuration that is ready to step. Call ``step`` only inside ``entered()``."""

    situation: Situation
    model: Model
    batches: Batches  # of this rank
    all_batches: Batches  # of all ranks, in the same buffers
    divided: Parallel | None  # where there are several
    trainer: Trainer | None
    step: Step
    compute: Compute  # what the step computes, autocast and compiled, without its update
    autocast: Callable[[Compute], Compute]  # runs a function in the arm's precision
    rounds: Rounds | None  # what begins every so many steps
    text: torch.Tensor | None  # tokens that steps write, as in ``Decoder.written``
    decoder: Decoder | None  # of a workload that decodes
    kernel_choices: dict[str, str]
    weights_dtype: torch.dtype
    quantization: str
    weights: Weights | Quantized  # that the model is around
    sets: WeightSets  # which these are of
    flags: list[Callable[[], AbstractContextManager[Any]]]
    preparations: list[Preparation]
    look: Callable[[Observed], list[Evidence]]  # for the effects of toggles
    probe: Probe
    ledger: dict[str, Scalar]
    record: StepRecord = field(default_factory=StepRecord)
    compiles: Compiles = field(default_factory=Compiles)
    evidence: list[Evidence] | None = None
    made_s: float = 0.0  # seconds from its build to the end of its first step; 0: not made yet
    remembered: Remembered | None = None  # by a person's model; while its numbers are checked

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the process-wide flags of this arm, and leave them as they were."""
        with contextlib.ExitStack() as stack:
            for flag in self.flags:
                stack.enter_context(flag())
            stack.enter_context(kernels.using(**self.kernel_choices))
            stack.enter_context(self.compiles.following())
            if self.trainer is not None and isinstance(self.weights, Weights):
                self.weights.hand_over(self.trainer.optimizer)
                if self.divided is None:
                    self.weights.entries += 1
            if self.divided is not None:
                stack.enter_context(self.divided.entered(self))
            yield

    def ready(self) -> bool:
        """Be ready for the next step; True where that took time that is not the step's."""
        if self.rounds is not None:
            return self.rounds.ready()
        if self.situation.workload.feeds:
            self.batches.advance()
        return False

    @property
    def keeper(self) -> Trainer | None:
        """Its trainer; where ranks have shares, that of the whole, which other arms go on from."""
        return self.trainer if self.divided is None else self.divided.keeper or self.trainer

    def plain_weights(self) -> Parameters:
        """Return full-precision, unsharded parameters; outside of ``entered()`` these are current.

        They are drawn from the seed again if only quantized codes are in memory.
        """
        if self.divided is not None and self.divided.full is not None:
            return self.divided.full
        if isinstance(self.weights, Weights) and self.divided is None:
            return self.weights.parameters  # and not the model's: it might hold others by mistake
        if not self.quantization:
            return self.model.weights()
        return self.sets.for_a_while(self.situation, self.weights_dtype)

    def restart(self) -> None:
        """Begin the round of steps anew; nothing where there are no rounds.

        Before the first step, and after it: a capture takes that one several times.
        """
        if self.rounds is not None:
            self.rounds.restart()

    def steps_to_settle(self) -> int:
        """Return how many steps a model that adapts needs before its choices can stay."""
        return self.situation.workload.steps_to_settle(self.model)

    def prepare(self) -> bool:
        """Run what precedes the first step; False if there is nothing. The arm is entered."""
        for prepare in self.preparations:
            self.ledger |= prepare(self)
        return bool(self.preparations)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record which kernels the first step calls, and what it keeps, for the evidence."""
        kernels.reset_usage()
        kernels.reset_tiles()
        reset_kept_operators()
        record = self.record
        with counting_flops(self.situation, record.facts):
            yield
        record.usage, record.reasons = kernels.usage(), kernels.reasons()
        record.tiles = kernels.tiles()
        record.facts |= attention_facts(record.usage, record.reasons)
        record.kept_operators = kept_operators()

    def observed(self) -> Observed:
        """Return what evidence of toggles reads of this variant, now that it has stepped."""
        return Observed(
            situation=self.situation,
            record=self.record,
            probe=self.probe,
            compiles=self.compiles,
            ledger=self.ledger,
            model=self.model,
            batches=self.batches,
            all_batches=self.all_batches,
            compute=self.compute,
            autocast=self.autocast,
            step=self.step,
            restart=self.restart,
            optimizer=None if self.trainer is None else self.trainer.optimizer,
            divided=self.divided,
            plain_weights=self.plain_weights,
            codes=self.weights if isinstance(self.weights, Quantized) else None,
            weights_dtype=self.weights_dtype,
            kernel_choices=self.kernel_choices,
            flags=tuple(self.flags),
        )

    def find_evidence(self) -> list[Evidence]:
        """Ask every toggle that was switched, or chose, what proves its effect; once."""
        if self.evidence is None:
            with self.entered():
                if self.divided is not None:  # it may compute, for which all must be there whole
                    self.divided.compare(self)
                self.evidence = self.look(self.observed())
        return self.evidence
