"""Mixture of depths: a block that computes some tokens and skips the others.

Raposo et al. 2024 (arXiv 2404.02258), equation 1: r = w x is the score of each token, and f the
change by the block's attention and feed-forward layer, computed from the chosen tokens x~ only, in
their order:

    y = x + r f(x~)  for the chosen tokens,    y = x  for the others.

Training chooses the highest scores of a sequence, which depends on later tokens. A loss trains
sigmoid(r) to be above 1/2 for them; evaluation and decoding decide by that (``routing``).
"""

# Shapes: B batch, S tokens, E model width, C tokens chosen.

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

import kernels
from models.language_model import BlockOutput
from models.layers.routing import RoutedState, Router, Rows, best, choice_loss, everyone, running
from models.layers.token_fraction import ALL_TOKENS, TokenFraction


class MixtureOfDepths(nn.Module):
    """Block that computes the fraction ``capacity`` of the tokens.

    ``block`` has ``change(x_BCE, state, position, rows)``, which returns its tokens' addition.
    """

    unsplit = "mixture of depths chooses among all tokens of a sequence"

    def __init__(
        self, block: nn.Module, dim: int, capacity: TokenFraction, loss_weight: float
    ) -> None:
        super().__init__()
        self.block = block
        self.router = Router(dim, 1)
        self.capacity, self.loss_weight = capacity, loss_weight
        self.measures = {"depth_share": 1, "depth_router": 1}

    def new_state(
        self,
        batch: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype,
        share: TokenFraction = ALL_TOKENS,
    ) -> RoutedState:
        """Return the block's state for the tokens that may be chosen of ``length`` positions.

        ``share`` is the fraction of the positions that reaches this block.
        """
        filled_B = torch.zeros(batch, device=device, dtype=torch.int64)
        share = share.times(self.capacity)
        block = cast("Any", self.block)
        return RoutedState(filled_B, [block.new_state(batch, length, device, dtype, share)])

    def forward(
        self,
        x_BSE: Tensor,
        state: RoutedState | None = None,
        position: Tensor | None = None,
        rows: Rows | None = None,
    ) -> BlockOutput:
        """Compute (B, S, E) -> (B, S, E); ``rows`` describes the tokens if they were chosen."""
        rows = everyone(x_BSE, position) if rows is None else rows
        share = rows.share.times(self.capacity)
        score_BS = self.router(x_BSE)[..., 0]
        learns = self.training and state is None
        if learns:
            chosen = best(x_BSE, score_BS, share, rows)
        else:
            chosen = running(x_BSE, score_BS, share, rows, state)
        inner = None if state is None else state.inner[0]
        update_BCE = cast("Any", self.block).change(chosen.x, inner, position, chosen.rows)
        weight_BC = chosen.rows.weights(chosen.score)
        y_BSE = kernels.token_scatter(x_BSE, update_BCE, weight_BC, chosen.order)
        loss = self.loss_weight * choice_loss(score_BS, chosen.taken, rows) if learns else None
        router = rows.mean(score_BS.detach().sigmoid()).float()
        measured = {"depth_share": chosen.rows.share_taken()[None], "depth_router": router[None]}
        return BlockOutput(y_BSE, loss, measured)
