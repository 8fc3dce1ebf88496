"""Limits on the output of another process: the length of a line, and the rate of failures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import IO

LONGEST_LINE = 16 << 20  # bytes; the catalogue, the longest message, has less than one of these
PERIOD_S = 1.0
PER_PERIOD = 5  # failures that are reported one by one


def bounded_lines(stream: IO[bytes], most: int = LONGEST_LINE) -> Iterator[bytes]:
    """Yield the lines of a stream; of a longer line the first ``most`` bytes and a line end.

    The rest of it is read and dropped, so that an endless line takes no memory.
    """
    while line := stream.readline(most):
        is_cut = len(line) == most and not line.endswith(b"\n")
        while is_cut and not (dropped := stream.readline(1 << 16)).endswith(b"\n") and dropped:
            pass
        yield line + b"\n" if is_cut else line


class Throttle:
    """Lets a few events of each period pass and counts the others."""

    def __init__(self, per_period: int = PER_PERIOD) -> None:
        self._per_period = per_period
        self._began_s = -PERIOD_S
        self._passed = 0
        self._left_out = 0

    def passes(self) -> bool:
        """Count one event; return True if it should be reported separately."""
        now = time.monotonic()
        if now - self._began_s >= PERIOD_S:
            self._began_s, self._passed = now, 0
        self._passed += 1
        if self._passed <= self._per_period:
            return True
        self._left_out += 1
        return False

    def due(self, *, at_end: bool = False) -> int:
        """Return how many events were counted and not told yet, once their period is over."""
        if not at_end and time.monotonic() - self._began_s < PERIOD_S:
            return 0
        count, self._left_out = self._left_out, 0
        return count
