"""In which order programs take the tiles of attention's kernels: some heads at a time.

Every tile of a head reads that head's keys and values (or queries and gradients, where tiles are of
keys). The first tiles of all heads, then their second ones, and so on, would balance causal rows
and stream what all heads have in every round of programs: from memory, where the L2 does not hold
it. With a quarter as many heads at a time as there are multiprocessors, what is read once serves
four of them, the longest tiles of these heads come first all the same, and rounds come out even.
Where the L2 holds it all, and programs do not stay, all heads at a time are as good or better.
"""

from __future__ import annotations

from torch import Tensor

from kernels._triton import gluon, l2_bytes, sm_count, tl, triton

_LANGUAGE = tl  # without which Triton's interpreter takes no function of a module

SHARERS = 4  # multiprocessors that read of one head at a time
ALL = 1 << 16  # heads: times the tiles of one, it must not pass 32 bits


def heads_together(k: Tensor, balanced: bool = False) -> int:
    """How many heads of keys are worked on at a time on their GPU.

    ``balanced``: all of them, if half of its L2 holds all keys and values.
    """
    if balanced and 4 * k.numel() * k.element_size() <= l2_bytes(k.device.index):
        return ALL
    return max(2, sm_count(k.device.index) // SHARERS)


def place_of_tile(tile, n_groups, n_blocks, TOGETHER):
    """The group of a tile, and the place of the tile among the ``n_blocks`` of its group."""
    each = TOGETHER * n_blocks
    first = tile // each * TOGETHER
    groups = min(n_groups - first, TOGETHER)
    within = tile % each
    return first + within % groups, within // groups


# Inductor copies a function by the name that it was defined with.
place_of_hopper_tile = gluon.jit(place_of_tile)
place_of_tile = triton.jit(place_of_tile)
