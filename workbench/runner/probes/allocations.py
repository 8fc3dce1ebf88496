"""What steps allocate: whether anything is left behind, and how high the memory rises.

On a GPU the caching allocator counts. On the CPU nothing does, so there the profiler records each
allocation and release of a tensor: exact to the byte, and at a cost per operation, so that nothing
may be timed meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Allocations:
    """Bytes of tensors: left behind by the steps, and the highest above those before them."""

    left: int
    highest: int


def of(steps: Callable[[], None], device: torch.device) -> Allocations:
    """Run ``steps``, which must leave nothing running, and tell what they allocated."""
    return _on_gpu(steps, device) if device.type == "cuda" else _on_cpu(steps)


def _on_gpu(steps: Callable[[], None], device: torch.device) -> Allocations:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    steps()
    torch.cuda.synchronize(device)
    return Allocations(
        torch.cuda.memory_allocated(device) - before,
        torch.cuda.max_memory_allocated(device) - before,
    )


def _on_cpu(steps: Callable[[], None]) -> Allocations:
    from torch.autograd import profiler  # slow to import, and asked for once

    with profiler.profile(use_cpu=True, profile_memory=True) as profile:
        steps()
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in profile.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == torch.autograd.DeviceType.CPU
    )
    levels = [0, *itertools.accumulate(count for _, count in changes)]
    return Allocations(levels[-1], max(levels))
