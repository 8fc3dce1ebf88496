"""Detection of steps with results that are not finite; no step waits for it.

A sum is not finite if one of its terms is not. On the GPU the sum is queued behind the step and
read once it is done. A NaN in training stays NaN, so it is enough to look now and then. Infinities
may belong to the model, as those of a mask. Then each batch of the ring is checked once, which
takes one pass, and from then on NaN and infinities are counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from workbench.runner.numerics.masked_inf import Counts, count
from workbench.runner.numerics.outputs import measurable

PERIOD_NS = 500_000_000
_NONE: Counts = (0.0, 0.0, 0.0)


def _nothing_infinite(batch: int) -> Counts | None:
    return None


class FiniteWatch:
    """Checks the outputs of one segment; ``poll`` is called between steps.

    ``expected`` returns the allowed counts of non-finite outputs of a batch; None: none is allowed.
    """

    def __init__(
        self,
        device: torch.device,
        expected: Callable[[int], Counts | None] = _nothing_infinite,
    ) -> None:
        on_gpu = device.type == "cuda"
        self._copy = torch.empty(len(_NONE), dtype=torch.float64, pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None
        self._expected = expected
        self._known: dict[int, Counts] = {}  # by batch; complete after the first entry
        self._batch = 0  # the batch that was checked last
        self._taken = False
        self._due_ns = 0
        self.triggered = False  # something was not finite

    def poll(self, output: Any, batch: int = 0) -> bool:
        """Look if a look is due; True the first time that something is found not to be finite."""
        if self.triggered:
            return False
        if not self._taken:
            if time.perf_counter_ns() < self._due_ns:
                return False
            if not (outputs := measurable(output)):
                return False
            if self._known:
                self._copy.copy_(count(outputs), non_blocking=True)
            else:
                total = sum(values.detach().sum(dtype=torch.float32) for values in outputs)
                self._copy.copy_(total, non_blocking=True)
            if self._event is not None:
                self._event.record()
            self._taken, self._batch = True, batch
        if self._event is not None and not self._event.query():
            return False
        self._taken = False
        self.triggered = not self._is_right()
        self._due_ns = time.perf_counter_ns() + PERIOD_NS
        return self.triggered

    def _is_right(self) -> bool:
        nan, positive, negative = self._copy.tolist()
        counts = nan, positive, negative
        counted = bool(self._known)
        if counts == _NONE if counted else math.isfinite(nan):
            return True
        if self._batch not in self._known:
            if (expected := self._expected(self._batch)) is None:
                return False
            self._known[self._batch] = expected
        return not counted or counts == self._known[self._batch]
