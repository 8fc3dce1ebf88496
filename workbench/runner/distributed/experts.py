"""Expert parallelism: tokens go to the ranks that have their experts, and come back.

The number of tokens that a rank receives is read by the host once in each mixture, because the
messages' sizes depend on it. Gradients take the same way back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.parallel.expert_parallel import Exchange, Experts
from workbench.runner.distributed.collectives import EXPERT, all_to_all, is_communicating


class _Moved(torch.autograd.Function):
    """Rows for other ranks, ``sent`` to each of them; the gradients come back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        ctx.received, ctx.sent = received, sent
        return all_to_all(rows, received, sent, EXPERT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return all_to_all(gradient, ctx.sent, ctx.received, EXPERT), None, None


class RankExchange(Exchange):
    """Exchange among ranks. Rank 0 has the first ``n_experts / ranks`` experts, and so on."""

    def __init__(self, ranks: int, n_experts: int) -> None:
        self.ranks, self.n_experts = ranks, n_experts
        # The sizes of messages are numbers on the host: a compiler breaks its graph here.
        self._uncompiled_run = torch.compiler.disable(self._run)

    def run(self, experts: Experts, x_BSD: Tensor, index_BSK: Tensor, weight_BSK: Tensor) -> Tensor:
        """Return the weighted sum of what each token's experts compute, (B, S, D)."""
        return self._uncompiled_run(experts, x_BSD, index_BSK, weight_BSK)

    def _run(
        self, experts: Experts, x_BSD: Tensor, index_BSK: Tensor, weight_BSK: Tensor
    ) -> Tensor:
        experts_per_rank, k = self.n_experts // self.ranks, index_BSK.shape[2]
        if not is_communicating(EXPERT):  # its own experts in place of the others'
            own_A1 = torch.where(index_BSK < 0, -1, index_BSK % experts_per_rank).reshape(-1, 1)
            rows_AD = x_BSD.flatten(0, 1).repeat_interleave(k, 0)
            ones_A1 = torch.ones_like(own_A1, dtype=weight_BSK.dtype)
            return _add_choices(experts(rows_AD, own_A1, ones_A1), x_BSD, weight_BSK)
        # A: choices in the order of their experts; dropped ones are last, and go nowhere.
        index_A = index_BSK.flatten()
        index_A = torch.where(index_A < 0, self.n_experts, index_A)
        order_A = index_A.argsort(stable=True)
        count_E = index_A.new_zeros(self.n_experts + 1).scatter_add(
            0, index_A, torch.ones_like(index_A)
        )[: self.n_experts]
        even = [experts_per_rank] * self.ranks
        theirs_E = all_to_all(count_E, even, even, EXPERT)
        totals = (
            torch.stack((count_E, theirs_E)).unflatten(1, (self.ranks, experts_per_rank)).sum(2)
        )
        sent, received = totals.tolist()
        order_A = order_A[: sum(sent)]
        rows_AD = x_BSD.flatten(0, 1)[order_A // k]
        rows_RD = _Moved.apply(rows_AD, received, sent)
        expert_E = torch.arange(experts_per_rank, device=x_BSD.device).repeat(self.ranks)
        expert_R1 = expert_E.repeat_interleave(theirs_E, output_size=sum(received))[:, None]
        ones_R1 = torch.ones_like(expert_R1, dtype=weight_BSK.dtype)
        computed_AD = _Moved.apply(experts(rows_RD, expert_R1, ones_R1), sent, received)
        choice_AD = computed_AD.new_zeros(index_A.numel(), computed_AD.shape[1])
        return _add_choices(choice_AD.index_copy(0, order_A, computed_AD), x_BSD, weight_BSK)


def _add_choices(choice_AD: Tensor, x_BSD: Tensor, weight_BSK: Tensor) -> Tensor:
    """Return the weighted sum (B, S, D) of the experts' results for each choice of a token."""
    weighted_BSKD = choice_AD.view(*weight_BSK.shape, -1) * weight_BSK[..., None]
    return weighted_BSKD.sum(2).to(x_BSD.dtype)
