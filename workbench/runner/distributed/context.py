"""Context parallelism: this rank's tokens of every sequence, and what they need of other ranks'."""

from __future__ import annotations

import torch
from torch import Tensor

from models.parallel.context_parallel import Context, combined_states
from workbench.runner.distributed.collectives import (
    CONTEXT,
    all_tokens,
    gather_tokens,
    total_over_ranks,
)


class SplitContext(Context):
    """A contiguous part of every sequence; ranks communicate along the axis ``context``."""

    def __init__(self, ranks: int, rank: int) -> None:
        self.ranks, self.rank = ranks, rank

    def split(self, x: Tensor) -> Tensor:
        """Return this rank's part of the second axis."""
        return x.chunk(self.ranks, 1)[self.rank]

    def join(self, x_BSE: Tensor) -> Tensor:
        """Return the tokens of all ranks; they have no gradient."""
        return gather_tokens(x_BSE.detach(), self.ranks, CONTEXT)

    def seen(self, k_BGSD: Tensor, v_BGSD: Tensor) -> tuple[Tensor, Tensor]:
        """Gather keys and values in one message, and drop later ranks' tokens."""
        n_groups = k_BGSD.shape[1]
        kv_BSC = torch.cat((k_BGSD, v_BGSD), 1).transpose(1, 2).flatten(2)
        kv_BTC = all_tokens(kv_BSC, self.ranks, CONTEXT)
        kv_BTC = kv_BTC[:, : (self.rank + 1) * k_BGSD.shape[2]]
        k_BGTD, v_BGTD = kv_BTC.unflatten(2, (2 * n_groups, -1)).transpose(1, 2).chunk(2, 1)
        return k_BGTD, v_BGTD

    def before(self, x_BSC: Tensor, n_rows: int) -> Tensor:
        """Return the last rows of the previous rank, zeros on the first."""
        tails_BTC = all_tokens(x_BSC[:, -n_rows:], self.ranks, CONTEXT)
        # The first rank computes the same with weights of zero: its gradient goes to all ranks.
        first = max(self.rank - 1, 0) * n_rows
        return tails_BTC[:, first : first + n_rows] * self._ranks_before(x_BSC)[0]

    def state_before(self, state_BHX: Tensor, fall_BH: Tensor) -> Tensor:
        """Combine the states of all ranks, which travel with their decays in one message."""
        size = state_BHX.shape[2]
        packed_B1C = torch.cat((state_BHX, fall_BH[..., None]), 2).flatten(1)[:, None]
        packed_BWC = all_tokens(packed_B1C, self.ranks, CONTEXT)
        states_BWHX, falls_BWH1 = packed_BWC.unflatten(2, (-1, size + 1)).split((size, 1), 3)
        before_W = self._ranks_before(state_BHX)
        return combined_states(states_BWHX, falls_BWH1[..., 0], self.rank, before_W)

    def _ranks_before(self, like: Tensor) -> Tensor:
        return torch.ops.workbench.ranks_before(like.detach(), self.ranks, self.rank)  # type: ignore[no-any-return]

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of the ranks' ``x``, and of their gradients."""
        return total_over_ranks(x, CONTEXT) / self.ranks
