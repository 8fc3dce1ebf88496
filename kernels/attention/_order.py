"""Order in which programs take the tiles of attention's kernels: some heads at a time.

Every tile of a head reads that head's keys and values (or queries and gradients, if tiles are of
keys). Taking the first tiles of all heads, then their second ones, and so on, would balance causal
rows. But every round of programs would then read all heads' tensors from memory, unless the L2
holds them. With a quarter as many heads at a time as there are multiprocessors, each read serves
four of them, the longest tiles of these heads still come first, and rounds have equal lengths. If
the L2 holds everything, and programs are not persistent, all heads at a time are as good or better.
"""

from __future__ import annotations

from torch import Tensor

from kernels.core.triton_helpers import gluon, l2_bytes, sm_count, tl, triton

_LANGUAGE = tl  # Triton's interpreter accepts no function of a module without it

SHARERS = 4  # multiprocessors that read one head at a time
ALL = 1 << 16  # heads
MOST_TILES = (1 << 31) // ALL - 1  # tiles of one head; kernels multiply both in 32 bits


def heads_together(k: Tensor, balanced: bool = False, tiles: int = 0) -> int:
    """Return how many key heads to work on at a time on their GPU.

    ``balanced``: all of them, if half of its L2 holds all keys and values, and a head has no more
    ``tiles`` than kernels can count.
    """
    fits = 4 * k.numel() * k.element_size() <= l2_bytes(k.device.index)
    if balanced and fits and tiles <= MOST_TILES:
        return ALL
    return max(2, sm_count(k.device.index) // SHARERS)


def tile_coordinates(tile, n_groups, n_blocks, TOGETHER):
    """Return the group of a tile, and the tile's index among the ``n_blocks`` of its group."""
    tiles_per_round = TOGETHER * n_blocks
    first = tile // tiles_per_round * TOGETHER
    groups = min(n_groups - first, TOGETHER)
    within = tile % tiles_per_round
    return first + within % groups, within // groups


# Inductor copies a function by the name in its definition.
hopper_tile_coordinates = gluon.jit(tile_coordinates)
tile_coordinates = triton.jit(tile_coordinates)
