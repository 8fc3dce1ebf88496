"""Measurements of attention heads, from some queries and tokens of a call; no gradients.

Nothing here waits for the device.
"""

# Shapes: B batch, H heads, S queries, T keys, D head width, N sampled queries, R sampled tokens, P
# parts of a row.

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

SAMPLES = 32  # queries per sequence
TOKENS = 128  # tokens of a batch that determine the basis

TokenIndices = tuple[slice, slice] | tuple[Tensor, Tensor]  # indices of samples and of tokens


class Sight(NamedTuple):
    """Queries, keys and tokens that are measured in every layer of a call.

    Queries and the keys that they see have heads before samples, as in the memory layout that
    ``AdaptiveHeads`` uses in a basis. The tokens determine the basis.
    """

    at: slice | Tensor  # indices of the queries
    seen: Tensor  # [H, B, N, T], Boolean; 1 for H and B where all are alike
    hidden: Tensor  # the same in FP32: added to scores; the least number where a key is not seen
    share: Tensor  # [H, B, N], FP32: weight of each query's nats in its head's entropy
    queries: TokenIndices  # for the basis
    keys: TokenIndices

    @classmethod
    def of(
        cls,
        batch: int,
        length: int,
        keys: int,
        causal: bool,
        device: torch.device,
        mask: Tensor | None = None,
    ) -> Sight:
        """Choose evenly spaced queries of ``length``.

        ``mask``, Boolean, broadcasts to [B, H, S, T]: True where a key is seen. Queries that see
        one key have no entropy.
        """
        n = min(SAMPLES, length)
        every, uneven = divmod(length, n)
        if uneven:
            at = at_N = torch.arange(1, n + 1, device=device) * length // n - 1
        else:  # a view, where possible: this runs in every layer, bound by launches
            at = slice(every - 1, None, every)
            at_N = torch.arange(every - 1, length, every, device=device)
        if causal:
            seen = torch.arange(keys, device=device) <= (at_N + (keys - length))[:, None]
        else:
            seen = torch.ones(n, keys, dtype=torch.bool, device=device)
        if mask is not None:
            seen = seen & mask.expand(*mask.shape[:-2], length, keys).index_select(-2, at_N)
        seen_HBNT = seen[(None,) * (4 - seen.dim())].transpose(0, 1)
        count_HBN = seen_HBNT.sum(-1, dtype=torch.float32)
        usable_HBN = count_HBN > 1
        least = torch.finfo(torch.float32).min
        hidden_HBNT = torch.full(seen_HBNT.shape, least, dtype=torch.float32, device=device)
        indices = _token_indices(batch, length, device)
        usable_H = usable_HBN.sum((1, 2), keepdim=True) * (batch // seen_HBNT.shape[1])
        return cls(
            at,
            seen_HBNT,
            hidden_HBNT.masked_fill_(seen_HBNT, 0.0),
            # NaN where nothing can be measured: there is nothing to adapt to.
            usable_HBN / count_HBN.clamp_min(2).log() / usable_H,
            indices,
            indices if keys == length else _token_indices(batch, keys, device),
        )


def look(q_BHSD: Tensor, k_BHTD: Tensor, sight: Sight, scale: Tensor | float) -> dict[str, Tensor]:
    """Measure sampled queries against the keys, per head; no gradients.

    Returns ``nats`` [H, B, N], the entropies of their weights, and ``largest`` [H], which has to be
    multiplied by ``scale`` (or [H, 1, 1, 1]) to give scores.
    """
    q_HBND = q_BHSD.detach().transpose(0, 1)[:, :, sight.at]
    products = q_HBND @ k_BHTD.detach().transpose(0, 1).mT
    if isinstance(scale, Tensor):
        scores = torch.addcmul(sight.hidden, products, scale)
    else:
        scores = torch.add(sight.hidden, products, alpha=scale)
    return {
        "nats": torch.special.entr(scores.softmax(-1)).sum(-1),
        "largest": vector_norm(products * sight.seen, math.inf, (1, 2, 3)),
    }


def longest(x_BHSD: Tensor, parts: Tensor | None) -> Tensor:
    """Return the longest row of each head [1, H], or [2, H] with that beyond its rank; FP32."""
    x_BHSD = x_BHSD.detach()
    dtype = torch.promote_types(x_BHSD.dtype, torch.float32)
    x_PBHSD = x_BHSD[None] if parts is None else x_BHSD * parts
    return vector_norm(x_PBHSD, dim=-1, dtype=dtype).amax((1, 3))


def sampled(q_BHSD: Tensor, k_BHTD: Tensor, sight: Sight) -> Tensor:
    """Return rows for the basis: [H, 2 R, D], queries first; no gradients."""
    return torch.cat([_tokens(q_BHSD, sight.queries), _tokens(k_BHTD, sight.keys)], 1)


def _token_indices(batch: int, length: int, device: torch.device) -> TokenIndices:
    """Choose R evenly spaced tokens of a batch."""
    every, uneven = divmod(batch * length, TOKENS)
    if uneven or every == 0 or (length % every and every % length):
        at_R = torch.arange(TOKENS, device=device) * (batch * length) // TOKENS
        return at_R // length, at_R % length
    if every <= length:
        return slice(None), slice(None, None, every)
    return slice(None, None, every // length), slice(0, 1)


def _tokens(x_BHSD: Tensor, indices: TokenIndices) -> Tensor:
    """Gather the rows of these tokens: [H, R, D]."""
    samples, tokens = indices
    taken = x_BHSD.detach()[samples, :, tokens].transpose(0, 1)
    return taken.reshape(x_BHSD.shape[1], TOKENS, -1)
