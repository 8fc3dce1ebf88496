"""Tensor parallelism: an arm whose layers are divided among ranks that all see the whole batch.

What the layers cut is told in ``models._division``, where ranks meet in ``region``, and how shares
come from rank 0's weights and go back to them in ``shares``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from models._division import divisible
from workbench.runner.ranks.divided import Divided, digest
from workbench.runner.ranks.messages import Compare, Evaluate, Leave, Order, Step
from workbench.runner.ranks.region import Traffic, meeting, send_all, sum_over_ranks

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.arm import Arm, Build
    from workbench.runner.data import Batches
    from workbench.runner.ranks.shares import Shares
    from workbench.runner.training import Trainer
    from workbench.runner.workloads import Compute
    from workbench.runner.workloads import Step as ArmStep


class TensorDivided(Divided):
    """As ``Divided``, of layers and not of batches.

    ``differing`` counts parameters that every rank has whole. ``traffic`` is the last step's.
    """

    def __init__(self, build: Build, shares: Shares) -> None:
        super().__init__(build.tensor_ranks, build.situation.device)
        self.shares, self.parts = shares, 1
        self._along_sequence = build.along_sequence
        # Compilers choose kernels in each process, and the backward passes of layers that stay
        # whole may add in any order: what all ranks compute alike would part by roundings.
        situation = build.situation
        whole_layers = divisible(situation.family, situation.config).whole
        self._may_part = situation.option("compile") != "off" or bool(whole_layers)
        self.traffic = Traffic()
        if (whole := shares.whole) is not None:
            self.whole = whole.parameters
            if build.situation.workload.trains:
                self.keeper = whole.trainer(build.optimizer, scales_loss=build.scales_loss)
        self._trainer: Trainer | None = None

    def share(self, whole: Batches) -> Batches:
        """The whole batch, as every rank sees it."""
        return whole

    def mean(self, compute: Compute) -> Compute:
        """The loss, which all ranks have."""
        return compute

    def follow(self, trainer: Trainer, model: Model) -> None:
        """Let it skip the updates that any rank has to skip; rank 0's scale is the whole's."""
        self._trainer = trainer
        if self.keeper is not None:
            trainer.scaler = self.keeper.scaler
        trainer.agree = _agree
        trainer.after_backward = self._finish_gradients

    def together(self, step: ArmStep, batches: Batches) -> ArmStep:
        """The step of all ranks."""

        def one() -> Tensor:
            with self._all(Step(batches.advances)) as traffic:
                found = step()
            self._steps += 1
            self.traffic = traffic
            return found

        return one

    @contextlib.contextmanager
    def evaluating(self, what: str, arm: Arm) -> Iterator[None]:
        """Have all ranks evaluate ``what`` with rank 0, from its buffers; when entered."""
        with self._all(Evaluate(what, arm.batches.advances)):
            self._take_buffers(arm)
            yield

    @contextlib.contextmanager
    def entered(self, arm: Arm) -> Iterator[None]:
        """Have all ranks ready for steps, with shares of rank 0's weights; give them back after."""
        if self._depth:
            yield
            return
        group = None if self.rank else self._assembled(arm)
        own = None if self._trainer is None else self._trainer.optimizer
        whole = None if self.keeper is None else self.keeper.optimizer
        with contextlib.nullcontext() if group is None else group.together():
            self.shares.take(own, whole)
            self._take_buffers(arm)
        self._forget_peak()
        self._group, self._depth, self._steps = group, 1, 0
        try:
            yield
        finally:
            if group is not None and group.alive:
                with group.together():
                    self.compare(arm)
                group.tell(Leave())
            self._depth, self._group = 0, None
            if own is not None and self._steps and (group is None or group.alive):
                self.shares.give_back(own, whole)

    def compare(self, arm: Arm) -> None:
        """Count what differs between the ranks of the parameters that each has, if there were
        steps; when entered.
        """
        if not self._steps:
            return
        if self._group is not None:
            self._group.tell(Compare())
        self._see_peak()
        kept = [digest(each) for each in self.shares.common()]
        sums = torch.stack(kept).to(self._device)
        self._count_differing(sums)

    @torch.no_grad()
    def _finish_gradients(self) -> None:
        """Of what every rank has: all tokens', and alike to the last bit."""
        if self._along_sequence:
            self._sum_between()
        if self._may_part:
            send_all(self.shares.common(gradients=True))

    def _sum_between(self) -> None:
        """The gradients that each rank has of its own tokens become those of all."""
        gradients = [each.grad for each in self.shares.between() if each.grad is not None]
        total = sum_over_ranks(torch.cat([each.flatten() for each in gradients]))
        parts = total.split([each.numel() for each in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    @contextlib.contextmanager
    def _all(self, order: Order) -> Iterator[Traffic]:
        """What all ranks do at a time, and where they meet."""
        if self._group is not None:
            self._group.tell(order)
        try:
            with meeting() as traffic:
                yield traffic
        except BaseException:
            self._give_up()
            raise

    def _take_buffers(self, arm: Arm) -> None:
        """What a model that adapts goes by is rank 0's."""
        for buffer in arm.model.buffers():
            sent = buffer.detach().contiguous()
            dist.broadcast(sent, src=0)
            if sent.data_ptr() != buffer.data_ptr():
                buffer.copy_(sent)


def _agree(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Infinities that one rank's share of the gradients has are all ranks'."""
    scaler.unscale_(optimizer)
    for found in scaler._found_inf_per_device(optimizer).values():
        dist.all_reduce(found, dist.ReduceOp.MAX)
