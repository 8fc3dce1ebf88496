"""Context parallelism of a model: each rank has a contiguous part of every sequence.

Layers that compute each token separately need no communication. Attention gathers the keys and
values of all ranks, as in Llama 3 (arXiv 2407.21783, section 3.3.2), and sees those up to its own
tokens. A layer that looks back a few tokens receives them from the previous rank. A state-space
mixer continues from the state after the previous ranks' tokens. It computes that from every rank's
own state and decay (Dao and Gu, arXiv 2405.21060, section 8.2).

All communication uses a ``Context``, which the process that runs the ranks installs: models do not
know about processes. A module whose result needs all tokens at once gives the reason in
``unsplit``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.builder import ModelBuilder


class Context:
    """Position of a rank's tokens in their sequences; this class, for all tokens, does nothing."""

    ranks, rank = 1, 0

    def split(self, x: Tensor) -> Tensor:
        """Return this rank's part of the second axis, (B, T, ...) -> (B, S, ...)."""
        return x

    def join(self, x_BSE: Tensor) -> Tensor:
        """Return the tokens of all ranks, (B, S, E) -> (B, T, E)."""
        return x_BSE

    def start(self, length: int) -> int:
        """Return the position of this rank's first token, of ``length`` on each rank."""
        return self.rank * length

    def seen(self, k_BGSD: Tensor, v_BGSD: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of all tokens up to this rank's last one."""
        return k_BGSD, v_BGSD

    def before(self, x_BSC: Tensor, n_rows: int) -> Tensor:
        """Return the last rows of the previous rank, (B, n_rows, C); zeros on the first."""
        return x_BSC.new_zeros(len(x_BSC), n_rows, x_BSC.shape[2])

    def state_before(self, state_BHX: Tensor, fall_BH: Tensor) -> Tensor:
        """Return the state (B, H, X) after all tokens of the previous ranks.

        ``state_BHX``: the state after this rank's tokens from an initial state of zeros.
        ``fall_BH``: logarithm of the factor by which these tokens reduce an earlier state.
        """
        return torch.zeros_like(state_BHX)

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of the ranks' ``x``, with which each rank continues."""
        return x


FULL = Context()


def combined_states(states_BWHX: Tensor, falls_BWH: Tensor, rank: int, before_W: Tensor) -> Tensor:
    """Return the state before ``rank``, (B, H, X), from all W ranks' states and decays.

    ``before_W``: 1 for each rank before it, else 0. The states of the other ranks are multiplied by
    zero, so that all ranks run the same operations in backward.
    """
    ranks = states_BWHX.shape[1]
    weights = []
    for index in range(ranks):
        between_BH = falls_BWH[:, index + 1 : max(rank, index + 1)].sum(1)
        weights.append(between_BH.exp() * before_W[index])
    return torch.einsum("bwhx,bwh->bhx", states_BWHX, torch.stack(weights, 1))


def install(model: nn.Module, context: Context) -> None:
    """Let every part of the model that depends on other tokens use ``context``."""
    for module in model.modules():
        if hasattr(module, "context"):
            module.context = context  # type: ignore[assignment]


@dataclass(frozen=True)
class SavedBeside:
    """Numbers that a layer saves for backward only because ranks split the sequence.

    ``gathered``: of each token of the other ranks. ``own`` and ``own_fp32``: of each of this rank's
    tokens. ``rounded``: of each token of all ranks, if the layer computes in FP32. ``states_fp32``:
    of a sequence, once per rank. Those without FP32 in their name are in the computing dtype.
    """

    gathered: int = 0
    own: int = 0
    own_fp32: int = 0
    rounded: int = 0
    states_fp32: int = 0

    def size(self, batch: int, sequence: int, ranks: int, compute: int) -> int:
        """Return the bytes for ``sequence`` tokens per rank; ``compute``: bytes of a number."""
        token = (self.gathered * (ranks - 1) + self.own) * compute + 4 * self.own_fp32
        if compute == 4:
            token += 4 * self.rounded * ranks
        return batch * (sequence * token + 4 * ranks * self.states_fp32)


@dataclass(frozen=True)
class Splittable:
    """Requirements of a model whose sequences are split.

    ``unsplit``: why they cannot be split; empty if they can. ``rows_before``: how many tokens a
    layer receives from the previous rank at most. ``saved_beside``: of each block's layers.
    """

    unsplit: str
    rows_before: int = 0
    saved_beside: tuple[tuple[SavedBeside, ...], ...] = ()

    def saved_bytes(self, *sizes: int) -> tuple[int, ...]:
        """Return the bytes by block; ``sizes`` as in ``SavedBeside.size``."""
        return tuple(sum(layer.size(*sizes) for layer in block) for block in self.saved_beside)


@functools.cache
def splittable(family: ModelBuilder, config: Any) -> Splittable:
    """Describe the splitting of a configuration's model; only its structure is built."""
    model: Any = family.build(config)
    if not hasattr(model, "context"):
        return Splittable(f"{family.title} does not make a prediction for each token")
    modules = list(model.modules())
    reasons = [getattr(module, "unsplit", "") for module in modules]
    return Splittable(
        next(filter(None, reasons), ""),
        max(getattr(module, "rows_before", 0) for module in modules),
        tuple(
            tuple(
                module.beside_split for module in block.modules() if hasattr(module, "beside_split")
            )
            for block in model.blocks
        ),
    )
