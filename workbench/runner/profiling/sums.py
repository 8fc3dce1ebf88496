"""What the marked steps of a trace took: by kernel and module, busy or waiting; microseconds."""

from __future__ import annotations

import bisect
import dataclasses
import difflib
import re
from collections import defaultdict
from dataclasses import dataclass

from sessions.breakdown import REPLAYED
from workbench.runner.profiling import kinds
from workbench.runner.profiling.trace import Trace, Work, operator_of, place

_BOOKKEEPING = re.compile(r"Backward\d*$|AccumulateGrad$")
_Key = tuple[str, str, str, str, str]  # a row's, without its numbers
_LEAST_GAP_US = 0.5  # what is shorter is no waiting but the resolution of the clock


@dataclass(frozen=True)
class Row:
    """What one kernel or operator took for one module in one phase, over all marked steps."""

    name: str
    module: str
    phase: str
    kind: str
    operator: str  # of the kernel library; empty where it belongs to none
    calls: int
    us: float


@dataclass(frozen=True)
class Gap:
    """How long the device waited for the next work of a module."""

    module: str
    count: int
    us: float


def device_rows(trace: Trace) -> list[Row]:
    """The device's work of the marked steps by kernel, module and phase, the longest first."""
    found: dict[_Key, list[float]] = defaultdict(lambda: [0, 0.0])
    for one in trace.work:
        module, phase = place(trace, one)
        callers = trace.callers(one.launch) if one.launch >= 0 else ()
        kind = kinds.OPTIMIZER if phase == "optimizer" else kinds.kind_of(one.name, callers)
        row = found[one.name, module, phase, kind, operator_of(trace, one)]
        row[0] += 1
        row[1] += one.stop - one.start
    return _rows(found)


def host_rows(trace: Trace) -> list[Row]:
    """The host's own time of the marked steps by operator: together, the steps' whole time."""
    found: dict[_Key, list[float]] = defaultdict(lambda: [0, 0.0])
    threads = {trace.spans[step].thread for step in trace.steps}
    # A compiled graph whose kernels are seen is itself no more than the calls of them.
    callers = {span.parent for span in trace.spans if "cpp_" in span.name}
    for index, span in enumerate(trace.spans):
        if span.thread not in threads or not trace.within(index):
            continue
        name, kind = span.name, kinds.kind_of(span.name)
        if span.is_node:
            name, kind = "autograd engine", kinds.HOST
        elif _BOOKKEEPING.search(name):  # what it computes, it calls operators for
            kind = kinds.HOST
        elif index in callers or (
            span.category == "user_annotation" and kind != "fused by Inductor"
        ):
            name, kind = "Python", kinds.HOST
        if span.phase == "optimizer" and kind != kinds.HOST:
            kind = kinds.OPTIMIZER
        row = found[name, span.module, span.phase, kind, span.operator]
        row[0] += 1
        row[1] += span.own
    return _rows(found)


def name_replayed(replayed: Trace, uncaptured: Trace) -> None:
    """Give replayed kernels the modules that the same step's kernels have without CUDA graphs.

    Graphs replay kernels in the order of their capture, so the two steps' names are aligned; what
    has no counterpart stays the graphs'.
    """
    pattern = [
        (one.name, *place(uncaptured, one), operator_of(uncaptured, one)) for one in uncaptured.work
    ]
    names = [name for name, *_ in pattern]
    begun = [replayed.spans[step].start for step in replayed.steps]
    steps: dict[int, list[int]] = defaultdict(list)
    for index, one in enumerate(replayed.work):
        if place(replayed, one)[0] == REPLAYED:
            steps[bisect.bisect(begun, replayed.spans[one.launch].start)].append(index)
    for indices in steps.values():
        here = [replayed.work[index].name for index in indices]
        for own, other, size in difflib.SequenceMatcher(
            None, here, names, autojunk=False
        ).get_matching_blocks():
            for offset in range(size):
                _, module, phase, operator = pattern[other + offset]
                index = indices[own + offset]
                replayed.work[index] = dataclasses.replace(
                    replayed.work[index], module=module, phase=phase, operator=operator
                )


def busy_us(trace: Trace) -> float:
    """How long the device worked on the marked steps; kernels side by side count once."""
    return sum(stop - start for start, stop, _ in _merged(trace))


def gaps(trace: Trace) -> list[Gap]:
    """Where the device waited between two kernels, by the module of the second, longest first."""
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    last: float | None = None
    for start, stop, first in _merged(trace):
        if last is not None and start - last > _LEAST_GAP_US:
            row = found[place(trace, first)[0]]
            row[0] += 1
            row[1] += start - last
        last = stop
    made = [Gap(module, int(count), us) for module, (count, us) in found.items()]
    return sorted(made, key=lambda gap: -gap.us)


def _merged(trace: Trace) -> list[tuple[float, float, Work]]:
    """When the device worked, and what it began each time with."""
    found: list[tuple[float, float, Work]] = []
    for one in trace.work:
        if found and one.start <= found[-1][1]:
            start, stop, first = found[-1]
            found[-1] = (start, max(stop, one.stop), first)
        else:
            found.append((one.start, one.stop, one))
    return found


def _rows(found: dict[_Key, list[float]]) -> list[Row]:
    rows = [Row(*key, int(calls), us) for key, (calls, us) in found.items()]
    return sorted(rows, key=lambda row: -row.us)
