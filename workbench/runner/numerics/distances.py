"""Errors of outputs against the reference's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_PIECE = 1 << 24  # outputs that are compared at a time


@dataclass(frozen=True)
class Distance:
    """The errors of outputs against the reference's."""

    max_error: float
    relative_error: float
    mse: float
    cosine: float


def distance(values: torch.Tensor, reference: torch.Tensor) -> Distance:
    """Return the errors of ``values`` against ``reference``; not finite where a value is not.

    Infinities (of a mask) and NaN at the same positions in both are correct, and are ignored.
    """
    if values.shape != reference.shape:
        shapes = tuple(values.shape), tuple(reference.shape)
        raise ValueError(f"outputs have shape {shapes[0]}, those of the reference {shapes[1]}")
    largest, masked = 0.0, 0
    sums = torch.zeros(4, dtype=torch.float64, device=reference.device)
    pieces = (x.detach().flatten().split(_PIECE) for x in (values, reference))
    for y, r in zip(*pieces, strict=True):
        y, r = y.double(), r.double()
        d = y - r
        if not torch.isfinite(d).all():
            alike = (torch.isinf(r) & (y == r)) | (torch.isnan(r) & torch.isnan(y))
            masked += int(alike.sum())
            y, r, d = (values_masked.masked_fill(alike, 0.0) for values_masked in (y, r, d))
        largest = max(largest, float(d.abs().max())) if torch.isfinite(d).all() else math.nan
        sums += torch.stack([d @ d, r @ r, y @ y, y @ r])
        if math.isnan(largest) or masked == values.numel() > 0:
            return Distance(math.nan, math.nan, math.nan, math.nan)
    squared, norm, values_norm, product = sums.tolist()
    return Distance(
        max_error=largest,
        relative_error=math.sqrt(squared / norm) if norm else math.inf if squared else 0.0,
        mse=squared / (values.numel() - masked),
        cosine=product / math.sqrt(values_norm * norm)
        if values_norm * norm
        else float(values_norm == norm),
    )
