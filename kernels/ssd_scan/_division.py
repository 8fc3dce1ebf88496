"""Division of a scan into chunks, segments and tiles, and the memory that it needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kernels.core.operator import cdiv, remembered
from kernels.core.triton_helpers import INTERPRETED, power_of_two, sm_count

CHUNK = 64  # default; results do not depend on it
# Cost of the additional walk over a chunk, and of a segment's states, in the time of a chunk of the
# scan; measured on an H200 with P = 64 and N = 128.
WALK, STATE = 0.3, 1.0


class Cut(NamedTuple):
    """Division of one scan into segments and chunks, and the constants of its kernels.

    A segment has ``per_segment`` chunks of ``chunk`` steps; the last of all ``n_chunks`` may lie
    past the end. In the backward pass one program sums dB and dC of ``together`` heads.
    """

    chunk: int
    per_segment: int
    n_segments: int
    n_chunks: int
    together: int
    constants: dict[str, Any]


def chunks(dim: int, n_states: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return the least and the largest chunk of the kernels."""
    # Matrix units do not multiply FP32: large products need more registers than there are.
    large = dtype == torch.float32 and dim * n_states > 1024
    return _least(dtype.itemsize), 16 if large else CHUNK


def chunk_of(
    requested: int | None, length: int, dim: int, n_states: int, dtype: torch.dtype
) -> int:
    """Return the chunk that the kernels use; ``requested`` None is the default."""
    least, most = chunks(dim, n_states, dtype)
    return max(least, min(requested or most, power_of_two(length)))


@remembered
def cut_of(
    batch: int,
    length: int,
    heads: int,
    dim: int,
    groups: int,
    n_states: int,
    dtype: torch.dtype,
    requested: int | None,
    multiprocessors: int,
) -> Cut:
    """Divide a scan; ``requested``: steps per chunk, None for the default."""
    chunk = chunk_of(requested, length, dim, n_states, dtype)
    n_chunks = cdiv(length, chunk)
    # Registers leave room for two. Interpreted, the result must not depend on the machine.
    at_once = 8 if INTERPRETED else 2 * multiprocessors
    per_segment = cdiv(n_chunks, _segments(batch * heads, n_chunks, at_once))
    n_segments = cdiv(n_chunks, per_segment)
    n_chunks = per_segment * n_segments
    block_p, block_n = tile(dim, n_states, dtype.itemsize)
    return Cut(
        chunk,
        per_segment,
        n_segments,
        n_chunks,
        _heads_together(heads, groups, batch * n_chunks * heads, multiprocessors),
        {
            "P": dim, "N": n_states, "PRECISE": dtype == torch.float32, "Q": chunk,
            "BLOCK_P": block_p, "BLOCK_N": block_n,
        },
    )  # fmt: skip


def _segments(states: int, n_chunks: int, at_once: int) -> int:
    """Return into how many segments to cut each of the ``states``: the fastest by a model.

    ``at_once`` programs run at the same time. Costs are in the time that one of them takes for a
    chunk; it also takes that time to begin.
    """

    def cost(segments: int) -> float:
        scan = cdiv(states * segments, at_once) * (1 + cdiv(n_chunks, segments))
        more = (WALK * n_chunks + STATE * segments) * states / at_once
        return scan + more * (segments > 1)

    return min(range(1, n_chunks + 1), key=cost)


def _heads_together(heads: int, groups: int, programs: int, multiprocessors: int) -> int:
    """Return how many heads' dB and dC one program sums: as many as leave enough programs."""
    together = 1
    while (heads // groups) % (2 * together) == 0 and together < 16:
        if programs // (2 * together) < 8 * multiprocessors and not INTERPRETED:
            break
        together *= 2
    return together


class ScanMemory(NamedTuple):
    """Bytes that one scan holds besides its inputs and y."""

    saved: int  # kept for the backward pass: the initial states of segments
    # Peak in the backward pass: the states at all chunks and their gradients, those at the ends of
    # segments, and the gradients of B and C before their sum over heads.
    backward: int
    forward: int  # peak: the initial states of segments, the final ones, steps and decays
    final: int  # the part that is returned


def scan_memory(
    batch: int, length: int, heads: int, dim: int, groups: int, n_states: int, dtype: torch.dtype
) -> ScanMemory:
    """Return the bytes that one scan holds; its division depends on the GPU."""
    cut = cut_of(batch, length, heads, dim, groups, n_states, dtype, None, sm_count(None))
    state, parts = batch * heads * dim * n_states, heads // cut.together
    saved = 4 * state * cut.n_segments if cut.n_segments > 1 else 0
    numbers = 2 * state * cut.n_chunks + 2 * batch * length * parts * n_states
    decays = (4 + 8) * batch * heads * cut.n_chunks * cut.chunk
    final = 4 * state
    backward = numbers * dtype.itemsize + decays + (saved + final if saved else 0)
    return ScanMemory(saved, backward, saved + final + decays, final)


def _least(element_size: int) -> int:
    """Return the least size of a tile.

    Triton 3.6 computes wrong products of 16-bit tiles narrower than 64 on Hopper, or reads out of
    bounds (seen with 64 x 16 and 64 x 32; triton-lang/triton#11366).
    """
    return 16 if element_size == 4 or INTERPRETED else 64


def tile(dim: int, n_states: int, element_size: int) -> tuple[int, int]:
    """Return the tile that holds one head's state."""
    least = _least(element_size)
    return max(least, power_of_two(dim)), max(least, power_of_two(n_states))
