"""An arm whose step is divided among ranks: what is done around it, alike on each of them."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from workbench.runner.ranks import group as groups
from workbench.runner.ranks.buckets import Buckets
from workbench.runner.ranks.messages import Build, Compare, Enter, Leave, Step
from workbench.runner.ranks.region import let_go
from workbench.runner.ranks.shards import Shards
from workbench.runner.toggles.compile import repeated_blocks
from workbench.runner.variants.training import Weights

if TYPE_CHECKING:
    from models import Model
    from sessions.model import Configuration
    from workbench.runner.config.data import Batches
    from workbench.runner.variants.training import Trainer
    from workbench.runner.variants.variant import Arm
    from workbench.runner.variants.weights import Parameters
    from workbench.runner.workloads import Compute
    from workbench.runner.workloads import Step as ArmStep

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}  # by bytes of a number


class Divided:
    """The share of one rank, and how it goes together with the others'.

    ``differing`` is how many parameters were not the same on all ranks after the steps that were
    compared; None before any were. ``prepared``: a peer has done what comes before a first step.
    ``peaks``: highest bytes that each rank allocated, but for what ``others_bytes`` says that it
    holds for other arms, as told when they were compared; on the CPU resident bytes.
    ``stage`` is one of ``shards.STAGES`` where ranks keep shares of more than the batch.
    """

    def __init__(self, ranks: int, device: torch.device, stage: str = "") -> None:
        self.ranks, self._device, self._stage = ranks, device, stage
        self.rank = groups.rank()
        self.buckets: Buckets | Shards | None = None
        self.differing: int | None = None
        self.prepared = False
        self.parts = ranks  # of a batch
        # Of layers that are divided, what all other arms go on from; on rank 0.
        self.whole: Parameters | None = None
        self.keeper: Trainer | None = None
        self.peaks: list[int] = []
        self.others_bytes: Callable[[Arm], int] = lambda arm: 0
        self._steps = 0  # since the weights were taken over
        self._peak_bytes = 0  # of this rank, in steps
        self._group: groups.Group | None = None  # of rank 0, while the arm is entered
        self._depth = 0

    def gather(self, configuration: Configuration) -> None:
        """Have all ranks, and on each of them this configuration's arm."""
        if not self.rank:
            groups.of(self.ranks, self._device).ask(Build(configuration))

    def share(self, whole: Batches) -> Batches:
        """This rank's rows of each batch."""
        return whole.part(self.rank, self.ranks)

    def part(self, compute: Compute, model: Model) -> Compute:
        """What a rank computes of a workload, whose own is ``compute``."""
        return compute

    def outputs(self, arm: Arm) -> Any:
        """What the model gives for the current batch, on rank 0; within ``evaluating``."""
        return arm.autocast(arm.model)(*arm.batches.inputs)

    def loss(self, arm: Arm) -> Tensor:
        """The loss of the current batch, as the steps compute it; within ``evaluating``."""
        return arm.compute(*arm.batches.inputs, *arm.batches.targets)

    def mean(self, compute: Compute) -> Compute:
        """The loss of the share, as its part of the mean over all ranks."""

        def part(*batch: Tensor) -> Tensor:
            with contextlib.nullcontext() if self.shards is None else self.shards.computing():
                return compute(*batch) / self.ranks

        return part

    @property
    def shards(self) -> Shards | None:
        """What this rank keeps, where that is not all."""
        return self.buckets if isinstance(self.buckets, Shards) else None

    def follow(self, trainer: Trainer, model: Model) -> None:
        """Let its backward pass average the gradients of the model."""
        whole = trainer.optimizer
        if self._stage:
            blocks = repeated_blocks(model) if self._stage == "full" else ()
            shards = Shards(whole, blocks, self._stage, self.rank, self.ranks)
            trainer.buckets, trainer.agree = shards, lambda scaler, optimizer: shards.agree()
        else:
            parameters = (each for one in whole.param_groups for each in one["params"])
            trainer.buckets = Buckets(parameters)
        self.buckets = trainer.buckets

    def together(self, step: ArmStep, batches: Batches) -> ArmStep:
        """The step of all ranks, which returns the mean of their losses."""

        def one() -> Tensor:
            if self._group is not None:
                self._group.tell(Step(batches.advances))
            try:
                self.spread()
                loss = step()
                with let_go(loss):
                    dist.all_reduce(loss)
            except BaseException as error:
                if self.shards is not None:  # the whole takes the place of what the step has held
                    traceback.clear_frames(error.__traceback__)
                self._give_up()
                raise
            self._steps += 1
            return loss

        return one

    @contextlib.contextmanager
    def entered(self, arm: Arm) -> Iterator[None]:
        """Have all ranks ready for steps, with rank 0's weights and moments; compare them after."""
        if self._depth:
            yield
            return
        assert self.buckets is not None
        group = None if self.rank else self._assembled(arm)
        with self._together(group):
            _take_over(arm, self._device)
        self._forget_peak()
        self.buckets.attach()
        self._group, self._depth, self._steps = group, 1, 0
        if self.shards is not None:
            self.shards.stays = arm.sets.are_captured(arm.situation, arm.weights_dtype)
            assert arm.trainer is not None and isinstance(arm.weights, Weights)
            arm.weights.away = self.shards.homes
        try:
            yield
        finally:
            try:
                self._leave(arm, group)
            finally:
                self.buckets.detach()
                if self.shards is not None:
                    self.shards.restore()  # what no rank could give back

    def _leave(self, arm: Arm, group: groups.Group | None) -> None:
        """Compare what the ranks have and let them leave, which the arm does whatever fails."""
        try:
            if group is not None and group.alive:
                self.compare(arm)
                group.tell(Leave())
        finally:
            self._depth, self._group = 0, None

    def spread(self) -> None:
        """Hold what a rank does during steps, before the first of them; when entered."""
        if self.shards is not None:
            self.shards.take()

    def evaluating(self, what: str, arm: Arm) -> AbstractContextManager[None]:
        """What rank 0 evaluates beside the steps, it does alone."""
        return contextlib.nullcontext()

    def compare(self, arm: Arm) -> None:
        """Count the parameters that differ between the ranks, if steps were made; when entered.

        All ranks have the whole weights then, and rank 0 the whole moments.
        """
        if not self._steps:
            return
        with self._together(self._group):
            if self._group is not None:
                self._group.tell(Compare())
            if self.shards is None or self.shards.spread:  # what it takes to collect is no step's
                self._see_peak(arm)
            if self.shards is not None:
                self.shards.collect()
            sums = torch.stack([digest(each) for each in arm.model.parameters()]).to(self._device)
            self._count_differing(sums, sums)

    @staticmethod
    def _together(group: groups.Group | None) -> AbstractContextManager[None]:
        """As the group's, which rank 0 alone has."""
        return contextlib.nullcontext() if group is None else group.together()

    def _forget_peak(self) -> None:
        """What a peer has built is no step's; rank 0's peaks are told phase by phase."""
        if self.rank and self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def _see_peak(self, arm: Arm) -> None:
        """Take what the steps so far needed at most, before more is needed to compare."""
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
            self._peak_bytes = peak - self.others_bytes(arm)
        else:
            self._peak_bytes = int(psutil.Process().memory_info().rss)

    def _count_differing(self, least: Tensor, most: Tensor) -> None:
        """Count the sums that differ between ranks, and tell all of each one's peak.

        ``least`` and ``most`` are those here: the same, where a rank has each parameter once.
        """
        least, most = least.clone(), most.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        self.differing = max(int((least != most).sum()), self.differing or 0)
        peaks = torch.zeros(self.ranks, dtype=torch.int64, device=self._device)
        peaks[self.rank] = self._peak_bytes
        dist.all_reduce(peaks)
        self.peaks = peaks.tolist()

    def _assembled(self, arm: Arm) -> groups.Group:
        self.gather(arm.configuration)  # they may have ended, or have built another since
        group = groups.of(self.ranks, self._device)
        scaler = None if arm.trainer is None else arm.trainer.scaler
        group.tell(Enter({} if scaler is None else scaler.state_dict()))
        return group

    def _give_up(self) -> None:
        """Some ranks are within the step and cannot leave it: all of them start anew."""
        if (group := self._group) is not None:
            group.give_up()  # what failed here, may have failed for what had happened there


def digest(tensor: Tensor) -> Tensor:
    """A sum of the bits of all numbers, which differs where a number does."""
    return tensor.detach().contiguous().view(_WORDS[tensor.element_size()]).sum(dtype=torch.int64)


def _take_over(arm: Arm, device: torch.device) -> None:
    """Give every rank the weights, buffers and moments of rank 0."""
    assert arm.trainer is not None
    state = arm.trainer.optimizer.state
    tensors = [*arm.model.parameters(), *arm.model.buffers()]
    for group in arm.trainer.optimizer.param_groups:
        for parameter in group["params"]:
            tensors += [state[parameter][name] for name in sorted(state[parameter])]
    with torch.no_grad():
        for tensor in tensors:
            sent = tensor.detach().to(device).contiguous()
            dist.broadcast(sent, src=0)
            if sent.data_ptr() != tensor.data_ptr():
                tensor.copy_(sent)
