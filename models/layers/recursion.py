"""Mixture of recursions: one stack of layers, applied to each token as often as it needs.

Bae et al. 2025 (arXiv 2507.10524), section 2.2; H^1 are the input tokens, f the complete stack with
its residual connections, r = 1 to N the recursions. Recursion r computes
at most the fraction (N - r + 1) / N of the tokens, all of them from recursion r - 1. They are
gathered, with their positions, so that skipped tokens cost nothing.

*Expert choice*: each recursion has its own router, which chooses its tokens (``routing``), and

    H^(r + 1) = H^r + g^r f(H^r) for the chosen,  g^r = alpha sigmoid(w_r H^r);  H^r for the others.

The first computes every token. *Token choice*: one router gives g = softmax(W H^1), and a token has
i = argmax g recursions, or fewer if the running budget of a recursion is spent:

    H^(r + 1) = g^r f(H^r) for r < i,    H^(i + 1) = g^i f(H^i) + H^1.

A balancing loss N sum_j (fraction of tokens that want j) (mean g^j) keeps the depths even (arXiv
2101.03961, equation 4). It is causal in training, too.

*Keys and values*: each recursion has its own, for its tokens ("recursion"), or all read those of
the first recursion, which exist for every token ("share").
"""

# Shapes: B batch, S tokens, E model width, K rows of a recursion, N recursions.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

import kernels
from models.language_model import BlockOutput
from models.layers.attention import SharedKV
from models.layers.depth import MixtureOfDepths
from models.layers.routing import (
    RoutedState,
    Router,
    Rows,
    add_weighted,
    admitted,
    best,
    choice_loss,
    everyone,
    packed,
    picked,
    running,
)
from models.layers.token_fraction import TokenFraction

ROUTINGS = ("expert", "token")
KEYS_AND_VALUES = ("recursion", "share")


class RecursionState(NamedTuple):
    """One state per recursion; in each, one per layer of the stack."""

    recursions: list[RoutedState]

    def tensors(self) -> list[Tensor]:
        """Return all tensors, for counting bytes and resetting."""
        return [tensor for state in self.recursions for tensor in state.tensors()]

    def carried(self) -> list[Tensor]:
        """Return the tensors that cannot go back to a position."""
        return [tensor for state in self.recursions for tensor in state.carried()]


class _Depths(NamedTuple):
    """Results of the mixtures of depths in one pass through the stack."""

    loss: Tensor | None
    measured: dict[str, list[Tensor]]


class _Stack(NamedTuple):
    """Result of one pass through the stack."""

    x: Tensor  # (B, K, E)
    depths: _Depths


