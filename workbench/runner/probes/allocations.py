"""What steps allocate: whether anything is left behind, and how high the memory rises.

On a GPU the caching allocator counts. On the CPU nothing does, so there the profiler records each
allocation and release of a tensor: exact to the byte, and at a cost per operation, so that nothing
may be timed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._profiler import _EventType


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
    roots = profile.kineto_results.experimental_event_tree()
    level = highest = 0
    sent: set[int] = set()  # where what collectives allocate for themselves lies
    for one, in_collective in sorted(_changes(roots), key=lambda each: each[0].start_time_ns):
        address, count = one.extra_fields.ptr, one.extra_fields.alloc_size
        if in_collective and count > 0:
            sent.add(address)
        elif address in sent and count < 0:
            sent.discard(address)
        else:
            sent.discard(address)  # another thread has freed it
            level += count
            highest = max(highest, level)
    return Allocations(level, highest)


def _changes(events: Sequence[Any], in_collective: bool = False) -> Iterator[tuple[Any, bool]]:
    """Allocations and releases on the CPU among these events, and which of them collectives made.

    Those of a collective its own thread frees, or this one, whichever is the last to let go of it:
    of other threads the profiler is told nothing.
    """
    for one in events:
        if one.tag == _EventType.Allocation:
            if one.extra_fields.device.type == "cpu":
                yield one, in_collective
        else:
            yield from _changes(one.children, in_collective or one.name.startswith("c10d::"))
