"""Tensor parallelism: an arm whose layers are divided among ranks that all see the whole batch.

``models.parallel.tensor_parallel_plan`` defines which parameters are sharded, ``region`` where
ranks communicate, and ``shares`` how shards come from rank 0's weights and go back to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from models.parallel.tensor_parallel_plan import divisible
from workbench.runner.ranks.divided import digest
from workbench.runner.ranks.layers import LayersDivided
from workbench.runner.ranks.region import send_all, sum_over_ranks

if TYPE_CHECKING:
    from workbench.runner.ranks.shares import Shares
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.variant import Arm


class TensorDivided(LayersDivided):
    """As ``LayersDivided``; ``differing`` counts parameters that every rank has whole."""

    def __init__(self, build: Build, shares: Shares) -> None:
        super().__init__(build, shares)
        self.shares = shares
        self._along_sequence = build.along_sequence
        # Compilers choose kernels in each process, and the backward passes of layers that stay
        # whole may add in any order: what all ranks compute alike would part by roundings.
        situation = build.situation
        replicated = divisible(situation.family, situation.config).replicated
        self._may_part = situation.option("compile") != "off" or bool(replicated)

    def _compare(self, arm: Arm) -> None:
        """Count what differs between the ranks of the parameters that each has."""
        kept = [digest(each) for each in self.shares.common()]
        sums = torch.stack(kept).to(self._device)
        self._count_differing(sums, sums)

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
