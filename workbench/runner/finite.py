"""Whether what steps give is still finite, looked at between them without making any step wait.

A sum is not finite where one of its terms is not. On the GPU it is queued behind the step and read
once it is done; what is NaN in training stays so, and a look now and then finds it.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from workbench.runner.outputs import measurable

PERIOD_NS = 500_000_000


class FiniteWatch:
    """Looks at the outputs of one segment; ``poll`` is called between steps."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._copy = torch.empty((), dtype=torch.float32, pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None
        self._taken = False
        self._due_ns = 0
        self.found = False  # something was not finite

    def poll(self, output: Any) -> bool:
        """Look if a look is due; True the first time that something is found not to be finite."""
        if self.found:
            return False
        if not self._taken:
            if time.perf_counter_ns() < self._due_ns:
                return False
            if not (found := measurable(output)):
                return False
            total = sum(each.detach().sum(dtype=torch.float32) for each in found)
            self._copy.copy_(total, non_blocking=True)
            if self._event is not None:
                self._event.record()
            self._taken = True
        if self._event is not None and not self._event.query():
            return False
        self._taken = False
        self._due_ns = time.perf_counter_ns() + PERIOD_NS
        self.found = not math.isfinite(float(self._copy))
        return self.found
