"""Contenders timed in rounds: short blocks of calls, one block of each contender, in random order.

Neighbouring calls go together and clocks drift, so that one contender after the other would be
compared at different speeds of the same GPU. What the blocks of one round share cancels in the
ratio of their medians, and the random order gives what is left of it a random sign.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels._timing import times_us, warm_up

ROUNDS = 16  # where no time is given
CALLS = 5  # of a block, at most: its median lets a straggler pass
BLOCK_US = 10_000.0  # a block of slower calls has fewer of them


@dataclass
class Timings:
    """Single calls of one contender in the order in which they ran.

    ``rounds``: of each call, from 1 on. ``began_s``: when its block did, by ``time.perf_counter``.
    ``problem``: why there are no more.
    """

    us: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    began_s: list[float] = field(default_factory=list)
    problem: str = ""


Enough = Callable[[Sequence[Timings]], bool]


def alternate(
    calls: Sequence[Callable[[], Any]],
    device: str,
    *,
    tell: Callable[[], str],
    before: Callable[[], None] = lambda: None,
    budget_s: float | None = None,
    deadline: float = float("inf"),
    enough: Enough = lambda _: False,
    seed: int = 0,
) -> list[Timings]:
    """Time all of them, warm, with cold caches on a GPU; one result for each.

    It ends after ``ROUNDS`` rounds, or, where ``budget_s`` is given, before the round that can be
    expected to end later than so many seconds from the first; after one round at the least. It also
    ends once ``enough`` says so of the contenders that are left, and at the ``deadline``, of
    ``time.monotonic``. ``before`` runs before every block. One that fails has what ``tell`` says
    of it, while it is handled, as its problem, and the others go on.
    """
    found = [Timings() for _ in calls]
    sizes = [0] * len(calls)
    left = list(range(len(calls)))

    def guarded(place: int, act: Callable[[int], None]) -> None:
        try:
            act(place)
        except Exception:  # noqa: BLE001  the others are still to be timed
            found[place].problem = tell()
            left.remove(place)

    def prepare(place: int) -> None:
        before()
        warm_up(calls[place])
        (us,) = times_us(calls[place], 1, device)
        sizes[place] = int(min(max(1.0, BLOCK_US / max(us, 1e-3)), CALLS))

    def block(place: int) -> None:
        before()
        began_s = time.perf_counter()
        us = times_us(calls[place], sizes[place], device)
        timings = found[place]
        timings.us += us
        timings.rounds += [number] * len(us)
        timings.began_s += [began_s] * len(us)

    draw = random.Random(seed)
    for place in tuple(left):
        guarded(place, prepare)
    began, number = time.monotonic(), 0
    while left and time.monotonic() <= deadline:
        number += 1
        order = list(left)
        draw.shuffle(order)
        for place in order:
            guarded(place, block)
        spent_s = time.monotonic() - began
        another_s = spent_s * (number + 1) / number
        over = number >= ROUNDS if budget_s is None else another_s > budget_s
        if over or enough([found[place] for place in left]):
            break
    for place in left:
        if not found[place].us:
            found[place].problem = "not timed: out of time"
    return found
