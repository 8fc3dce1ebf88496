"""Slowness of the machine at this moment, so that limits in seconds mean the same on each.

Limits are for a machine without other work of which one core adds 1,000 numbers in Python 3.11 in
10 µs. A machine in use or of a slower clock gets as much more time as it needs for the same
additions; a faster machine gets the limit itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SUM_S = 10e-6
_SUMS = 3000


def slowness(clock: Callable[[], float] = time.monotonic) -> float:
    """Return how many times as long as on the reference machine work takes now, at least 1."""
    began = clock()
    for _ in range(_SUMS):
        sum(range(1000))
    return max(1.0, (clock() - began) / (_SUMS * SUM_S))
