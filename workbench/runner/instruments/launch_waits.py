"""The share of a step in which a GPU waits until its host has launched the next kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TRIES = 3
SLEEP_STEPS = 1.5  # how long the GPU sleeps, in steps
CYCLES_PER_MS = 2_000_000  # at a GPU's highest clock; at a lower clock it sleeps longer


def waiting_share(step: Callable[[], Any], step_ms: float) -> float:
    """Return which share of a step of ``step_ms`` the GPU waits at least, 0 to 1.

    The GPU sleeps while the host launches a step, so that it then runs the kernels without waiting.
    Its queue has room for about a thousand launches. The waits of longer steps, and of those that
    read results on the host, are seen only in part.
    """
    shortest_ms = step_ms
    for _ in range(TRIES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(int(SLEEP_STEPS * step_ms * CYCLES_PER_MS))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        shortest_ms = min(shortest_ms, begin.elapsed_time(end))
    return 1 - shortest_ms / step_ms
