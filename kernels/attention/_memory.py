"""How much memory attention may take for its weights, and so when it works in chunks and how long.

Backends that keep the whole matrix of weights (manual) or pieces of it (chunked) hold about
``COPIES`` numbers a weight at a time. From ``LONG`` weights a head on, or where the matrix would
take more than the budget, auto prefers chunks over the whole. The budget is a share of all memory
and not of what is free: a captured or compiled step keeps its choice, whatever is free later.
"""

from __future__ import annotations

import math

from torch import Tensor

from kernels import hardware
from kernels._operator import accumulator, traced_as_constant

LONG = 2048 * 2048  # weights a head
CHUNK = 1024  # queries and keys at a time, at most
LEAST_CHUNK = 64
SHARE = 0.125  # of all memory
COPIES = 3  # scores, weights, and the weights rounded or in the making


@traced_as_constant
def budget_bytes(device_type: str, device_index: int | None) -> int:
    """Bytes that attention may take for its weights on a device."""
    where = device_type if device_index is None else f"{device_type}:{device_index}"
    return int(SHARE * hardware.of(where).total_bytes)


def weights_bytes(batch: int, heads: int, length: int, keys: int, element: int = 4) -> int:
    """Bytes that the whole matrix of weights takes, with its copies."""
    return COPIES * element * batch * heads * length * keys


def chunk_length(batch: int, heads: int, element: int, budget: int) -> int:
    """Queries, and keys, of a chunk: the largest power of two whose weights fit the budget."""
    chunk = CHUNK
    while chunk > LEAST_CHUNK and weights_bytes(batch, heads, chunk, chunk, element) > budget:
        chunk //= 2
    return chunk


def chunk_of(q: Tensor) -> int:
    """``chunk_length`` for queries [B, ..., S, D] on their device."""
    element = accumulator(q.dtype).itemsize
    budget = budget_bytes(q.device.type, q.device.index)
    return chunk_length(q.shape[0], math.prod(q.shape[1:-2]), element, budget)


def is_whole(
    batch: int,
    heads: int,
    length: int,
    keys: int,
    device_type: str,
    device_index: int | None = None,
    element: int = 4,
) -> bool:
    """Whether the whole matrix of weights, ``element`` bytes each, is preferred to chunks of it."""
    needed = weights_bytes(batch, heads, length, keys, element)
    return length * keys < LONG and needed <= budget_bytes(device_type, device_index)


def fits_whole(q_BHSD: Tensor, k_BGTD: Tensor) -> str | None:
    """Why chunks do not pay, or None where they do."""
    batch, heads, length, _ = q_BHSD.shape
    sizes = batch, heads, length, k_BGTD.shape[2]
    device, element = q_BHSD.device, accumulator(q_BHSD.dtype).itemsize
    if not is_whole(*sizes, device.type, device.index, element):
        return None
    return (
        f"chunks pay from {LONG} weights a head on, not at {length * sizes[-1]}, and all heads' "
        f"{weights_bytes(*sizes, element) >> 20} MiB are within the budget of "
        f"{budget_bytes(device.type, device.index) >> 20} MiB"
    )
