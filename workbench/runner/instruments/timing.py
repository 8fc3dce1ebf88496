"""Step times: CUDA events read back late on the GPU, the host clock on the CPU.

One boundary is marked between consecutive steps, so a step costs one event and one clock reading,
and the host waits for the GPU only when it is too far ahead.

The functions that measure are bound here, before a user's file is run. A file that replaces them
(``torch.cuda.Event.elapsed_time``, ``time.perf_counter_ns`` ...) changes no step time.
"""

from __future__ import annotations

import bisect
import time
from typing import NamedTuple

import torch

now_ns = time.perf_counter_ns
Event = torch.cuda.Event
record = Event.record
elapsed_ms = Event.elapsed_time
wait_for = Event.synchronize
has_passed = Event.query
_current_stream = torch.cuda.current_stream
_CLOCKS = {
    (owner, name): getattr(owner, name)
    for owner, names in (
        (time, "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time "
               "process_time_ns sleep"),
        (torch.cuda, "Event synchronize current_stream"),
        (Event, "record elapsed_time query synchronize wait"),
    )
    for name in names.split()
}  # fmt: skip
_replaced: dict[str, None] = {}  # names that a model's file replaced, in order

AHEAD_MS = 20.0  # how far ahead of the GPU the host may queue steps
AHEAD_STEPS = 64


def restore_clocks() -> None:
    """Put Python's and torch's timing functions back if a model's file has replaced them."""
    for (owner, name), function in _CLOCKS.items():
        if getattr(owner, name, None) is not function:
            setattr(owner, name, function)
            _replaced[f"{owner.__name__}.{name}"] = None


def pop_replaced() -> list[str]:
    """Return the timing functions that were replaced since the last call."""
    restore_clocks()
    names = list(_replaced)
    _replaced.clear()
    return names


class Lap(NamedTuple):
    """One finished step; ``gpu_ms`` is None where there is no GPU."""

    start_ns: int
    gpu_ms: float | None
    wall_ms: float
    phase: int

    @property
    def step_ms(self) -> float:
        """The GPU's time where it was measured, else the host's."""
        return self.wall_ms if self.gpu_ms is None else self.gpu_ms


class HostClock:
    """Laps on the CPU, where a step has ended when its call returns."""

    def __init__(self) -> None:
        self._laps: list[Lap] = []
        self._last_ns = 0

    def begin(self) -> None:
        """Mark the start of the first of a run of steps."""
        self._last_ns = now_ns()

    def lap(self, phase: int) -> int:
        """Mark the end of a step, which is the start of the next; returns the time, ns."""
        ended_ns = now_ns()
        self._laps.append(Lap(self._last_ns, None, (ended_ns - self._last_ns) * 1e-6, phase))
        self._last_ns = ended_ns
        return ended_ns

    def drain(self, *, wait: bool = False) -> list[Lap]:
        """Return the laps that have finished since the last call."""
        laps, self._laps = self._laps, []
        return laps


# start event, stop event, start ns, stop ns, phase: a plain tuple, because making a NamedTuple for
# every step costs more than the rest of the bookkeeping.
_Pending = tuple[torch.cuda.Event, torch.cuda.Event, int, int, int]


class GpuClock:
    """Laps between CUDA events on the current stream."""

    def __init__(self) -> None:
        self._pending: list[_Pending] = []
        self._free: list[torch.cuda.Event] = []
        self._stream: torch.cuda.Stream | None = None
        self._last = Event(enable_timing=True)
        self._last_ns = 0
        self._ahead = 2
        self._unchecked = 0

    def begin(self) -> None:
        """Mark the start of the first of a run of steps, all on the stream that is current now."""
        self._stream = _current_stream()  # asked at each step it costs more than the mark
        self._last = self._mark()
        self._last_ns = now_ns()

    def lap(self, phase: int) -> int:
        """Mark the end of a step, which is the start of the next; returns the time, ns.

        Waits for an old step if the host is too far ahead, so that a command acts soon.
        """
        stop = self._mark()
        ended_ns = now_ns()
        self._pending.append((self._last, stop, self._last_ns, ended_ns, phase))
        self._last, self._last_ns = stop, ended_ns
        self._unchecked += 1
        if self._unchecked >= self._ahead and len(self._pending) > self._ahead:
            self._unchecked = self._ahead // 2
            wait_for(self._pending[-self._ahead][0])
        return ended_ns

    def drain(self, *, wait: bool = False) -> list[Lap]:
        """Return the laps finished since the last call; ``wait`` for those still running."""
        pending = self._pending
        if wait and pending:
            wait_for(pending[-1][1])
        # Steps end in order, so a bisection finds the last that has ended with few queries.
        ended = bisect.bisect_left(pending, True, key=lambda lap: not has_passed(lap[1]))
        completed, self._pending = pending[:ended], pending[ended:]
        laps = []
        for start, stop, start_ns, stop_ns, phase in completed:
            gpu_ms = elapsed_ms(start, stop)
            laps.append(Lap(start_ns, gpu_ms, (stop_ns - start_ns) * 1e-6, phase))
            self._free.append(start)
        if laps:
            typical_ms = max(laps[len(laps) // 2].gpu_ms or 0.0, 1e-3)
            self._ahead = int(min(max(AHEAD_MS / typical_ms, 2), AHEAD_STEPS))
        return laps

    def _mark(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else Event(enable_timing=True)
        record(event, self._stream)
        return event


def make_clock(device: torch.device) -> HostClock | GpuClock:
    """Return the clock that measures steps on this device."""
    return GpuClock() if device.type == "cuda" else HostClock()
