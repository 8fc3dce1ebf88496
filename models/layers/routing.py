"""Routing: the tokens that a part of a model computes, gathered in their order.

Two rules choose, both with shapes that depend on the sizes alone:

* ``best``, for training: the k highest scores of a sequence, k a fixed fraction of it. It looks
  ahead: whether a token is among them depends on tokens after it.
* ``running``, for everything that must be causal (evaluation, prefill, decoding): a token is taken
  if its score requests it (sigmoid above 1/2, arXiv 2404.02258, section 3.5), as long as the tokens
  taken up to its position p are at most the fraction of p + 1. So no position needs to know the
  next one, prefill and decoding agree, and a prefill computes no more tokens than training does.

With the budget c_t = ceil(fraction (p_t + 1)), which never falls, and P_t the number of requesting
tokens up to t, the number taken is n_t = min(n_(t - 1) + asks_t, c_t): a recurrence of minimum and
plus, whose solution P_t + min(n_before, min over s <= t of (c_s - P_s)) is a running sum and a
running minimum.

Shapes: B batch, S tokens of the call, E model width, K input rows, C rows chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

import kernels
from models.layers.basic import INIT_STD
from models.layers.token_fraction import ALL_TOKENS, TokenFraction


@dataclass(frozen=True)
class Rows:
    """Tokens that a part of the model sees: rows in order, those that do not count last."""

    length: int  # S
    share: TokenFraction  # fraction of all tokens
    fresh: bool  # True if the sequence begins with this call
    position: Tensor  # (B, K) int64: positions in the sequence
    index: Tensor  # (B, K) int64: positions in this call
    count: Tensor | None = None  # (B,) int64: how many count; None: all
    filled: Tensor | None = None  # (B,) int64: how many earlier calls took; None: none

    def counted_BK(self) -> Tensor | None:
        """Return True where a row counts; None if all do."""
        if self.count is None:
            return None
        n_rows = self.position.shape[1]
        return torch.arange(n_rows, device=self.count.device) < self.count[:, None]

    def weights(self, weight_BK: Tensor) -> Tensor:
        """Return the weights, zero where a row does not count."""
        counted_BK = self.counted_BK()
        return weight_BK if counted_BK is None else weight_BK.where(counted_BK, 0)

    def mean(self, value_BK: Tensor) -> Tensor:
        """Return the mean over the rows that count, []."""
        counted_BK = self.counted_BK()
        if counted_BK is None:
            return value_BK.mean()
        return (value_BK * counted_BK).sum() / counted_BK.sum().clamp(min=1)

    def share_taken(self) -> Tensor:
        """Return the fraction of the call's tokens that count, [], FP32."""
        batch, n_rows = self.position.shape
        if self.count is None:
            share, device = n_rows / self.length, self.position.device
            return torch.full((), share, dtype=torch.float32, device=device)
        return self.count.sum().float() / (batch * self.length)


@dataclass(frozen=True)
class Chosen:
    """Result of a choice: the rows, their tokens and scores, and their indices in the input.

    ``taken`` is True for those taken of the input rows.
    """

    rows: Rows
    x: Tensor  # (B, C, E)
    score: Tensor  # (B, C)
    order: Tensor  # (B, C) int64
    taken: Tensor  # (B, K) bool


class Router(nn.Module):
    """Linear map to ``n`` scores per token, (B, S, E) -> (B, S, n), in FP32 at least."""

    def __init__(self, dim: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, dim))

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Draw the initial value of parameter ``name``, in FP32 on the CPU."""
        return torch.empty(shape, dtype=torch.float32).normal_(0.0, INIT_STD, generator=generator)

    def forward(self, x_BSE: Tensor, which: slice = slice(None)) -> Tensor:
        """Return the scores, or those of ``which``."""
        wide = torch.promote_types(x_BSE.dtype, torch.float32)
        # A score near zero decides: it is not rounded to the other linears' dtype.
        with kernels.without_autocast(x_BSE):
            return functional.linear(x_BSE.to(wide), self.weight[which].to(wide))


@dataclass
class RoutedState:
    """Decode state of a part that sees only some tokens: its own state, and how many were taken."""

    filled: Tensor  # (B,) int64
    inner: list[Any]

    def tensors(self) -> list[Tensor]:
        """Return all tensors, for counting bytes and resetting."""
        return [self.filled, *(tensor for state in self.inner for tensor in state.tensors())]

    def carried(self) -> list[Tensor]:
        """Return the tensors that cannot go back to a position."""
        return [self.filled, *(tensor for state in self.inner for tensor in state.carried())]


def everyone(x_BSE: Tensor, position: Tensor | None) -> Rows:
    """Return all tokens of a call that begins at ``position`` (None: the sequence begins)."""
    batch, length, _ = x_BSE.shape
    index_BS = torch.arange(length, device=x_BSE.device).expand(batch, length)
    fresh = position is None
    return Rows(length, ALL_TOKENS, fresh, index_BS if fresh else index_BS + position, index_BS)


def best(x_BKE: Tensor, score_BK: Tensor, share: TokenFraction, rows: Rows) -> Chosen:
    """Choose the highest scores: the fraction ``share`` of the call's S tokens, among the rows."""
    counted_BK = rows.counted_BK()
    if counted_BK is not None:
        score_BK = score_BK.masked_fill(~counted_BK, -torch.inf)
    n_chosen = min(share.of(rows.length), x_BKE.shape[1])
    x_BCE, score_BC, order_BC = kernels.token_router(x_BKE, score_BK, n_chosen)
    count_B = None
    if rows.count is not None:
        count_B = rows.count.clamp(max=n_chosen)
        # Rows that do not count may fill the result up: they have no score.
        score_BC = score_BC.where(score_BC > -torch.inf, 0)
    chosen_BK = torch.zeros_like(score_BK, dtype=torch.bool).scatter(1, order_BC, True)
    return Chosen(_pick(rows, share, order_BC, count_B, None), x_BCE, score_BC, order_BC, chosen_BK)


