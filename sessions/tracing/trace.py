"""Reader of a trace of marked steps, which attributes time to modules, kernel by kernel.

The source is the Chrome trace that torch.profiler writes, so that the table always agrees with the
file that a person opens in Perfetto. Times are microseconds.

An operator belongs to the innermost module range around it. Backward operators run outside of all
module ranges, but autograd gives an operator and the node that it creates the same sequence number:
a node belongs to the module of the last forward operator with the node's number. If operators
inside a node have other numbers, a checkpoint computes them again: they are not part of the node's
operator. After a node has run, autograd may add its gradients to those of other nodes. If the node
is a complete operator of the kernel library, such a sum is not part of that operator. A kernel
belongs to the host's call that launched it, which CUPTI identifies by correlation.

Work outside of the model, the loss and the updates, such as communication between ranks, has the
phase "step": with several micro-batches it is between forward and backward passes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sessions.studies.breakdown import (
    COMPILED,
    GRADIENTS,
    LOSS,
    OPTIMIZER,
    OUTSIDE,
    REPLAYED,
    UNKNOWN,
)

STEP = "workbench step"  # the range around each marked step
OPERATOR = "operator "  # prefix of the range around a call of the kernel library
ROOT = "(model)"  # the model itself, whose name among the modules is empty
MODULE = "module "  # prefix of a module's range; the rest is the module's name
NODE = "autograd::engine::evaluate_function: "
_ACCUMULATE = f"{NODE}torch::autograd::AccumulateGrad"
_UPDATES = ("Optimizer.step#", "Optimizer.zero_grad#")
_OUTER = "step"  # phase of what a step does outside of the model, the loss and the updates
_REGIONS = ("Torch-Compiled Region", "## Call CompiledFxGraph")
_HOST = frozenset({"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


class Arguments(msgspec.Struct):
    """The facts of an event, as far as they are read."""

    sequence: Any = msgspec.field(name="Sequence number", default=None)
    correlation: Any = None
    external: Any = msgspec.field(name="External id", default=None)
    address: Any = msgspec.field(name="Addr", default=None)
    bytes: Any = msgspec.field(name="Bytes", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=None)
    reserved: Any = msgspec.field(name="Total Reserved", default=None)


class Event(msgspec.Struct):
    """An event of a Chrome trace; times are microseconds."""

    name: str = ""
    ph: str = ""
    cat: str | None = None
    tid: Any = None
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments | None = None


class _Trace(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents", default_factory=list)


@dataclass(slots=True)
class Span:
    """A call on the host; ``parent`` is the index of the call around it, -1 if there is none."""

    name: str
    category: str
    thread: Any
    start: float
    stop: float
    sequence: int | None
    correlation: int | None
    external: int | None
    parent: int = -1
    own: float = 0.0  # its duration without the calls inside it
    module: str = OUTSIDE
    phase: str = "forward"
    operator: str = ""  # the kernel library's operator around it

    @property
    def is_node(self) -> bool:
        """Return whether the span is a node of autograd's backward pass."""
        return self.name.startswith(NODE)

    @property
    def is_marked(self) -> bool:
        """Return whether the span is a module or an operator of the kernel library."""
        return self.name.startswith((MODULE, OPERATOR))

    @property
    def is_torch_node(self) -> bool:
        """Return whether it is a node of an operator of torch itself: its name ends in a digit."""
        return self.is_node and self.name[-1].isdigit()


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel, copy or fill on the device; ``launch`` is the index of its launch, or -1."""

    name: str
    start: float
    stop: float
    launch: int
    stream: int = 0
    module: str = ""  # set for a replayed kernel that a step without the graph identified
    phase: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory taken (``bytes`` > 0) or released, and the memory that the allocator then reserves."""

    at: float
    address: int
    bytes: int
    reserved: int


@dataclass
class Trace:
    """The spans of a trace by start and nesting, the device's work, the allocator's events."""

    spans: list[Span] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # indices of the spans that are marked steps
    work: list[Work] = field(default_factory=list)  # work of the marked steps, by start
    allocations: list[Allocation] = field(default_factory=list)  # on the device, by time
    events: list[Event] = field(default_factory=list)  # events as read; ``resolve`` empties it
    unattributed: str = ""  # reasons why compiled code has no module, as clauses

    def callers(self, index: int) -> list[str]:
        """Return the names of the operators around a span and its own, the innermost first."""
        names = []
        while index >= 0:
            span = self.spans[index]
            if span.category == "cpu_op":
                names.append(span.name)
            index = span.parent
        return names

    def within(self, index: int) -> bool:
        """Return whether a span lies in a marked step, on any thread."""
        at = self.spans[index].start
        return any(self.spans[step].start <= at <= self.spans[step].stop for step in self.steps)


def read(path: Path, device: str) -> Trace:
    """Read a file of torch.profiler; ``device`` ("cpu" or "cuda") selects whose memory is read.

    Raise ``ValueError`` for a file without a marked step.
    """
    trace = build(msgspec.json.decode(path.read_bytes(), type=_Trace).events, device)
    if not trace.steps:
        raise ValueError(f"{path}: the trace has no marked step")
    resolve(trace)
    return trace


