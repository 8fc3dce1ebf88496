"""A rank's time in its marked steps: computing, waiting in collectives, or neither.

On a GPU the device's kernels tell, from the first to the last. On the CPU the innermost operators
are computation, and gloo's threads show how long collectives run. A collective takes as long as its
slowest rank: waiting is also for other ranks. Communication that runs beside computation is hidden,
and not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sessions.tracing import kinds
from sessions.tracing.trace import STEP, Trace

_GLOO = "gloo:"  # prefix of a collective that a thread of gloo runs


@dataclass(frozen=True)
class Lane:
    """Milliseconds of one step; ``computing``, ``waiting`` and ``idle`` add up to ``step``."""

    step_ms: float
    computing_ms: float
    waiting_ms: float
    communication_ms: float

    @property
    def idle_ms(self) -> float:
        """Time in which the rank neither computed nor communicated."""
        return max(0.0, self.step_ms - self.computing_ms - self.waiting_ms)


def lane_of(trace: Trace, steps: int) -> Lane:
    """Return the lane of a trace whose marks contain ``steps`` steps in total."""
    if trace.work:
        kinds_of_work = [
            (work.start, work.stop, kinds.kind_of(work.name) == kinds.COMMUNICATION)
            for work in trace.work
        ]
        first, last = trace.work[0].start, max(work.stop for work in trace.work)
        total = last - first
    else:
        kinds_of_work = list(_host_work(trace))
        total = sum(trace.spans[step].stop - trace.spans[step].start for step in trace.steps)
    computing = _union((start, stop) for start, stop, collective in kinds_of_work if not collective)
    collectives = _union((start, stop) for start, stop, collective in kinds_of_work if collective)
    active = _union([*computing.tolist(), *collectives.tolist()])
    computed, communicated, busy = map(_length, (computing, collectives, active))
    scale = 1 / (1e3 * steps)
    return Lane(
        step_ms=total * scale,
        computing_ms=computed * scale,
        waiting_ms=(busy - computed) * scale,
        communication_ms=communicated * scale,
    )


def _host_work(trace: Trace) -> Iterable[tuple[float, float, bool]]:
    """Yield the innermost spans of marked steps: start, stop, and whether it is a collective.

    An operator that only begins a collective or waits for one neither computes nor communicates.
    """
    parents = {span.parent for span in trace.spans}
    last = max(trace.spans[step].stop for step in trace.steps)
    for index, span in enumerate(trace.spans):
        if index in parents or span.name == STEP or not trace.within(index):
            continue
        is_collective = span.name.startswith(_GLOO)
        if is_collective or kinds.kind_of(span.name) != kinds.COMMUNICATION:
            yield span.start, min(span.stop, last), is_collective


def _union(intervals: Iterable[Iterable[float]]) -> NDArray:
    """Return the intervals (n, 2) joined where they overlap, ascending."""
    ordered = np.array(sorted(map(tuple, intervals)), np.float64).reshape(-1, 2)
    if not len(ordered):
        return ordered
    reach = np.maximum.accumulate(ordered[:, 1])
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:, 0] > reach[:-1]]))
    ends = np.concatenate([begins[1:] - 1, [len(ordered) - 1]])
    return np.column_stack([ordered[begins, 0], reach[ends]])


def _length(intervals: NDArray) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())