def running(
    x_BKE: Tensor, score_BK: Tensor, share: TokenFraction, rows: Rows, state: RoutedState | None
) -> Chosen:
    """Choose rows whose score is above zero, within the running budget; ``state`` counts them."""
    taken_BK = admitted(score_BK > 0, share, rows, state)
    chosen, order_BC = packed(taken_BK, share, rows, state)
    x_BCE, score_BC = picked(x_BKE, order_BC), score_BK.gather(1, order_BC)
    return Chosen(chosen, x_BCE, score_BC, order_BC, taken_BK)


def admitted(
    asks_BK: Tensor, share: TokenFraction, rows: Rows, state: RoutedState | None
) -> Tensor:
    """Return which of the requesting rows are within the running budget, [B, K]; see the module."""
    counted_BK = rows.counted_BK()
    if counted_BK is not None:
        asks_BK = asks_BK & counted_BK
    requests_BK = kernels.running_sum(asks_BK.long())
    room_BK = (share.of(rows.position + 1) - requests_BK).cummin(1).values
    began = None if state is None or rows.fresh else state.filled
    before_B1 = room_BK.new_zeros(len(room_BK), 1) if began is None else began[:, None]
    total_BK = requests_BK + torch.minimum(room_BK, before_B1)
    return total_BK > torch.cat((before_B1, total_BK[:, :-1]), 1)


def packed(
    taken_BK: Tensor, share: TokenFraction, rows: Rows, state: RoutedState | None
) -> tuple[Rows, Tensor]:
    """Return the taken rows, in order, padded with others to the largest possible number.

    Also returns their indices among ``rows``, [B, C]; ``state`` counts them.
    """
    n_rows = taken_BK.shape[1]
    # A sequence that began earlier may have saved budget for all tokens of this call.
    n_chosen = min(share.of(rows.length), n_rows) if rows.fresh else n_rows
    rank_BK = kernels.running_sum(taken_BK.long())
    count_B1 = rank_BK[:, -1:]
    place_BK = torch.arange(n_rows, device=taken_BK.device).expand_as(taken_BK)
    target_BK = torch.where(taken_BK, rank_BK - 1, count_B1 + place_BK - rank_BK)
    order_BC = torch.empty_like(rank_BK).scatter(1, target_BK, place_BK)[:, :n_chosen]
    count_B, filled_B = count_B1[:, 0], None
    if state is not None:
        filled_B = None if rows.fresh else state.filled.clone()
        state.filled.copy_(count_B if filled_B is None else filled_B + count_B)
    return _pick(rows, share, order_BC, count_B, filled_B), order_BC


def picked(x_BKE: Tensor, order_BC: Tensor) -> Tensor:
    """Gather those rows of ``x_BKE``, [B, C, E]."""
    return x_BKE.gather(1, order_BC[..., None].expand(-1, -1, x_BKE.shape[2]))


def choice_loss(score_BK: Tensor, chosen_BK: Tensor, rows: Rows) -> Tensor:
    """Return the mean binary cross-entropy of sigmoid(score) against the choice, [], in nats.

    It trains the score to predict the choice without later tokens: arXiv 2404.02258, section 3.5;
    arXiv 2507.10524, section 2.2.1.
    """
    target_BK = chosen_BK.to(score_BK.dtype)
    loss_BK = functional.binary_cross_entropy_with_logits(score_BK, target_BK, reduction="none")
    return rows.mean(loss_BK)


def add_weighted(x_BKE: Tensor, update_BKE: Tensor, weight_BK: Tensor) -> Tensor:
    """Compute ``x + weight update`` in x's dtype, with arithmetic in the weights'."""
    wide = weight_BK.dtype
    return (x_BKE.to(wide) + weight_BK[..., None] * update_BKE.to(wide)).to(x_BKE.dtype)


def _pick(
    rows: Rows,
    share: TokenFraction,
    order_BC: Tensor,
    count_B: Tensor | None,
    filled_B: Tensor | None,
) -> Rows:
    position_BC, index_BC = (x.gather(1, order_BC) for x in (rows.position, rows.index))
    return Rows(rows.length, share, rows.fresh, position_BC, index_BC, count_B, filled_B)
