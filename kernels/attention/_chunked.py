"""Attention in chunks with an online softmax: memory linear in the length, on any device.

Milakov and Gimelshein 2018 (arXiv 1805.02867) for the running maximum; Rabe and Staats 2021 (arXiv
2112.05682) for attention with it; the backward pass recomputes the weights from the saved logarithm
of the normaliser, as FlashAttention (arXiv 2205.14135) does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.attention._masks import bounds, reference, visible
from kernels.attention.memory import chunk_of
from kernels.core.autograd import applied, once_differentiable
from kernels.core.operator import accumulator, without_autocast


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        window: int | None,
        scale: float,
        kv_length: Tensor | None,
    ) -> Tensor:
        batch, heads, length, dim = q.shape
        groups = k.shape[1]
        q_BGRSD = q.reshape(batch, groups, heads // groups, length, dim)
        out = torch.empty_like(q_BGRSD)
        normaliser = torch.empty(q_BGRSD.shape[:-1], dtype=accumulator(q.dtype), device=q.device)
        with without_autocast(q):
            for rows in _chunks(0, length, chunk_of(q)):
                out[..., rows, :], normaliser[..., rows] = _forward_rows(
                    q_BGRSD, k, v, rows, causal, window, scale, kv_length
                )
        ctx.save_for_backward(q, k, v, out, normaliser, kv_length)
        ctx.mask = causal, window, scale
        return out.view(q.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, normaliser, kv_length = ctx.saved_tensors
        q_BGRSD, dout = q.reshape(out.shape), dout.reshape(out.shape)
        causal, window, scale = ctx.mask
        wide = normaliser.dtype
        dq = torch.zeros(out.shape, dtype=wide, device=q.device)
        dk = torch.zeros(k.shape, dtype=wide, device=q.device)
        dv = torch.zeros(v.shape, dtype=wide, device=q.device)
        delta = (dout.to(wide) * out.to(wide)).sum(-1)
        with without_autocast(q):
            for rows in _chunks(0, q.shape[2], chunk_of(q)):
                _backward_rows(
                    q_BGRSD,
                    k,
                    v,
                    dout,
                    normaliser,
                    delta,
                    dq,
                    dk,
                    dv,
                    rows,
                    causal,
                    window,
                    scale,
                    kv_length,
                )
        return dq.to(q.dtype).view(q.shape), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def _chunks(first: int, last: int, chunk: int) -> Iterator[slice]:
    for start in range(first, last, chunk):
        yield slice(start, min(start + chunk, last))


def _key_chunks(
    rows: slice, q: Tensor, k: Tensor, causal: bool, window: int | None, kv_length: Tensor | None
) -> Iterator[slice]:
    low, high = 0, k.shape[2]
    if kv_length is None:
        low, high = bounds(rows.start, rows.stop, q.shape[3], k.shape[2], causal, window)
    return _chunks(low, high, chunk_of(q))


def _scores(
    q: Tensor,
    k: Tensor,
    rows: slice,
    columns: slice,
    causal: bool,
    window: int | None,
    scale: float,
    kv_length: Tensor | None,
) -> Tensor:
    """Return scaled scores [B, G, R, rows, columns] in the wide dtype, -inf where masked."""
    piece = q[..., rows, :]
    stacked = piece.flatten(2, 3) @ k[:, :, columns].transpose(-1, -2)
    scores = stacked.to(accumulator(q.dtype)).view(*piece.shape[:-1], -1) * scale
    if causal or window is not None or kv_length is not None:
        seen = visible(q.shape[3], k.shape[2], q.device, causal, window, kv_length, rows, columns)
        if kv_length is not None:
            seen = seen[:, None]
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores


def _forward_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: slice,
    causal: bool,
    window: int | None,
    scale: float,
    kv_length: Tensor | None,
) -> tuple[Tensor, Tensor]:
    shape = q[..., rows, :].shape
    wide = accumulator(q.dtype)
    total = torch.zeros(shape, dtype=wide, device=q.device)
    weight = torch.zeros(shape[:-1], dtype=wide, device=q.device)
    # Finite, so that a row that has seen nothing yet does not subtract infinities.
    top = torch.full(shape[:-1], torch.finfo(wide).min, dtype=wide, device=q.device)
    for columns in _key_chunks(rows, q, k, causal, window, kv_length):
        scores = _scores(q, k, rows, columns, causal, window, scale, kv_length)
        higher = torch.maximum(top, scores.amax(-1))
        shrink = torch.exp(top - higher)
        weights = torch.exp(scores - higher[..., None])
        part = weights.to(v.dtype).flatten(2, 3) @ v[:, :, columns]
        total = total * shrink[..., None] + part.to(wide).view(shape)
        weight = weight * shrink + weights.sum(-1)
        top = higher
    seen = weight > 0
    out = total / torch.where(seen, weight, 1)[..., None]
    return out.to(q.dtype), torch.where(seen, top + weight.log(), torch.inf)


def _backward_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    normaliser: Tensor,
    delta: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    rows: slice,
    causal: bool,
    window: int | None,
    scale: float,
    kv_length: Tensor | None,
) -> None:
    """Add the contribution of these queries to the three gradients."""
    q_rows = q[..., rows, :].flatten(2, 3)
    dout_rows = dout[..., rows, :].flatten(2, 3)
    for columns in _key_chunks(rows, q, k, causal, window, kv_length):
        scores = _scores(q, k, rows, columns, causal, window, scale, kv_length)
        weights = torch.exp(scores - normaliser[..., rows, None]).flatten(2, 3)
        dv[:, :, columns] += weights.to(v.dtype).transpose(-1, -2) @ dout_rows
        dweights = (dout_rows @ v[:, :, columns].transpose(-1, -2)).to(weights.dtype)
        slope = (dweights - delta[..., rows].flatten(2, 3)[..., None]) * weights * scale
        slope = slope.to(q.dtype)
        dq[..., rows, :] += (slope @ k[:, :, columns]).view(dq[..., rows, :].shape)
        dk[:, :, columns] += slope.transpose(-1, -2) @ q_rows


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> Tensor:
    """Compute attention in chunks of queries and keys; see the module."""
    if not (q.numel() and k.numel()):
        return reference(q, k, v, causal, window, scale, kv_length)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return applied(_Chunked, q, k, v, causal, window, scale, kv_length)
