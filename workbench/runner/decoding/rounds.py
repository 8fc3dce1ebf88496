"""Rounds of decoding steps: the work before the first step of each round, and its duration.

Decoding fills a cache step by step and starts again when it is full; generation then processes
another prompt. That work runs between two steps. It is measured separately and is not step time.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

import torch

from workbench.runner.instruments import timing

Begin = Callable[[int, bool], None]  # the round's number, and whether it follows another
KEPT = 1000  # durations of starts that are stored until they are read


class Rounds:
    """Sequence of rounds of ``length`` steps."""

    def __init__(self, length: int, begin: Begin, device: torch.device) -> None:
        self.length = length
        self.number = 0  # number of the current round
        self._begin = begin
        self._left = 0  # steps of the round
        self._on_gpu = device.type == "cuda"
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=KEPT)
        self._spent_ms: deque[float] = deque(maxlen=KEPT)

    @property
    def done(self) -> int:
        """Requested steps of the current round."""
        return self.length - self._left

    def ready(self) -> bool:
        """Start a new round if the last one is finished. Return True if it did."""
        begins = self._left == 0
        if begins:
            self.number += 1
            self._measure(True)
        self._left -= 1
        return begins

    def restart(self) -> None:
        """Start the current round again, whatever its progress.

        Earlier durations are dropped: the first start also compiles and allocates.
        """
        self._pending.clear()
        self._spent_ms.clear()
        self._measure(False)

    def go_to(self, number: int, completed_steps: int) -> None:
        """Continue round ``number`` after so many steps; its state is restored already."""
        self.number, self._left = number, self.length - completed_steps

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the round's number and progress at the end, and the durations not yet read."""
        number, left = self.number, self._left
        pending, spent_ms = self._pending.copy(), self._spent_ms.copy()
        try:
            yield
        finally:
            self.number, self._left = number, left
            self._pending, self._spent_ms = pending, spent_ms

    def spent_ms(self) -> list[float]:
        """Return the duration of each start that has ended since the last call; never waits."""
        while self._pending and timing.has_passed(self._pending[0][1]):
            start, stop = self._pending.popleft()
            self._spent_ms.append(timing.elapsed_ms(start, stop))
        durations_ms = list(self._spent_ms)
        self._spent_ms.clear()
        return durations_ms

    def _measure(self, following: bool) -> None:
        self._left = self.length
        if self._on_gpu:
            start, stop = (timing.Event(enable_timing=True) for _ in range(2))
            timing.record(start)
            self._begin(self.number, following)
            timing.record(stop)
            self._pending.append((start, stop))
        else:
            began_ns = timing.now_ns()
            self._begin(self.number, following)
            self._spent_ms.append((timing.now_ns() - began_ns) * 1e-6)
