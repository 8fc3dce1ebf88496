"""Timing in rounds: short blocks of calls, one block of each contender, in random order.

Neighbouring calls are correlated and clocks drift, so timing one contender after the other would
compare them at different speeds of the same GPU. Effects that the blocks of one round share cancel
in the ratio of their medians, and the random order gives the remainder a random sign.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.measure.timing import MOST_EVICTIONS, evictions_to_hide, times_us, warm_up

ROUNDS = 16  # rounds without a time budget
CALLS = 5  # per block, at most: the median ignores a straggler
BLOCK_US = 10_000.0  # a block of slower calls has fewer of them


@dataclass
class Timings:
    """Single calls of one contender in the order in which they ran.

    ``rounds``: the round of each call, from 1 on. ``began_s``: start of its block, by
    ``time.perf_counter``. ``problem``: why there are no more.
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
    describe_failure: Callable[[], str],
    before: Callable[[], None] = lambda: None,
    budget_s: float | None = None,
    deadline: float = float("inf"),
    enough: Enough = lambda _: False,
    seed: int = 0,
) -> list[Timings]:
    """Time all calls, warm, with cold caches on a GPU; return one result for each.

    It ends after ``ROUNDS`` rounds. With ``budget_s`` it ends instead before the round that would
    end later than so many seconds from the first; it runs one round at least. It also ends once
    ``enough`` returns True for the contenders that are left, and at the ``deadline``, by
    ``time.monotonic``. ``before`` runs before every block. If a contender fails, its problem is
    what ``describe_failure`` returns while the exception is handled, and the others go on.
    """
    results = [Timings() for _ in calls]
    sizes, evictions = [0] * len(calls), [1] * len(calls)
    left = list(range(len(calls)))

    def guarded(index: int, act: Callable[[int], None]) -> None:
        try:
            act(index)
        except Exception:  # noqa: BLE001  the other contenders are still to be timed
            results[index].problem = describe_failure()
            left.remove(index)

    def prepare(index: int) -> None:
        before()
        warm_up(calls[index])
        evictions[index] = evictions_to_hide(calls[index], device)
        (us,) = times_us(calls[index], 1, device, evictions[index])
        sizes[index] = int(min(max(1.0, BLOCK_US / max(us, 1e-3)), CALLS))

    def block(index: int) -> None:
        before()
        began_s = time.perf_counter()
        us = times_us(calls[index], sizes[index], device, evictions[index])
        timings = results[index]
        timings.us += us
        timings.rounds += [number] * len(us)
        timings.began_s += [began_s] * len(us)

    draw = random.Random(seed)
    for index in tuple(left):
        guarded(index, prepare)
    # More evictions make some kernels 1 % slower, so that all calls have equally many, except those
    # that wait for the GPU themselves.
    most = max((evictions[i] for i in left if evictions[i] < MOST_EVICTIONS), default=1)
    evictions = [max(n, most) for n in evictions]
    began, number = time.monotonic(), 0
    while left and time.monotonic() <= deadline:
        number += 1
        order = list(left)
        draw.shuffle(order)
        for index in order:
            guarded(index, block)
        spent_s = time.monotonic() - began
        another_s = spent_s * (number + 1) / number
        over = number >= ROUNDS if budget_s is None else another_s > budget_s
        if over or enough([results[index] for index in left]):
            break
    for index in left:
        if not results[index].us:
            results[index].problem = "not timed: out of time"
    return results
