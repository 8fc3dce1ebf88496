"""In which order programs take the tiles of attention's kernels: some heads at a time.

Every tile of a head reads that head's keys and values (or queries and gradients, where tiles are of
keys). The first tiles of all heads, then their second ones, and so on, would balance causal rows
and stream what all heads have in every round of programs: from memory, where the L2 does not hold
it. With a quarter as many heads at a time as there are multiprocessors, what is read once serves
four of them, the longest tiles of these heads come first all the same, and rounds come out even.
"""

from __future__ import annotations

from torch import Tensor

from kernels._triton import gluon, sm_count, tl, triton

_LANGUAGE = tl  # without which Triton's interpreter takes no function of a module

SHARERS = 4  # multiprocessors that read of one head at a time


def heads_together(x: Tensor) -> int:
    """How many heads (or groups of heads that are packed) are worked on at a time on x's GPU."""
    return max(2, sm_count(x.device.index) // SHARERS)


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
