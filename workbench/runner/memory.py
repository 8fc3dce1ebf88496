"""Memory between steps: the caching allocator's counters, or the resident set on the CPU.

Reading the allocator takes tens of microseconds, so it is sampled and not read at every step.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import psutil
import torch


class Memory(NamedTuple):
    """Bytes now, and the highest allocated since the phase began; NaN where unknown."""

    allocated: float
    reserved: float
    peak: float


class GpuMemory:
    """Samples PyTorch's caching allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.replayed_bytes = 0  # what a CUDA graph uses at every replay, unseen by the allocator

    def sample(self) -> Memory:
        """The allocator's counters now."""
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        peak = max(allocated["peak"], allocated["current"] + self.replayed_bytes)
        return Memory(allocated["current"], reserved["current"], peak)

    def new_phase(self) -> None:
        """Begin a new peak."""
        torch.cuda.reset_peak_memory_stats(self._device)


class HostMemory:
    """Samples the resident set of this process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._peak = 0.0
        self.replayed_bytes = 0

    def sample(self) -> Memory:
        """The resident set now."""
        resident = float(self._process.memory_info().rss)
        self._peak = max(self._peak, resident)
        return Memory(resident, math.nan, self._peak)

    def new_phase(self) -> None:
        """Begin a new peak."""
        self._peak = 0.0


def make_memory(device: torch.device) -> GpuMemory | HostMemory:
    """The sampler for this device."""
    return GpuMemory(device) if device.type == "cuda" else HostMemory()
