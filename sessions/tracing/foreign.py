"""A profile from the Kineto trace of another program: Chrome JSON, perhaps compressed by gzip.

The content may be hostile. It is decoded into typed structs, bounded in size, and read in the child
process of ``sessions.storage._check``, which checks the resulting session once more.

Steps are the ranges ``ProfilerStep#N`` of torch.profiler; without any the trace is one step.
Modules are the ranges ``nn.Module: NAME`` (``with_stack=True`` or ``with_modules=True``) or,
without any, the ranges that the program annotated itself.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections import Counter
from typing import Any, BinaryIO

import msgspec
import numpy as np

from sessions.columns import TableColumns
from sessions.errors import SessionError
from sessions.model import Session, Study
from sessions.plain_text import one_line
from sessions.studies import breakdown
from sessions.tracing import sums, timeline, trace
from sessions.tracing.trace import MODULE, STEP, Event, Span, Trace

MOST_BYTES = 1 << 30  # bytes of the text
MOST_EVENTS = 3_000_000
_GZIP = b"\x1f\x8b"
_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
_MODULE = "nn.Module: "
_NOT_MODULES = re.compile(r"Optimizer\.|Torch-Compiled Region|## Call CompiledFxGraph|ProfilerStep")
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_DEEPEST = 48  # modules in one another
_LONGEST_NAME, _LONGEST_REASON = 500, 200  # characters
_NOTE = "Recorded by another program: its profiler lengthens times, idle times most of all."


class _Device(msgspec.Struct):
    name: str = ""


class _File(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")
    devices: list[_Device] = msgspec.field(name="deviceProperties", default_factory=list)


def read(stream: BinaryIO, title: str) -> Session:
    """Return a session with one profile; raise ``SessionError`` with a sentence about "it"."""
    try:
        file = msgspec.json.decode(_text(stream), type=_File | list[Event])
    except msgspec.ValidationError as error:
        raise _refusal("a Kineto trace", error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal("a Chrome trace in JSON", error) from None
    events = file.events if isinstance(file, _File) else file
    device = file.devices[0].name if isinstance(file, _File) and file.devices else ""
    if len(events) > MOST_EVENTS:
        raise SessionError(
            f"it has {len(events):,} events, at most {MOST_EVENTS:,} are read: record fewer steps"
        )
    return Session(
        title=title,
        environment={"device": device or "unknown", "source": "Kineto trace of another program"},
        studies=[_study(events, title)],
    )


def _refusal(description: str, error: Exception) -> SessionError:
    return SessionError(f"it is not {description} ({one_line(str(error), _LONGEST_REASON)})")


def _text(stream: BinaryIO) -> bytes:
    head = stream.read(2)
    stream.seek(0)
    try:
        source: BinaryIO = gzip.GzipFile(fileobj=stream) if head == _GZIP else stream  # type: ignore[assignment]
        text = source.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SessionError(f"its compressed text is damaged ({error})") from None
    if len(text) > MOST_BYTES:
        raise SessionError(f"it is longer than {MOST_BYTES >> 20} MiB: record fewer steps")
    return text


def _study(events: list[Event], title: str) -> Study:
    on_gpu = any(event.cat in _DEVICE for event in events)
    has_modules = any(event.name.startswith(_MODULE) for event in events)
    is_own = any(event.name == STEP for event in events)  # this program recorded it
    for event in events:
        _clean(event, has_modules or is_own)
    parsed = trace.build(events, "cuda" if on_gpu else "cpu")
    if not is_own:
        _qualify(parsed)
    if not parsed.spans and not on_gpu:
        raise SessionError("it has no operators, launches or kernels, so it is not a Kineto trace")
    _ensure_steps(parsed)
    trace.resolve(parsed)
    rows = sums.device_rows(parsed) if parsed.work else sums.host_rows(parsed)
    if not rows:
        raise SessionError("nothing ran in its steps")
    count = len(parsed.steps)
    tables: dict[str, TableColumns] = {
        "kernels": sums.kernel_columns(rows, count),
        **timeline.tables(parsed),
    }
    gaps = sums.gap_columns(parsed)
    if gaps["module"]:
        tables["gaps"] = gaps
    facts: dict[str, Any] = {"notes": [_NOTE]}
    if parsed.work:
        facts |= {"step_us": _step_us(parsed), "busy_us": sums.busy_us(parsed) / count}
    return Study(
        kind=breakdown.KIND,
        title=title,
        start_s=0.0,
        request={"device": "cuda" if parsed.work else "cpu", "label": title, "steps": count},
        facts=facts,
        tables={name: _columns(table) for name, table in tables.items()},
    )


def _columns(table: TableColumns) -> dict[str, np.ndarray]:
    return {
        name: np.array(values, object if isinstance(values[0], str) else np.float64)
        for name, values in table.items()
    }


def _clean(event: Event, has_modules: bool) -> None:
    """Give ranges this program's names, and leave out what no program writes."""
    event.name = event.name[:_LONGEST_NAME]
    if not (math.isfinite(event.ts) and math.isfinite(event.dur) and event.dur >= 0):
        event.ph = ""
    event.tid = event.tid if isinstance(event.tid, int | str) else 0
    if event.args is not None:
        for name in ("sequence", "correlation", "external"):
            if not isinstance(getattr(event.args, name), int):
                setattr(event.args, name, None)
    if event.name == "[memory]":
        event.name = ""  # memory events are not read
    elif event.cat == "python_function" and event.name.startswith(_MODULE):
        event.cat, event.name = "user_annotation", MODULE + event.name.removeprefix(_MODULE)
    elif event.cat == "user_annotation":
        if _PROFILER_STEP.fullmatch(event.name):
            event.name = STEP
        elif not has_modules and not _NOT_MODULES.match(event.name):
            event.name = MODULE + event.name


def _qualify(parsed: Trace) -> None:
    """Name each module by its path: the modules around it, and its own name."""
    paths: dict[int, str] = {}
    depths: dict[int, int] = {}
    for index, span in enumerate(parsed.spans):
        outer, depth = paths.get(span.parent, ""), depths.get(span.parent, 0)
        if span.name.startswith(MODULE):
            own_name = span.name.removeprefix(MODULE).replace(".", "_")
            if depth < _DEEPEST:
                outer, depth = f"{outer}.{own_name}" if outer else own_name, depth + 1
            span.name = MODULE + outer
        paths[index], depths[index] = outer, depth


def _ensure_steps(parsed: Trace) -> None:
    """Make the whole trace one step if it has none."""
    if parsed.steps:
        return
    spans = parsed.spans
    work = [event for event in parsed.events if event.ph == "X" and event.cat in _DEVICE]
    first = min([span.start for span in spans] + [event.ts for event in work])
    last = max([span.stop for span in spans] + [event.ts + event.dur for event in work])
    threads = Counter(span.thread for span in spans).most_common(1)
    thread = threads[0][0] if threads else 0
    parsed.steps = [len(spans)]
    spans.append(Span(STEP, "user_annotation", thread, first, last, None, None, None))


def _step_us(parsed: Trace) -> float:
    """Return the mean time of a step: from its begin on the host to the end of its last work."""
    first = min(parsed.spans[step].start for step in parsed.steps)
    last = max(parsed.spans[step].stop for step in parsed.steps)
    last = max(last, max(work.stop for work in parsed.work))
    return (last - first) / len(parsed.steps)
