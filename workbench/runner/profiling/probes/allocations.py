"""Memory that steps allocate: the bytes that remain afterwards, and the peak.

On a GPU the caching allocator counts. The CPU's allocator does not count, so the profiler records
each allocation and release of a tensor there. That is exact to the byte, but it slows down every
operation: nothing can be timed at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._profiler import _EventType


@dataclass(frozen=True)
class Allocations:
    """Bytes of tensors that remain after the steps, and their peak; both relative to the start."""

    left: int
    highest: int


def of(steps: Callable[[], None], device: torch.device) -> Allocations:
    """Run ``steps``, which must leave no work pending, and return their allocations."""
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
    from torch.autograd import profiler  # slow to import, and needed once

    with profiler.profile(use_cpu=True, profile_memory=True) as profile:
        steps()
    roots = profile.kineto_results.experimental_event_tree()
    level = highest = 0
    of_collectives: set[int] = set()  # addresses that a collective allocated for itself
    for event, in_collective in sorted(_changes(roots), key=lambda pair: pair[0].start_time_ns):
        address, count = event.extra_fields.ptr, event.extra_fields.alloc_size
        if in_collective and count > 0:
            of_collectives.add(address)
        elif address in of_collectives and count < 0:
            of_collectives.discard(address)
        else:
            of_collectives.discard(address)  # another thread has freed it
            level += count
            highest = max(highest, level)
    return Allocations(level, highest)


def _changes(events: Sequence[Any], in_collective: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield the allocations and releases on the CPU, each with whether a collective made it.

    A collective's memory is freed by its own thread or by this one, whichever releases it last. The
    profiler records nothing of other threads.
    """
    for event in events:
        if event.tag == _EventType.Allocation:
            if event.extra_fields.device.type == "cpu":
                yield event, in_collective
        else:
            yield from _changes(event.children, in_collective or event.name.startswith("c10d::"))