def build(events: list[Event], device: str) -> Trace:
    """Return the spans, nested, and the marked steps of events; ``resolve`` does the rest.

    ``device`` ("cpu" or "cuda") selects whose memory is read.
    """
    trace = Trace(events=events)
    threads: dict[Any, list[Span]] = defaultdict(list)
    device_type = 1 if device == "cuda" else 0
    for event in events:
        args = event.args or Arguments()
        if event.ph == "X" and event.cat in _HOST:
            stop = event.ts + event.dur
            threads[event.tid].append(
                Span(event.name, event.cat or "", event.tid, event.ts, stop, args.sequence,
                     args.correlation, args.external)
            )  # fmt: skip
        elif event.name == "[memory]" and args.device_type == device_type:
            trace.allocations.append(
                Allocation(event.ts, args.address, args.bytes, args.reserved or 0)
            )  # fmt: skip
    for spans in threads.values():
        _nest(spans, len(trace.spans))
        trace.spans += spans
    _adopt(trace)
    trace.steps = [i for i, span in enumerate(trace.spans) if span.name == STEP]
    trace.allocations.sort(key=lambda allocation: allocation.at)
    return trace


def resolve(trace: Trace) -> None:
    """Determine modules and phases of all spans, and the device's work in the steps."""
    _resolve(trace)
    trace.work = _device_work(trace, trace.events)
    trace.events = []


def module_and_phase(trace: Trace, work: Work) -> tuple[str, str]:
    """Return module and phase of the device's work."""
    if work.module:
        return work.module, work.phase
    if work.launch < 0:
        return UNKNOWN, "forward"
    span = trace.spans[work.launch]
    if "GraphLaunch" in span.name:
        return REPLAYED, "replay"
    return span.module, span.phase


def operator_of(trace: Trace, work: Work) -> str:
    """Return the library's operator that launched the device's work; empty if there is none."""
    if work.operator or work.launch < 0:
        return work.operator
    return trace.spans[work.launch].operator


def _nest(spans: list[Span], base: int) -> None:
    """Set the parent and own time of each span of a thread; ``base`` is the first span's index."""
    spans.sort(key=lambda span: (span.start, -span.stop))
    enclosing: list[int] = []
    for index, span in enumerate(spans):
        while enclosing and spans[enclosing[-1]].stop <= span.start:
            enclosing.pop()
        span.own += span.stop - span.start
        if enclosing:
            parent = spans[enclosing[-1]]
            span.stop = min(span.stop, parent.stop)  # the clock's last digits may differ
            span.own = span.stop - span.start
            parent.own -= span.own
            span.parent = base + enclosing[-1]
        enclosing.append(index)


def _adopt(trace: Trace) -> None:
    """Give launches outside of any operator's span the operator that CUPTI names for them."""
    operators: dict[int | None, int] = {
        span.external: index
        for index, span in enumerate(trace.spans)
        if span.category not in _LAUNCHES and span.external is not None
    }
    for span in trace.spans:
        if span.category in _LAUNCHES and span.parent < 0:
            span.parent = operators.get(span.external, -1)


def _resolve(trace: Trace) -> None:
    """Determine the module and the phase of every span."""
    main = trace.spans[trace.steps[0]].thread
    operators: dict[int, str] = {}  # like ``modules``
    modules: dict[int, str] = {}  # module of the last forward operator by sequence number
    # Without ranges of modules, all that is neither backward nor an update counts as forward.
    has_modules = any(span.name.startswith(MODULE) for span in trace.spans)
    # A node runs after the operator that created it, on the main thread or on autograd's.
    order = sorted(range(len(trace.spans)), key=lambda i: trace.spans[i].thread != main)
    for index in order:
        span = trace.spans[index]
        if span.parent >= 0:
            parent = trace.spans[span.parent]
            span.module, span.phase = parent.module, parent.phase
            span.operator = parent.operator
            if parent.is_node and span.sequence is not None and span.sequence == parent.sequence:
                span.operator = operators.get(span.sequence, "")  # the operator of the node itself
            elif span.phase == "backward" and (span.is_marked or span.sequence is not None):
                span.operator = ""  # a checkpoint computes it again
        if span.name == STEP and has_modules:
            span.phase = _OUTER
        elif span.phase == _OUTER and (span.is_marked or span.name.startswith(_REGIONS)):
            span.phase = "forward"
        elif span.is_marked and span.phase != "forward":
            span.phase = "recompute"
        if span.name.startswith(OPERATOR) and not span.operator:
            span.operator = span.name.removeprefix(OPERATOR)
        if span.name.startswith(MODULE):
            span.module = span.name.removeprefix(MODULE)
        elif span.is_node:
            span.phase = "backward"
            if span.sequence is not None:
                span.module = modules.get(span.sequence, span.module)
                span.operator = operators.get(span.sequence, "") if span.is_torch_node else ""
            elif span.name == _ACCUMULATE:
                span.module = GRADIENTS
        elif span.name.startswith(_UPDATES):
            span.module, span.phase = OPTIMIZER, "optimizer"
        elif span.name.startswith(_REGIONS) and span.module in (OUTSIDE, LOSS):
            span.module = COMPILED
        if span.thread == main and span.phase in ("forward", _OUTER) and span.sequence is not None:
            modules[span.sequence] = span.module
            operators[span.sequence] = span.operator


def _device_work(trace: Trace, events: list[Event]) -> list[Work]:
    launches = {
        span.correlation: index
        for index, span in enumerate(trace.spans)
        if span.category in _LAUNCHES and span.correlation is not None
    }
    first = min(trace.spans[step].start for step in trace.steps)
    works = []
    for event in events:
        if event.ph != "X" or event.cat not in _DEVICE:
            continue
        launch = launches.get(event.args.correlation, -1) if event.args else -1
        if trace.within(launch) if launch >= 0 else event.ts >= first:
            stream = event.tid if isinstance(event.tid, int) else 0
            works.append(Work(event.name, event.ts, event.ts + event.dur, launch, stream))
    return sorted(works, key=lambda work: work.start)
