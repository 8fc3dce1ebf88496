"""An arm whose weights are divided among ranks, and not its batch: what its steps go by.

Every rank has the whole batch, and a part of the weights in tensors of its own, taken from rank 0's
where the arm is entered and given back where it is left: other arms go on from the whole. If a rank
ends in between, the whole stays as it was when the arm was entered.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from workbench.runner.ranks.divided import Divided
from workbench.runner.ranks.messages import Compare, Evaluate, Order, Step
from workbench.runner.ranks.region import Traffic, meeting

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.config.data import Batches
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.training import Trainer, Weights
    from workbench.runner.variants.variant import Arm
    from workbench.runner.workloads import Compute
    from workbench.runner.workloads import Step as ArmStep


class Held(ABC):
    """What one rank has of a model's weights; ``whole`` is rank 0's, None on every other."""

    ranks: int
    own: Weights
    whole: Weights | None

    @abstractmethod
    def model(self, build: Build) -> Model:
        """A model around ``own``."""

    @abstractmethod
    def take(self, own: Optimizer | None, whole: Optimizer | None) -> None:
        """Give every rank its part, and that of the moments; all ranks at a time.

        ``own`` and ``whole`` are the optimizers of both, where there are.
        """

    @abstractmethod
    def give_back(self, own: Optimizer | None, whole: Optimizer | None) -> None:
        """Put every rank's part, and that of the moments, back into the whole; as ``take``."""


class LayersDivided(Divided):
    """As ``Divided``, of weights and not of batches. ``traffic`` is the last step's."""

    def __init__(self, build: Build, held: Held) -> None:
        super().__init__(held.ranks, build.situation.device)
        self._held, self.parts = held, 1
        self.traffic = Traffic()
        if (whole := held.whole) is not None:
            self.whole = whole.parameters
            if build.situation.workload.trains:
                self.keeper = whole.trainer(build.optimizer, scales_loss=build.scales_loss)
        self._trainer: Trainer | None = None

    def share(self, whole: Batches) -> Batches:
        """The whole batch, as every rank has it."""
        return whole

    def mean(self, compute: Compute) -> Compute:
        """The loss, which all ranks have."""
        return compute

    def follow(self, trainer: Trainer, model: Model) -> None:
        """Let it skip the updates that any rank has to skip; rank 0's scale is the whole's."""
        self._trainer = trainer
        if self.keeper is not None:
            trainer.scaler = self.keeper.scaler
        trainer.agree = agree
        trainer.after_backward = self._finish_gradients

    def together(self, step: ArmStep, batches: Batches) -> ArmStep:
        """The step of all ranks."""

        def one() -> torch.Tensor:
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
        """Have all ranks ready for steps, with parts of rank 0's weights; give them back after."""
        if self._depth:
            yield
            return
        group = None if self.rank else self._assembled(arm)
        if self.keeper is not None and self._held.whole is not None:
            self._held.whole.hand_over(self.keeper.optimizer)
        with self._together(group):
            self._held.take(*self._optimizers)
            self._take_buffers(arm)
        self._forget_peak()
        self._group, self._depth, self._steps = group, 1, 0
        try:
            yield
        finally:
            self._leave(arm, group)
            if self._trainer is not None and self._steps and (group is None or group.alive):
                with self._together(group):
                    self._held.give_back(*self._optimizers)

    def compare(self, arm: Arm) -> None:
        """Compare what the ranks have, if there were steps; when entered."""
        if not self._steps:
            return
        with self._together(self._group):
            if self._group is not None:
                self._group.tell(Compare())
            self._see_peak(arm)
            self._compare(arm)

    @property
    def _optimizers(self) -> tuple[Optimizer | None, Optimizer | None]:
        """Of what this rank has, and of the whole."""
        own = None if self._trainer is None else self._trainer.optimizer
        return own, None if self.keeper is None else self.keeper.optimizer

    @abstractmethod
    def _compare(self, arm: Arm) -> None:
        """The same, on every rank at a time."""

    @abstractmethod
    def _finish_gradients(self) -> None:
        """What comes between the backward pass and the update, on every rank at a time."""

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


def agree(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
    """Infinities that one rank's part of the gradients has are all ranks'."""
    scaler.unscale_(optimizer)
    for found in scaler._found_inf_per_device(optimizer).values():
        dist.all_reduce(found, dist.ReduceOp.MAX)
