"""The timeline that a profile stores: a bounded number of slices for a window to draw.

The tables of a profile (``sessions.storage.study_schema``) are ``timeline``, a row for each slice,
``labels``, the texts that rows refer to, and ``tracks``, the lines of slices. Times
are microseconds since the first step that is stored. A trace with more than ``MOST`` events is
stored for its last step only; if that is still too much, without the deepest operators of the
host; and then without everything after the first ``MOST`` events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessions.columns import TableColumns
from sessions.studies.breakdown import HOST_TRACK, LAUNCH_TRACK, STEP_TRACK, STREAM_TRACK
from sessions.tracing import kinds, sums
from sessions.tracing.trace import MODULE, NODE, OPERATOR, STEP, Span, Trace, Work, module_and_phase

MOST = 12_000  # slices of a profile
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_RANGES = (MODULE, OPERATOR)  # ranges that name the module and the operator of their content


@dataclass(slots=True)
class _Slice:
    """One event; ``launched_by`` is the index of the span that launched it, or -1."""

    kind: str  # kind of its track
    track: str
    depth: int
    name: str
    module: str
    work: str  # its class
    start: float
    stop: float
    span: int = -1
    launched_by: int = -1


def tables(trace: Trace, most: int = MOST) -> dict[str, TableColumns]:
    """Return the tables ``timeline``, ``labels`` and ``tracks`` of a trace's marked steps."""
    steps = list(trace.steps)
    slices = _slices(trace, steps)
    if len(slices) > most and len(steps) > 1:
        steps = steps[-1:]
        slices = _slices(trace, steps)
    while len(slices) > most and (deepest := max(s.depth for s in slices)) > 0:
        slices = [entry for entry in slices if entry.depth < deepest]
    return _tables(slices[:most])


def _slices(trace: Trace, steps: Sequence[int]) -> list[_Slice]:
    """Return the slices of some steps by start."""
    first = trace.spans[steps[0]].start
    last = max(trace.spans[step].stop for step in steps)
    on_device = bool(trace.work)
    slices = [
        _Slice(STEP_TRACK, "Steps", 0, f"step {number}", "", "", span.start, span.stop)
        for number, span in enumerate((trace.spans[step] for step in steps), 1)
    ]
    depths: dict[int, int] = {}  # nesting depth of the host's operators
    names = _threads(trace)
    for index, span in enumerate(trace.spans):
        if not first <= span.start <= last:
            continue
        above = depths.get(span.parent, -1)
        if _is_range(span):
            depths[index] = above
        elif span.category in _LAUNCHES:
            if on_device:
                slices.append(_of_span(LAUNCH_TRACK, "CPU launches", 0, index, span))
        else:
            depths[index] = above + 1
            slices.append(_of_span(HOST_TRACK, names[span.thread], above + 1, index, span))
    slices += [
        _of_work(trace, work) for work in trace.work if first <= _launched_at(trace, work) <= last
    ]
    for entry in slices:
        entry.start, entry.stop = entry.start - first, entry.stop - first
    return sorted(slices, key=lambda entry: (entry.start, entry.depth))


def _is_range(span: Span) -> bool:
    return span.name == STEP or span.name.startswith(_RANGES)


def _launched_at(trace: Trace, work: Work) -> float:
    return trace.spans[work.launch].start if work.launch >= 0 else work.start


def _of_span(kind: str, track: str, depth: int, index: int, span: Span) -> _Slice:
    name = span.name.removeprefix(NODE)
    _, work = sums.host_label(span)
    return _Slice(kind, track, depth, name, span.module, work, span.start, span.stop, span=index)


def _of_work(trace: Trace, work: Work) -> _Slice:
    module, phase = module_and_phase(trace, work)
    callers = trace.callers(work.launch) if work.launch >= 0 else ()
    kind = kinds.OPTIMIZER if phase == "optimizer" else kinds.kind_of(work.name, callers)
    track = f"Stream {work.stream}"
    return _Slice(
        STREAM_TRACK, track, 0, work.name, module, kind, work.start, work.stop,
        launched_by=work.launch,
    )  # fmt: skip


def _threads(trace: Trace) -> dict[object, str]:
    """Return the title of each host thread: the one that runs the steps, and autograd's."""
    main = trace.spans[trace.steps[0]].thread
    helpers = dict.fromkeys(span.thread for span in trace.spans if span.thread != main)
    numbers = {thread: f"CPU thread {number}" for number, thread in enumerate(helpers, 2)}
    return {main: "CPU thread 1", **numbers}


def _tables(slices: Sequence[_Slice]) -> dict[str, TableColumns]:
    labels: dict[tuple[str, str], int] = {}
    tracks: dict[tuple[str, str], int] = {}
    rows = {entry.span: number for number, entry in enumerate(slices, 1) if entry.span >= 0}
    timeline: TableColumns = {
        "track": [tracks.setdefault((entry.track, entry.kind), len(tracks)) for entry in slices],
        "depth": [entry.depth for entry in slices],
        "name": [labels.setdefault((entry.name, entry.work), len(labels)) for entry in slices],
        "module": [labels.setdefault((entry.module, ""), len(labels)) for entry in slices],
        "t_us": [round(max(0.0, entry.start), 3) for entry in slices],
        "us": [round(max(0.0, entry.stop - entry.start), 3) for entry in slices],
        "launch": [rows.get(entry.launched_by, 0) for entry in slices],
    }
    return {
        "timeline": timeline,
        "labels": {"text": [text for text, _ in labels], "kind": [kind for _, kind in labels]},
        "tracks": {"title": [title for title, _ in tracks], "kind": [kind for _, kind in tracks]},
    }
