"""How much memory attention may take for its weights, and so when it works in chunks and how long.

Backends that keep the whole matrix of weights (manual) or pieces of it (chunked) hold about
``COPIES`` numbers a weight at a time. From ``LONG`` weights a head on, or where the matrix would
take more than the budget, auto prefers chunks over the whole. The budget is a share of all memory
and not of what is free: a captured or compiled step keeps its choice, whatever is free later.
"""

from __future__ import annotations

import math
from typing import NamedTuple

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


class Weights(NamedTuple):
    """Bytes that attention holds for its weights: beside inputs, output, and their gradients.

    Against a fused kernel, which keeps the logarithm of each row's sum and no weights.
    """

    kept: int = 0  # for its backward pass
    forward: int = 0  # at most where a backward pass follows, with what is kept
    inference: int = 0  # at most where none does
    backward: int = 0  # at most in the backward pass, with what was kept


def held_bytes(
    backend: str,
    *,
    batch: int,
    heads: int,
    groups: int,
    length: int,
    keys: int,
    dim: int,
    element: int,
    masked: bool,
    masks: int,
    budget: int,
) -> Weights:
    """What ``backend`` holds for its weights, numbers of inputs being ``element`` bytes.

    Zero for every backend but those that write weights down. ``masks`` is how many [length, keys]
    are written down: none, one, or one a sequence; ``budget`` bounds a chunk's.
    """
    pairs, narrow = batch * heads * length * keys, element < 4
    # Neither keeps what a fused kernel's backward pass needs: each row's sum, and the output.
    sums, output = 4 * batch * heads * length, element * batch * heads * length * dim
    if backend == "manual":
        # The softmax, its product with the mask and that rounded, where they differ; both masks.
        kept = pairs * (4 + element * (masked or narrow)) + 2 * length * keys * masks
        at_most = pairs * (12 if masked else 8)
        return Weights(
            kept - sums,
            at_most + 2 * pairs * narrow,
            at_most + 2 * pairs * (narrow and not masked),
            12 * pairs - output,
        )
    if backend == "sdpa_math":
        # The softmax, and instead of the inputs queries and keys scaled, with values if they are
        # no inputs: in FP32, each head its own. What these are made of stays as long as the call.
        queries, keyed = (4 * batch * heads * dim * n for n in (length, keys))
        own = narrow or groups < heads
        kept = 4 * pairs + queries + keyed * (1 + own)
        instead = element * batch * dim * (heads * length + groups * keys * (1 + own)) + sums
        unscaled = queries * narrow + keyed * own
        mask = 4 * length * keys * masks
        ungrouped = 2 * keyed * groups // heads if narrow and groups < heads else 0
        return Weights(
            kept - instead,
            4 * pairs + kept + unscaled + ungrouped + mask - output,
            8 * pairs + unscaled + keyed * own + ungrouped + mask,
            12 * pairs + queries + 2 * keyed - instead - output,
        )
    if backend == "chunked":
        chunk = chunk_length(batch, heads, 4, budget)
        piece = batch * heads * min(chunk, length) * min(chunk, keys)
        # While the next one is made, of the last one scores and weights are there still.
        several = keys > chunk
        rows = 2 * 4 * batch * heads * min(chunk, length) * dim  # the running sum, before and after
        gradients = 4 * batch * dim * (heads * length + 2 * groups * keys)
        forward = (18 if several else 12) * piece + rows
        return Weights(0, forward, forward, (24 if several else 20) * piece + gradients)
    return Weights()


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
