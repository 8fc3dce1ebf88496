"""A sketch of a step's outputs: a few numbers by which the results of two runs can be compared.

A count sketch (Charikar, Chen, Farach-Colton, 2002): each output value is added, with a random
sign, to one of ``BUCKETS`` sums. Both are a hash of the value's position, so that two runs use the
same ones. The sketch is linear: the Euclidean norm of the difference of two sketches estimates
that of the outputs, within 18 % (one standard deviation), whatever the outputs are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sessions.verdicts.regression import BUCKETS, encode_sketch
from workbench.runner.numerics.outputs import measurable
from workbench.runner.structures import tensors

_PIECE = 1 << 20  # values that are hashed at a time
# The finalizer of splitmix64 (Steele, Lea, Flood, 2014), as signed 64-bit numbers.
_MULTIPLIERS = (-4658895280553007687, -7723592293110705685)
_SHIFTS = (30, 27, 31)
_INCREMENT = -7046029254386353131


def sketch(output: Any) -> str:
    """Return the sketch of all tensors of ``output``, as text for the ledger; empty without any."""
    values = measurable(output) or [
        tensor for tensor in tensors(output) if tensor.layout == torch.strided and tensor.numel()
    ]
    if not values:
        return ""
    sums = torch.zeros(BUCKETS, dtype=torch.float64, device=values[0].device)
    start = 0
    for tensor in values:
        for piece in tensor.detach().flatten().split(_PIECE):
            bucket, sign = _hash(start, piece.numel(), sums.device)
            sums.index_add_(0, bucket, sign * piece.to(sums.device, torch.float64))
            start += piece.numel()
    numbers = sums.tolist()
    return encode_sketch(numbers) if all(map(math.isfinite, numbers)) else ""


def _hash(start: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a bucket and a sign for each of ``count`` positions from ``start`` on."""
    x = (torch.arange(start, start + count, device=device) + 1) * _INCREMENT
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, 1), strict=True):
        mask = (1 << (64 - shift)) - 1  # the shift of a signed number repeats its sign
        x = (x ^ ((x >> shift) & mask)) * multiplier
    return x & (BUCKETS - 1), 1.0 - 2.0 * ((x >> 32) & 1).double()