class MixtureOfRecursions(nn.Module):
    """Block that applies ``layers`` up to ``recursions`` times, (B, S, E) -> (B, S, E).

    See the module. ``alpha`` scales the gates of expert choice, ``loss_weight`` the routers'
    losses.
    """

    unsplit = "mixture of recursions chooses among all tokens of a sequence"
    unstaged = "its recursions reuse one stack of layers, which must stay on one rank"

    def __init__(
        self,
        layers: Sequence[nn.Module],
        dim: int,
        recursions: int,
        routing: str,
        keys_and_values: str,
        alpha: float,
        loss_weight: float,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.router = Router(dim, recursions)
        self.routing, self.shares_kv = routing, keys_and_values == "share"
        self.alpha, self.loss_weight = alpha, loss_weight
        self.shares = [TokenFraction(recursions - r, recursions) for r in range(recursions)]
        self.measures = {"recursion_share": recursions, "recursion_router": recursions}
        depths = sum(isinstance(layer, MixtureOfDepths) for layer in layers)
        if depths:
            self.measures |= {"depth_share": depths, "depth_router": depths}

    def new_state(
        self, batch: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> RecursionState:
        """Return every recursion's state, for the tokens that may reach it."""
        states = []
        for r, share in enumerate(self.shares):
            capacity = 0 if self.shares_kv and r else length
            inner = [
                cast("Any", layer).new_state(batch, capacity, device, dtype, share)
                for layer in self.layers
            ]
            filled_B = torch.zeros(batch, device=device, dtype=torch.int64)
            states.append(RoutedState(filled_B, inner))
        return RecursionState(states)

    def forward(
        self, x_BSE: Tensor, state: RecursionState | None = None, position: Tensor | None = None
    ) -> BlockOutput:
        """Return the tokens after their recursions, the routers' loss and measurements."""
        route = self._expert if self.routing == "expert" else self._token
        return route(x_BSE, state, position)

    def _expert(
        self, x_BSE: Tensor, state: RecursionState | None, position: Tensor | None
    ) -> BlockOutput:
        learns = self.training and state is None
        rows, h_BKE, y_BSE = everyone(x_BSE, position), x_BSE, x_BSE
        shared = self._new_shared()
        passes, taken, means, loss = [], [], [], None
        for r, share in enumerate(self.shares):
            score_BK = self.router(h_BKE, slice(r, r + 1))[..., 0]
            means.append(rows.mean(score_BK.detach().sigmoid()))
            recursion_state = None if state is None else state.recursions[r]
            if r and learns:
                chosen = best(h_BKE, score_BK, share, rows)
                term = choice_loss(score_BK, chosen.taken, rows)
                loss = term if loss is None else loss + term
            elif r:
                chosen = running(h_BKE, score_BK, share, rows, recursion_state)
            if r:
                rows, h_BKE, score_BK = chosen.rows, chosen.x, chosen.score
            taken.append(rows.share_taken())
            output = self._through(h_BKE, recursion_state, position, rows if r else None, shared)
            passes.append(output.depths)
            weight_BK = rows.weights(self.alpha * score_BK.sigmoid())
            h_BKE = add_weighted(h_BKE, output.x, weight_BK)
            y_BSE = kernels.token_scatter(y_BSE, output.x, weight_BK, rows.index) if r else h_BKE
        return self._output(y_BSE, loss, passes, taken, torch.stack(means))

    def _token(
        self, x_BSE: Tensor, state: RecursionState | None, position: Tensor | None
    ) -> BlockOutput:
        rows, h_BKE, y_BSE = everyone(x_BSE, position), x_BSE, x_BSE
        gate_BSN = self.router(x_BSE).softmax(-1)
        wanted_BS = gate_BSN.argmax(-1)
        goes_on = self._admitted(wanted_BS, rows, state)
        depth_BS = torch.stack(goes_on).sum(0) - 1  # counted from 0
        shared = self._new_shared()
        passes, taken = [], []
        for r, share in enumerate(self.shares):
            recursion_state = None if state is None else state.recursions[r]
            if r:
                goes_BK = goes_on[r].gather(1, rows.index)
                counted_BK = rows.counted_BK()
                goes_BK = goes_BK if counted_BK is None else goes_BK & counted_BK
                rows, order_BK = packed(goes_BK, share, rows, recursion_state)
                h_BKE = picked(h_BKE, order_BK)
            taken.append(rows.share_taken())
            output = self._through(h_BKE, recursion_state, position, rows if r else None, shared)
            passes.append(output.depths)
            weight_BK = rows.weights(gate_BSN[..., r].gather(1, rows.index))
            last_BK = depth_BS.gather(1, rows.index) == r
            y_BSE = kernels.token_scatter(y_BSE, output.x, weight_BK.where(last_BK, 0), rows.index)
            h_BKE = (weight_BK[..., None] * output.x).to(x_BSE.dtype)
        n = len(self.shares)
        choices_N = torch.stack([(wanted_BS == r).to(gate_BSN.dtype).mean() for r in range(n)])
        gate_N = gate_BSN.mean((0, 1))
        loss = n * (choices_N * gate_N).sum() if self.training and state is None else None
        return self._output(y_BSE, loss, passes, taken, gate_N.detach())

    def _admitted(
        self, wanted_BS: Tensor, rows: Rows, state: RecursionState | None
    ) -> list[Tensor]:
        """Return, for each recursion, which tokens reach it, [B, S]."""
        goes_on = [torch.ones_like(wanted_BS, dtype=torch.bool)]
        for r, share in list(enumerate(self.shares))[1:]:
            recursion_state = None if state is None else state.recursions[r]
            goes_on.append(admitted(goes_on[-1] & (wanted_BS >= r), share, rows, recursion_state))
        return goes_on

    def _new_shared(self) -> list[SharedKV | None]:
        return [SharedKV() if self.shares_kv else None for _ in self.layers]

    def _through(
        self,
        x_BKE: Tensor,
        state: RoutedState | None,
        position: Tensor | None,
        rows: Rows | None,
        shared: list[SharedKV | None],
    ) -> _Stack:
        """Run all layers once, over the rows (None: all tokens)."""
        loss: Tensor | None = None
        depths: dict[str, list[Tensor]] = {}
        for i, layer in enumerate(self.layers):
            inner = None if state is None else state.inner[i]
            if not isinstance(layer, MixtureOfDepths):
                x_BKE = layer(x_BKE, inner, position, rows, shared[i])
                continue
            output = layer(x_BKE, inner, position, rows)
            x_BKE = output.x
            if output.loss is not None:
                loss = output.loss if loss is None else loss + output.loss
            for name, value in output.measured.items():
                depths.setdefault(name, []).append(value)
        return _Stack(x_BKE, _Depths(loss, depths))

    def _output(
        self,
        y_BSE: Tensor,
        loss: Tensor | None,
        passes: list[_Depths],
        taken: list[Tensor],
        router_N: Tensor,
    ) -> BlockOutput:
        """Return the block's output: losses added, and measurements in column order."""
        total = None if loss is None else self.loss_weight * loss
        for depths in passes:
            if depths.loss is not None:
                total = depths.loss if total is None else total + depths.loss
        reached_N = torch.stack(taken)
        left_N = reached_N - torch.cat((reached_N[1:], reached_N.new_zeros(1)))
        measured = {"recursion_share": left_N, "recursion_router": router_N.float()}
        for name in passes[0].measured:
            by_pass = torch.stack([torch.cat(depths.measured[name]) for depths in passes])
            # A fraction is of all tokens in every pass; a score's mean is of the tokens present.
            if name == "depth_share":
                measured[name] = by_pass.mean(0)
            else:
                measured[name] = (reached_N[:, None] * by_pass).sum(0) / reached_N.sum()
        return BlockOutput(y_BSE, total, measured)
