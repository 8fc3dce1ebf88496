"""A variant: a built configuration that is ready to step."""

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
from models.layers.mixture import count_reuse
from sessions.model import Evidence, Scalar
from sessions.verdicts.regression import DRAWS
from workbench.runner.batches import Batches
from workbench.runner.decoding.decoder import Decoder
from workbench.runner.decoding.rounds import Rounds
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.instruments.memory import free_bytes
from workbench.runner.interfaces import Situation, StepRecord
from workbench.runner.model_state import rng
from workbench.runner.model_state.carried_state import Remembered
from workbench.runner.model_state.run_state import restored_state
from workbench.runner.profiling.probe import Probe
from workbench.runner.training.trainer import Parameters, Trainer, Weights
from workbench.runner.variants.attention_facts import attention_facts
from workbench.runner.variants.build import Preparation
from workbench.runner.variants.compiles import Compiles
from workbench.runner.variants.flops import counting_flops
from workbench.runner.variants.observed import Observed
from workbench.runner.variants.restored_round import restored_round
from workbench.runner.variants.weights import Quantized, WeightSets
from workbench.runner.workloads import Compute, Step


@dataclass
class Variant:
    """A configuration that is ready to step. Call ``step`` only inside ``entered()``."""

    situation: Situation
    model: Model
    batches: Batches  # batches of this rank
    all_batches: Batches  # batches of all ranks, in the same buffers
    divided: Parallel | None  # this rank's side, if there are several ranks
    trainer: Trainer | None
    step: Step
    compute: Compute  # the computation of a step without its update, autocast and compiled
    autocast: Callable[[Compute], Compute]  # runs a function in the variant's precision
    rounds: Rounds | None  # decode rounds; each one starts again from the prompt
    written_tokens: torch.Tensor | None  # ``Decoder.written``: the tokens that steps write
    decoder: Decoder | None  # set if the workload decodes
    kernel_choices: dict[str, str]
    weights_dtype: torch.dtype
    quantization: str
    weights: Weights | Quantized  # the model's parameters
    weight_sets: WeightSets  # all sets of weights of this process
    flags: list[Callable[[], AbstractContextManager[Any]]]
    preparations: list[Preparation]
    collect_evidence: Callable[[Observed], list[Evidence]]  # collects it from all toggles
    probe: Probe
    ledger: dict[str, Scalar]
    record: StepRecord = field(default_factory=StepRecord)
    compiles: Compiles = field(default_factory=Compiles)
    evidence: list[Evidence] | None = None
    startup_s: float = 0.0  # seconds of build, preparations and first step; 0 before its end
    remembered: Remembered | None = None  # state of a user's model, while its numbers are checked

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Set the process-wide flags of this variant, and reset them on exit."""
        with contextlib.ExitStack() as stack:
            for flag in self.flags:
                stack.enter_context(flag())
            stack.enter_context(kernels.using(**self.kernel_choices))
            stack.enter_context(self.compiles.following())
            if self.trainer is not None and isinstance(self.weights, Weights):
                self.weights.sync_step_counts(self.trainer.optimizer)
                if self.divided is None:
                    self.weights.entries += 1
            if self.divided is not None:
                stack.enter_context(self.divided.entered(self))
            yield

    def ready(self) -> bool:
        """Prepare the next step: a new batch, or a new round if the last one is finished.

        Return True if a round was started; its time does not belong to the step.
        """
        if self.rounds is not None:
            return self.rounds.ready()
        if self.situation.workload.feeds:
            self.batches.advance()
        return False

    @property
    def full_trainer(self) -> Trainer | None:
        """The trainer of the full weights, whose optimizer state other variants share.

        On other ranks than 0 it is the trainer of the rank's own weights; None in inference.
        """
        return self.trainer if self.divided is None else self.divided.full_trainer or self.trainer

    def plain_weights(self) -> Parameters:
        """Return full-precision, unsharded parameters; up to date only outside ``entered()``.

        They are initialised from the seed again if only quantized codes are in memory.
        """
        if self.divided is not None and self.divided.full_parameters is not None:
            return self.divided.full_parameters
        if isinstance(self.weights, Weights) and self.divided is None:
            return self.weights.parameters  # the model may hold other parameters by mistake
        if not self.quantization:
            return self.model.weights()
        return self.weight_sets.plain_parameters(self.situation, self.weights_dtype)

    def restart(self) -> None:
        """Start a new round of steps, if there are rounds.

        Called before and after the first step, since a capture runs that step several times.
        """
        if self.rounds is not None:
            self.rounds.restart()

    def restored_round(self) -> AbstractContextManager[None]:
        """Restore the current round of steps at the end of the context, if there are rounds."""
        if self.decoder is None or self.rounds is None:
            return contextlib.nullcontext()
        return restored_round(self.decoder, self.rounds, free_bytes(self.situation.device))

    def steps_to_settle(self) -> int:
        """Return how many steps a model that adapts needs before its choices can stay."""
        return self.situation.workload.steps_to_settle(self.model)

    def prepare(self) -> bool:
        """Run the preparations of the first step, inside ``entered()``; False if there are none."""
        if not self.preparations:
            return False
        # Ranks may wrap modules in their first call, and must find them wrapped in the next.
        with contextlib.nullcontext() if self.divided is not None else self.restored():
            for prepare in self.preparations:
                self.ledger |= prepare(self)
        return True

    def restored(self) -> AbstractContextManager[object]:
        """Restore what calls beside the steps change in the model and in the generators.

        Steps continue from their own state, and a rank's stays that of other ranks. Bundled models
        with sharded weights adapt together on all ranks, also in such calls.
        """
        is_joint = self.divided is not None and self.divided.fully_shard is not None
        if is_joint and not self.situation.is_own_model:
            return contextlib.nullcontext()
        device = self.situation.device
        return restored_state(self.model, device, free_bytes(device))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record the kernels that the first step calls, and the memory that it reuses or keeps.

        A model that draws random numbers draws the same ones in every process; that it does is a
        fact.
        """
        kernels.reset_usage()
        kernels.reset_tiles()
        reset_kept_operators()
        record, before = self.record, count_reuse(self.model)
        rng.seed_all(self.situation.configuration.seed)
        generators = self._generators()
        with counting_flops(self.situation, record.facts):
            yield
        if self._generators() != generators:
            record.facts[DRAWS] = True
        record.usage, record.reasons = kernels.usage(), kernels.reasons()
        record.tiles = kernels.tiles()
        record.facts |= attention_facts(record.usage, record.reasons)
        record.gradient_count = 0 if self.trainer is None else self.trainer.gradient_count
        record.checkpointed_blocks = self.model.checkpointed_blocks
        record.kept_operators = kept_operators()
        after = count_reuse(self.model)
        record.placed_additions = after.additions - before.additions
        record.workspace_tensors = after.requests - before.requests

    def _generators(self) -> list[str]:
        """Return the states of the generators that the model may use; empty if it draws nothing."""
        return [] if self.model.repeats else rng.states(self.model, self.situation.device)

    def observed(self) -> Observed:
        """Return the part of this variant that evidence reads; it must have stepped."""
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
            restored_round=self.restored_round,
            optimizer=None if self.trainer is None else self.trainer.optimizer,
            divided=self.divided,
            plain_weights=self.plain_weights,
            codes=self.weights if isinstance(self.weights, Quantized) else None,
            weights_dtype=self.weights_dtype,
            kernel_choices=self.kernel_choices,
            flags=tuple(self.flags),
        )

    def find_evidence(self) -> list[Evidence]:
        """Return the evidence of every toggle that is on, or had to choose; collected once."""
        if self.evidence is None:
            with self.entered(), contextlib.ExitStack() as stack:
                if self.divided is not None:  # evidence may compute, which needs all ranks
                    self.divided.compare(self)
                    record = self.record  # later stages of a pipeline have added their calls
                    record.facts |= attention_facts(record.usage, record.reasons)
                stack.enter_context(self.restored())
                self.evidence = self.collect_evidence(self.observed())
        return self.evidence
