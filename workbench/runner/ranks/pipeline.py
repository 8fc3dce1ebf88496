"""Pipeline parallelism: an arm whose blocks are stages on several ranks, one after another.

``models.parallel.pipeline_stages`` defines a stage, ``schedule`` the order of its turns, and
``stages`` how stages come from rank 0's weights and go back to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

import kernels
from models import LanguageModel
from models.parallel.pipeline_stages import StageOutput
from workbench.runner.ranks.group import launching
from workbench.runner.ranks.layers import LayersDivided
from workbench.runner.ranks.measures import Measures
from workbench.runner.ranks.region import all_gather_bytes, sum_over_ranks, told
from workbench.runner.ranks.schedule import Link, Schedule, Turns

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.config.data import Batches
    from workbench.runner.ranks.stages import Stages
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.training import Trainer
    from workbench.runner.variants.variant import Arm
    from workbench.runner.workloads import Compute
    from workbench.runner.workloads import Step as ArmStep

SEND, RECEIVE = "send", "receive"


Usage = tuple[dict[str, dict[str, int]], dict[str, tuple[str, str]]]  # as of ``kernels``


class Turn(NamedTuple):
    """What one rank did in its last step."""

    blocks: int  # that the last micro-batch went through
    forwards: int
    backwards: int
    held: int  # micro-batches at most between their turns
    sends: int
    receives: int
    bytes: int  # sent and received


class Neighbours(Link):
    """The process group's ranks before and after this one; what passes between them is one stream
    after another, of one shape and dtype.

    ``batch_isend_irecv`` has NCCL take what goes both ways at a time, so that neighbours cannot
    wait for each other, whichever of them sends first.
    """

    def __init__(
        self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._rank, self._shape, self._dtype, self._device = rank, shape, dtype, device

    def swap(self, sends: dict[int, Tensor], receives: list[int]) -> dict[int, Tensor]:
        """As ``Link``; raises ``RuntimeError`` for a tensor that the neighbour does not expect."""
        for sent in sends.values():
            if sent.shape != self._shape or sent.dtype != self._dtype:
                raise RuntimeError(
                    f"a stage gives {tuple(sent.shape)} of {sent.dtype}, and its neighbour expects "
                    f"{self._shape} of {self._dtype}"
                )
        found = {
            each: torch.empty(self._shape, dtype=self._dtype, device=self._device)
            for each in receives
        }
        exchange(
            [(sent.contiguous(), self._rank + to) for to, sent in sends.items()],
            [(place, self._rank + each) for each, place in found.items()],
        )
        return found


def exchange(sends: list[tuple[Tensor, int]], receives: list[tuple[Tensor, int]]) -> None:
    """Each tensor to the rank beside it, or from there into its place; all at a time."""
    operations = [dist.P2POp(dist.isend, one, peer) for one, peer in sends]
    operations += [dist.P2POp(dist.irecv, one, peer) for one, peer in receives]
    if not operations:
        return
    with launching():
        works = dist.batch_isend_irecv(operations)
    for work in works:
        work.wait()
    for kind, moved in ((SEND, sends), (RECEIVE, receives)):
        for one, _ in moved:
            told(kind, one)


class PipelineDivided(LayersDivided):
    """As ``LayersDivided``, of blocks.

    ``differing`` counts parameters of which rank 0 has not to the last bit what the stages gave
    back; ``turns`` are what each rank did in the last step before that was compared.
    """

    def __init__(self, build: Build, stages: Stages, model: Model) -> None:
        super().__init__(build, stages)
        assert isinstance(model, LanguageModel)
        self.stages, self._model = stages, model
        self.micro_batches = build.micro_batches
        settings = build.situation.configuration.settings
        rows = int(settings["batch"]) // self.micro_batches
        shape = (rows, int(settings["sequence"]), model.dim)
        self._link = Neighbours(self.rank, shape, build.weights_dtype, self._device)
        self._logits_dtype = build.autocast or build.weights_dtype
        self.turns: list[Turn] = []
        self._measures = Measures(model, self.micro_batches)
        self._done = Turns()  # in the last step
        self._usage: Usage | None = None  # of a peer's first step
        self._knows_usage = False

    def part(self, compute: Compute, model: Model) -> Compute:
        """A stage's part of the loss, and of the stream."""
        assert isinstance(model, LanguageModel)

        def stage(x: Tensor, targets: Tensor) -> StageOutput:
            return model.stage_loss(x, targets)

        return cast("Compute", stage)

    def mean(self, compute: Compute) -> Compute:
        """All turns of a step, which make the gradients too; the loss of all ranks."""

        def loss(*batch: Tensor) -> Tensor:
            assert self._trainer is not None
            scaler = self._trainer.scaler
            scale = scaler.scale if scaler is not None else _as_it_is
            with self._measures.over_ranks() as passed:
                schedule = self._scheduled(compute, passed)
                total = schedule.train(*self._micro(batch), scale=scale)
            self._done = schedule.turns
            return sum_over_ranks(total)

        return loss

    def follow(self, trainer: Trainer, model: Model) -> None:
        """Its gradients are made when the loss is there."""
        super().follow(trainer, model)
        trainer.backward = _done

    def together(self, step: ArmStep, batches: Batches) -> ArmStep:
        """The step of all ranks; a peer's first one is watched, as rank 0's is."""
        together = super().together(step, batches)

        def one() -> Tensor:
            if not self.rank or self._usage is not None:
                return together()
            kernels.reset_usage()
            found = together()
            self._usage = kernels.usage(), kernels.reasons()
            return found

        return one

    def outputs(self, arm: Arm) -> Any:
        """The logits, which come from the last rank."""
        model = arm.autocast(arm.model)
        found: list[Tensor] = []
        schedule = self._scheduled(lambda x, targets: StageOutput(model(x), None))
        last = self.stages.stage.last
        schedule.forward(
            *self._micro(arm.batches.inputs + arm.batches.targets),
            keep=lambda one: found.append(cast("Tensor", one.x)) if last else None,
        )
        if last:
            exchange([(torch.cat(found), 0)], [])
        elif not self.rank:
            inputs = arm.batches.inputs[0]
            shape = (*inputs.shape, self._model.embedding.weight.shape[0])
            arrives = torch.empty(shape, dtype=self._logits_dtype, device=self._device)
            exchange([], [(arrives, self.ranks - 1)])
            return arrives
        return None

    def loss(self, arm: Arm) -> Tensor:
        """As its steps compute it, without their gradients."""
        parts: list[Tensor] = [torch.zeros((), device=self._device)]

        def keep(one: StageOutput) -> None:
            if one.loss is not None:
                parts.append(one.loss.detach() / self.micro_batches)

        schedule = self._scheduled(arm.compute)
        schedule.forward(*self._micro(arm.batches.inputs + arm.batches.targets), keep=keep)
        return sum_over_ranks(torch.stack([each.float() for each in parts]).sum())

    def _scheduled(self, compute: Any, passed: Callable[[], None] = lambda: None) -> Schedule:
        self._model.applied_blocks = 0
        return Schedule(self.stages.stage, self.rank, self.ranks, self._link, compute, passed)

    def _micro(self, batch: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens and targets of each micro-batch."""
        tokens, targets = batch
        return list(tokens.chunk(self.micro_batches)), list(targets.chunk(self.micro_batches))

    def _compare(self, arm: Arm) -> None:
        """Give the stages' weights back to rank 0, and look whether it has them; what each rank
        did, and which kernels its first step called.
        """
        self.stages.give_back(*self._optimizers)
        self._steps = 0
        self._count_differing(*self.stages.digests())
        turns = torch.zeros(self.ranks, len(Turn._fields), dtype=torch.int64)
        turns[self.rank] = torch.tensor(self._turn())
        turns = turns.to(self._device)
        dist.all_reduce(turns)
        self.turns = [Turn(*row) for row in turns.tolist()]
        self._tell_usage(arm)

    def _turn(self) -> Turn:
        done, calls = self._done, self.traffic.calls
        turns = (self._model.applied_blocks, done.forwards, done.backwards, done.held)
        return Turn(*turns, calls[SEND], calls[RECEIVE], self.traffic.bytes)

    def _tell_usage(self, arm: Arm) -> None:
        """Rank 0's arm knows of the kernels that the other stages called: the loss, say."""
        payloads = all_gather_bytes(msgspec.json.encode(self._usage), self._device)
        if self.rank or self._knows_usage:  # peers may know this arm longer than rank 0
            return
        self._knows_usage = True
        for payload in payloads:
            decoded = msgspec.json.decode(payload, type=Usage | None)
            if decoded is None:
                continue
            usage, reasons = decoded
            for operator, by in usage.items():
                here = arm.usage.setdefault(operator, {})
                for name, calls in by.items():
                    here[name] = here.get(name, 0) + calls
            arm.reasons = reasons | arm.reasons

    @torch.no_grad()
    def _finish_gradients(self) -> None:
        """An embedding that is the head too has gradients on both ends: their sum."""
        for parameter in self.stages.on_both_ends():
            other = self.ranks - 1 if not self.rank else 0
            assert parameter.grad is not None
            theirs = torch.empty_like(parameter.grad)
            exchange([(parameter.grad, other)], [(theirs, other)])
            parameter.grad += theirs  # the same to the last bit, whichever comes first

    def _take_buffers(self, arm: Arm) -> None:
        """What there is are constants and metrics: no model that adapts has stages."""


def _done(loss: Tensor) -> None:
    """No backward pass of a loss: the turns have made all gradients."""


def _as_it_is(loss: Tensor) -> Tensor:
    return loss
