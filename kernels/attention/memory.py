"""Memory limits of attention's weights: when to work in chunks, and how long they are.

Backends that keep the full matrix of weights (manual) or pieces of it (chunked) hold about
``COPIES`` numbers per weight at a time. From ``LONG`` weights per head on, or where the matrix
would exceed the budget, auto prefers chunks. The budget is a fraction of all memory and not of the
free memory, because a captured or compiled step keeps its choice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from kernels import hardware
from kernels.core.operator import accumulator, traced_as_constant

LONG = 2048 * 2048  # weights per head
CHUNK = 1024  # queries and keys per chunk, at most
LEAST_CHUNK = 64
BUDGET_FRACTION = 0.125  # fraction of all memory
COPIES = 3  # scores, weights, and weights being rounded or computed


@traced_as_constant
def budget_bytes(device_type: str, device_index: int | None) -> int:
    """Return the bytes that attention may use for its weights on a device."""
    where = device_type if device_index is None else f"{device_type}:{device_index}"
    return int(BUDGET_FRACTION * hardware.of(where).total_bytes)


def weights_bytes(batch: int, heads: int, length: int, keys: int, element: int = 4) -> int:
    """Return the bytes of the full matrix of weights, with its copies."""
    return COPIES * element * batch * heads * length * keys


def chunk_length(batch: int, heads: int, element: int, budget: int) -> int:
    """Return queries, and keys, per chunk: the largest power of two that fits the budget."""
    chunk = CHUNK
    while chunk > LEAST_CHUNK and weights_bytes(batch, heads, chunk, chunk, element) > budget:
        chunk //= 2
    return chunk


def chunk_of(q: Tensor) -> int:
    """Return ``chunk_length`` for queries [B, ..., S, D] on their device."""
    element = accumulator(q.dtype).itemsize
    budget = budget_bytes(q.device.type, q.device.index)
    return chunk_length(q.shape[0], math.prod(q.shape[1:-2]), element, budget)


def prefers_full_matrix(
    batch: int,
    heads: int,
    length: int,
    keys: int,
    device_type: str,
    device_index: int | None = None,
    element: int = 4,
) -> bool:
    """Return True if the full matrix of weights, ``element`` bytes each, is preferred to chunks."""
    needed = weights_bytes(batch, heads, length, keys, element)
    return length * keys < LONG and needed <= budget_bytes(device_type, device_index)


class WeightsMemory(NamedTuple):
    """Bytes that attention holds for its weights, besides inputs, output, and their gradients.

    Relative to a fused kernel, which saves the logarithm of each row's sum and no weights.
    """

    saved: int = 0  # kept for the backward pass
    forward: int = 0  # peak where a backward pass follows, including the saved bytes
    inference: int = 0  # peak where none does
    backward: int = 0  # peak in the backward pass, including the saved bytes


def weights_memory(
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
) -> WeightsMemory:
    """Return the bytes that ``backend`` holds for its weights; inputs have ``element`` bytes.

    Zero for every backend that does not write its weights to memory. ``masks`` is how many masks
    [length, keys] are written: none, one, or one per sequence; ``budget`` limits a chunk's bytes.
    """
    pairs, narrow = batch * heads * length * keys, element < 4
    # Neither saves what a fused kernel's backward pass needs: each row's sum, and the output.
    sums, output = 4 * batch * heads * length, element * batch * heads * length * dim
    if backend == "manual":
        # The softmax, its product with the mask and the rounded product, where they differ; both
        # masks.
        saved = pairs * (4 + element * (masked or narrow)) + 2 * length * keys * masks
        at_most = pairs * (12 if masked else 8)
        return WeightsMemory(
            saved - sums,
            at_most + 2 * pairs * narrow,
            at_most + 2 * pairs * (narrow and not masked),
            12 * pairs - output,
        )
    if backend == "sdpa_math":
        # The softmax, and instead of the inputs the scaled queries and keys, with values if these
        # are not inputs: in FP32, each head its own. Their sources stay for the duration of the
        # call.
        queries, keyed = (4 * batch * heads * dim * n for n in (length, keys))
        own = narrow or groups < heads
        saved = 4 * pairs + queries + keyed * (1 + own)
        instead = element * batch * dim * (heads * length + groups * keys * (1 + own)) + sums
        unscaled = queries * narrow + keyed * own
        mask = 4 * length * keys * masks
        ungrouped = 2 * keyed * groups // heads if narrow and groups < heads else 0
        return WeightsMemory(
            saved - instead,
            4 * pairs + saved + unscaled + ungrouped + mask - output,
            8 * pairs + unscaled + keyed * own + ungrouped + mask,
            12 * pairs + queries + 2 * keyed - instead - output,
        )
    if backend == "chunked":
        chunk = chunk_length(batch, heads, 4, budget)
        piece = batch * heads * min(chunk, length) * min(chunk, keys)
        # While the next scores are computed, the last scores and weights still exist.
        several = keys > chunk
        rows = 2 * 4 * batch * heads * min(chunk, length) * dim  # the running sum, before and after
        gradients = 4 * batch * dim * (heads * length + 2 * groups * keys)
        forward = (18 if several else 12) * piece + rows
        return WeightsMemory(0, forward, forward, (24 if several else 20) * piece + gradients)
    return WeightsMemory()


def why_not_chunked(q_BHSD: Tensor, k_BGTD: Tensor) -> str | None:
    """Return why ``auto`` avoids chunks; None if it prefers them."""
    batch, heads, length, _ = q_BHSD.shape
    sizes = batch, heads, length, k_BGTD.shape[2]
    device, element = q_BHSD.device, accumulator(q_BHSD.dtype).itemsize
    if not prefers_full_matrix(*sizes, device.type, device.index, element):
        return None
    return (
        f"is used only from {LONG} weights per head on, not for {length * sizes[-1]}, or if all "
        f"weights need more than {budget_bytes(device.type, device.index) >> 20} MiB, not "
        f"{weights_bytes(*sizes, element) >> 20} MiB"
    )
