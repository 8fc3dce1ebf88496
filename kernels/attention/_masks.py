"""Mask of the keys that a query sees, and the reference that defines attention with it."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.core.operator import accumulator

# A backend that never holds the weights recomputes them as exp(score - l), where l is the logarithm
# of a row's sum. Score, l and difference are each rounded, so a weight is off by about |l| units in
# the last place of FP32, in the same direction along its row. l is slightly more than log T: 5 to 8
# in the tests.
RECOMPUTED_ULPS = {"cuda": 8.0}


def visible(
    length: int,
    keys: int,
    device: torch.device,
    causal: bool,
    window: int | None,
    kv_length: Tensor | None,
    rows: slice = slice(None),
    columns: slice = slice(None),
) -> Tensor:
    """Return a boolean mask, [S, T], or [B or 1, 1, S, T] with ``kv_length``: True where seen.

    ``rows`` and ``columns`` select a part of it.
    """
    end: int | Tensor = keys
    key = torch.arange(keys, device=device)[columns]
    if kv_length is not None and kv_length.dim() == 2:
        end = kv_length[:, None, rows, None]
        position = end - 1
    else:
        end = end if kv_length is None else kv_length.reshape(-1, 1, 1, 1)
        position = end - length + torch.arange(length, device=device)[rows, None]
    seen = key < end if kv_length is not None else torch.ones_like(position + key, dtype=torch.bool)
    if causal:
        seen = seen & (key <= position)
    if window is not None:
        seen = seen & (key > position - window)
        if not causal:
            seen = seen & (key < position + window)
    return seen


def bounds(
    first: int, last: int, length: int, keys: int, causal: bool, window: int | None
) -> tuple[int, int]:
    """Return the range of keys that queries ``first`` to ``last`` - 1 see, without kv_length."""
    low, high = 0, keys
    if causal:
        high = min(keys, keys - length + last)
    if window is not None:
        low = max(0, keys - length + first - window + 1)
        if not causal:
            high = min(keys, keys - length + last + window - 1)
    return low, max(low, high)


def trivial(q: Tensor, causal: bool, window: int | None, kv_length: Tensor | None) -> bool:
    """Return True if every query sees every key."""
    return window is None and kv_length is None and (not causal or q.shape[2] == 1)


def square(q: Tensor, k: Tensor, window: int | None, kv_length: Tensor | None) -> bool:
    """Return True if there is no mask or the plain causal one: as many queries as keys."""
    return window is None and kv_length is None and q.shape[2] == k.shape[2]


def has_groups(q: Tensor, k: Tensor) -> bool:
    """Return True if query heads share keys.

    The branch makes it a constant where ``torch.compile`` has symbols for numbers of heads.
    """
    return True if q.shape[1] != k.shape[1] else False  # noqa: SIM210  a symbol is no bool


def reference(
    q_BHSD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    causal: bool = True,
    window: int | None = None,
    scale: float | Tensor | None = None,
    kv_length: Tensor | None = None,
) -> Tensor:
    """Compute the definition; a group's query heads are stacked, so keys are not copied.

    ``scale`` may also be a tensor that broadcasts to the scores, [B, H, S, T].
    """
    batch, heads, length, dim = q_BHSD.shape
    groups, keys = k_BGTD.shape[1:3]
    scale = dim**-0.5 if scale is None else scale
    stacked = q_BHSD.reshape(batch, groups, heads // groups * length, dim)
    scores = (stacked @ k_BGTD.transpose(-1, -2)).view(batch, heads, length, keys)
    scores = scores.to(accumulator(scores.dtype)) * scale
    if trivial(q_BHSD, causal, window, kv_length):
        weights = scores.softmax(-1)
    else:
        seen = visible(length, keys, q_BHSD.device, causal, window, kv_length)
        # The least finite number, and not -inf: a row that sees nothing must not become NaN.
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1) * seen
    stacked = weights.to(v_BGTD.dtype).view(batch, groups, heads // groups * length, keys)
    return (stacked @ v_BGTD).view(batch, heads, length, dim)
