"""Sums over a trace's marked steps in microseconds: by kernel and module, and idle time."""

from __future__ import annotations

import bisect
import dataclasses
import difflib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sessions.columns import TableColumns
from sessions.studies.breakdown import REPLAYED
from sessions.tracing import kinds
from sessions.tracing.trace import Span, Trace, Work, module_and_phase, operator_of

_BOOKKEEPING = re.compile(r"Backward\d*$|AccumulateGrad$")
_Key = tuple[str, str, str, str, str]  # a row's key columns
_LEAST_GAP_US = 0.5  # shorter gaps are only the resolution of the clock


@dataclass(frozen=True)
class Row:
    """The time of a kernel or operator for a module in a phase, over all marked steps."""

    name: str
    module: str
    phase: str
    kind: str
    operator: str  # operator of the kernel library; empty for other work
    calls: int
    us: float


@dataclass(frozen=True)
class Gap:
    """Idle time of the device before a module's work."""

    module: str
    count: int
    us: float


def device_rows(trace: Trace) -> list[Row]:
    """Return the device's work in the marked steps by kernel, module and phase, longest first."""
    sums: dict[_Key, list[float]] = defaultdict(lambda: [0, 0.0])
    for work in trace.work:
        module, phase = module_and_phase(trace, work)
        callers = trace.callers(work.launch) if work.launch >= 0 else ()
        kind = kinds.OPTIMIZER if phase == "optimizer" else kinds.kind_of(work.name, callers)
        row = sums[work.name, module, phase, kind, operator_of(trace, work)]
        row[0] += 1
        row[1] += work.stop - work.start
    return _rows(sums)


def host_rows(trace: Trace) -> list[Row]:
    """Return the host's own time in the marked steps by operator; the sum is their duration."""
    sums: dict[_Key, list[float]] = defaultdict(lambda: [0, 0.0])
    threads = {trace.spans[step].thread for step in trace.steps}
    # A compiled graph whose kernels are visible only calls them.
    callers = {span.parent for span in trace.spans if "cpp_" in span.name}
    for index, span in enumerate(trace.spans):
        if span.thread not in threads or not trace.within(index):
            continue
        name, kind = host_label(span)
        if index in callers and kind not in (kinds.HOST, kinds.INDUCTOR):
            name, kind = "Python", kinds.HOST
        if span.phase == "optimizer" and kind != kinds.HOST:
            kind = kinds.OPTIMIZER
        row = sums[name, span.module, span.phase, kind, span.operator]
        row[0] += 1
        row[1] += span.own
    return _rows(sums)


def kernel_columns(rows: Sequence[Row], steps: int) -> TableColumns:
    """Return the columns of a profile's table of kernels; calls and times are those of a step."""
    return {
        "name": [row.name for row in rows],
        "module": [row.module for row in rows],
        "phase": [row.phase for row in rows],
        "kind": [row.kind for row in rows],
        "operator": [row.operator for row in rows],
        "calls": [row.calls / steps for row in rows],
        "us": [row.us / steps for row in rows],
    }


def host_label(span: Span) -> tuple[str, str]:
    """Return the name and the class of a call on the host."""
    kind = kinds.kind_of(span.name)
    if span.is_node:
        return "autograd engine", kinds.HOST
    if _BOOKKEEPING.search(span.name):  # its computations are operators that it calls
        return span.name, kinds.HOST
    if span.category == "user_annotation" and kind != kinds.INDUCTOR:
        return "Python", kinds.HOST
    return span.name, kind


def name_replayed(replayed: Trace, uncaptured: Trace) -> None:
    """Give replayed kernels the modules of the same step's kernels without CUDA graphs.

    Graphs replay kernels in the order of their capture, so the names of the two steps are aligned.
    Kernels without a counterpart remain attributed to the replay.
    """
    pattern = [
        (work.name, *module_and_phase(uncaptured, work), operator_of(uncaptured, work))
        for work in uncaptured.work
    ]
    names = [name for name, *_ in pattern]
    starts = [replayed.spans[step].start for step in replayed.steps]
    steps: dict[int, list[int]] = defaultdict(list)
    for index, work in enumerate(replayed.work):
        if module_and_phase(replayed, work)[0] == REPLAYED:
            steps[bisect.bisect(starts, replayed.spans[work.launch].start)].append(index)
    for indices in steps.values():
        names_here = [replayed.work[index].name for index in indices]
        for position, other, size in difflib.SequenceMatcher(
            None, names_here, names, autojunk=False
        ).get_matching_blocks():
            for offset in range(size):
                _, module, phase, operator = pattern[other + offset]
                index = indices[position + offset]
                replayed.work[index] = dataclasses.replace(
                    replayed.work[index], module=module, phase=phase, operator=operator
                )


def busy_us(trace: Trace) -> float:
    """Return how long the device worked on the marked steps; concurrent kernels count once."""
    return sum(stop - start for start, stop, _ in _merged(trace))


def gaps(trace: Trace) -> list[Gap]:
    """Return the device's idle time by the module of the kernel that ended it, longest first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    last: float | None = None
    for start, stop, first in _merged(trace):
        if last is not None and start - last > _LEAST_GAP_US:
            row = sums[module_and_phase(trace, first)[0]]
            row[0] += 1
            row[1] += start - last
        last = stop
    all_gaps = [Gap(module, int(count), us) for module, (count, us) in sums.items()]
    return sorted(all_gaps, key=lambda gap: -gap.us)


def gap_columns(trace: Trace) -> TableColumns:
    """Return the columns of a profile's table of gaps; counts and times are those of a step."""
    steps, idle = len(trace.steps), gaps(trace)
    return {
        "module": [gap.module for gap in idle],
        "count": [gap.count / steps for gap in idle],
        "us": [gap.us / steps for gap in idle],
    }


def _merged(trace: Trace) -> list[tuple[float, float, Work]]:
    """Return the device's busy intervals, each with its first kernel."""
    intervals: list[tuple[float, float, Work]] = []
    for work in trace.work:
        if intervals and work.start <= intervals[-1][1]:
            start, stop, first = intervals[-1]
            intervals[-1] = (start, max(stop, work.stop), first)
        else:
            intervals.append((work.start, work.stop, work))
    return intervals


def _rows(sums: dict[_Key, list[float]]) -> list[Row]:
    rows = [Row(*key, int(calls), us) for key, (calls, us) in sums.items()]
    return sorted(rows, key=lambda row: -row.us)
