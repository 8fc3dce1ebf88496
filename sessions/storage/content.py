"""Refuses sessions whose content contradicts their columns and entries, and cleans their text.

Plots, tables and statistics rely on these checks: lengths agree, indices exist, times are finite,
and amounts are not negative. The checks read every column, in the child process that checks files
of unknown origin (``sessions.storage._check``). The same checks apply to a runner's messages
(``workbench.client.recorder``), so every saved file can be opened everywhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from sessions.columns import row_count
from sessions.errors import SessionError
from sessions.model import (
    KERNELS,
    PROFILE,
    SWEEP,
    Event,
    MetricSeries,
    PairedComparison,
    Phase,
    Segment,
    Session,
    Study,
)
from sessions.numbers import LARGEST, counted
from sessions.plain_text import one_line, plain
from sessions.schema import COUNT, EITHER, NUMBER, TEXT, ColumnInfo
from sessions.storage import _facts
from sessions.storage._structure import DEEPEST_JSON, LONGEST_KEY
from sessions.storage.study_schema import TIMELINE, columns_of, has_timeline

VERDICTS = ("FASTER", "SLOWER", "SAME", "UNDECIDED")
LONGEST_TEXT = 1_000_000  # characters of notes, events and cells
LONGEST_NAME = 1_000  # characters of titles, labels and units
_MOST_TEXT = 100_000_000  # characters of all cells of a column
_MOST_CELLS = 100_000  # numbers of one sample of a metric
_DEEPEST_MODULE = 64  # names in a path
_MOST_ARMS = 26
_MOST_SLICES = 200_000  # slices of a timeline
_DEEPEST_SLICE = 256
_SHOWN = 60
T = TypeVar("T", bound=msgspec.Struct)


class Range(NamedTuple):
    """The range of a column's numbers; ``unknown`` allows NaN."""

    low: float
    high: float
    unknown: bool = True
    least: float = 0.0  # the smallest that is not 0


_TIME = Range(-1.0, 1e9, unknown=False)  # s; clocks of two processes may differ a little
_DURATION = Range(0.0, 1e12, least=1e-9)  # ms
_BYTES = Range(0.0, 1e18)
_AMOUNT = Range(0.0, LARGEST)
_NUMBER = Range(-LARGEST, LARGEST)
_PLACE = Range(0, 2**31 - 1, unknown=False)
_COUNT = Range(0, 2**53, unknown=False)
_P = Range(0.0, 1.0)
_RATIO = Range(0.0, LARGEST, least=1e-9)
_PHASE = Range(0, max(Phase), unknown=False)

_STEPS = {
    "t_s": _TIME, "gpu_ms": _DURATION, "wall_ms": _DURATION, "allocated": _BYTES,
    "reserved": _BYTES, "peak": _BYTES, "phase": _PHASE, "block": _PLACE,
}  # fmt: skip
_TELEMETRY = {"t_s": _TIME, "temperature": _NUMBER}
_STUDIES = {  # columns that are neither text, counts nor amounts
    "p": _P, "ratio": _RATIO, "low": _NUMBER, "high": _NUMBER, "measured": _NUMBER,
    "least": _NUMBER, "most": _NUMBER, "exponent": _NUMBER, "step_ms": _DURATION,
    "median_ms": _DURATION, "low_ms": _DURATION, "high_ms": _DURATION, "mean_ms": _DURATION,
}  # fmt: skip


def cleaned(session: Session) -> Session:
    """Return the session with all columns in memory and plain text; raise ``SessionError``."""
    _within(session.created, _AMOUNT, "time of creation")
    places = len(session.segments)
    cleaned = dataclasses.replace(
        session,
        title=_name(session.title, "title"),
        id=_name(session.id, "id"),
        notes=_text(session.notes, "notes"),
        environment=cleaned_names(session.environment, "environment"),
        titles=cleaned_names(session.titles, "titles"),
        segments=[
            cleaned_segment(segment, number) for number, segment in enumerate(session.segments)
        ],
        telemetry={
            _key(device, "device"): _table(table, _TELEMETRY, f"telemetry of {device}")
            for device, table in session.telemetry.items()
        },
        events=[_event(event) for event in session.events],
        comparisons=[
            cleaned_comparison(comparison, places, f"comparison {number}")
            for number, comparison in enumerate(session.comparisons)
        ],
        studies=[cleaned_study(study, number) for number, study in enumerate(session.studies)],
        orders=[_plain_struct(order) for order in session.orders],
    )
    _check_orders(cleaned)
    return cleaned


def check_time(t_s: float) -> None:
    """Raise ``SessionError`` for a time (s) that no session has."""
    _within(t_s, _TIME, "time")


def check_steps(columns: Mapping[str, NDArray]) -> None:
    """Raise ``SessionError`` for steps with a number out of its range."""
    _table(columns, _STEPS, "steps")


def check_telemetry(columns: Mapping[str, NDArray], device: str) -> None:
    """Raise ``SessionError`` for telemetry with a number out of its range."""
    _table(columns, _TELEMETRY, f"telemetry of {_key(device, 'device')}")


def cleaned_segment(segment: Segment, number: int) -> Segment:
    """Return the segment as ``cleaned`` does; raise ``SessionError``."""
    location = f"segment {number}"
    _within(segment.index, _PLACE, f"index of {location}")
    _within(segment.start_s, _TIME, f"start of {location}")
    for span in segment.phases:
        _within(span.phase, _PHASE, f"phase of {location}")
        _within(span.start_s, _TIME, f"start of a phase of {location}")
        _within(span.stop_s, _TIME, f"end of a phase of {location}")
    steps = _table(segment.steps, _STEPS, f"steps of {location}")
    is_kernel = segment.configuration.family == KERNELS
    if is_kernel and not {"case", "dtype"} <= segment.configuration.settings.keys():
        raise SessionError(f"its {location} timed a kernel, but lacks the case or dtype")
    is_timed = is_kernel and len(steps["t_s"]) > 0
    _facts.check_ledger(segment.ledger, is_timed, f"{location}")
    return dataclasses.replace(
        segment,
        configuration=_plain_struct(segment.configuration),
        evidence=[_plain_struct(evidence) for evidence in segment.evidence],
        ledger=_plain_json(segment.ledger),
        label=_name(segment.label, f"label of {location}"),
        steps=steps,
        breakdown=_table(segment.breakdown, {}, f"breakdown of {location}"),
        memory=_table(segment.memory, {"t_s": _TIME}, f"memory of {location}"),
        metrics={
            plain(name): cleaned_metric(name, series, location)
            for name, series in segment.metrics.items()
        },
    )


def cleaned_metric(name: str, series: MetricSeries, location: str = "session") -> MetricSeries:
    """Return the metric as ``cleaned`` does; raise ``SessionError``."""
    location = f"metric {_key(name, f'metric of {location}')} of {location}"
    if not 1 <= math.prod(series.shape) <= _MOST_CELLS:
        raise SessionError(f"its {_shown(location)} has {series.shape} numbers per sample")
    return dataclasses.replace(
        series,
        title=_name(series.title, f"title of {location}"),
        unit=_name(series.unit, f"unit of {location}"),
        row=_name(series.row, f"row of {location}"),
        column=_name(series.column, f"column of {location}"),
        help=_text(series.help, f"description of {location}"),
        table=_table(series.table, {"t_s": _TIME, "values": _NUMBER}, location),
    )


def _event(event: Event) -> Event:
    _within(event.t_s, _TIME._replace(unknown=True), "time of an event")
    return Event(event.t_s, _name(event.kind, "kind of an event"), _text(event.text, "event"))


def cleaned_comparison(
    comparison: PairedComparison, segments: int, location: str
) -> PairedComparison:
    """Return the comparison, in a session of so many segments, as ``cleaned`` does."""
    arms = len(comparison.arms)
    if not 2 <= arms <= _MOST_ARMS:
        raise SessionError(f"its {location} has {counted(arms, 'arm')}, expected 2 to {_MOST_ARMS}")
    if comparison.verdict not in VERDICTS:
        raise SessionError(f"the verdict of its {location} is not one of {', '.join(VERDICTS)}")
    for title, values, allowed in (
        ("arm of a block", comparison.order, Range(0, arms - 1, unknown=False)),
        ("pair", comparison.pairs, _PLACE),
        ("median", comparison.medians_ms, _DURATION),
        ("mean", comparison.means_ms, _DURATION),
        ("clock", comparison.clocks_mhz, _AMOUNT),
        ("ratio", [comparison.ratio, comparison.low, comparison.high], _RATIO),
    ):
        _check(np.array(values, np.float64), allowed, f"{title} of {location}")
    _facts.check_comparison(comparison.facts, location)
    places = comparison.facts.get("segments")
    if places is not None and (len(places) != arms or any(index >= segments for index in places)):
        raise SessionError(f"its {location} refers to segments that do not exist")
    return msgspec.structs.replace(
        comparison,
        facts=_plain_json(comparison.facts),
        arms=[_name(arm, f"arm of {location}") for arm in comparison.arms],
        voids=[_text(void, f"block of {location}") for void in comparison.voids],
    )


def cleaned_study(study: Study, number: int) -> Study:
    """Return the study as ``cleaned`` does; raise ``SessionError``."""
    location = f"study {number}"
    _within(study.start_s, _TIME, f"start of {location}")
    _facts.check_study(study.kind, study.request, study.facts, location)
    tables: dict[str, Mapping[str, NDArray]] = {
        _key(name, f"table of {location}"): _study_table(
            study.kind, name, table, f"{name} of {location}"
        )
        for name, table in study.tables.items()
        if row_count(table)  # nothing ever writes an empty one
    }
    kind = _name(study.kind, f"kind of {location}")
    title = _text(study.title, f"title of {location}")
    question, facts = _plain_json(study.request), _plain_json(study.facts)
    cleaned = dataclasses.replace(
        study, kind=kind, title=title, request=question, facts=facts, tables=tables
    )
    if kind == SWEEP:
        _check_sweep(cleaned, location)
    elif kind == PROFILE:
        _check_profile(cleaned, location)
        if not has_timeline(cleaned):  # its runner may have ended before it sent all
            without_timeline = {name: t for name, t in tables.items() if name not in TIMELINE}
            cleaned = dataclasses.replace(cleaned, tables=without_timeline)
    return cleaned


def _study_table(
    kind: str, name: str, table: Mapping[str, NDArray], location: str
) -> dict[str, NDArray]:
    """Return a table of a study; text that is missing is empty, a missing number NaN."""
    known = columns_of(kind, name)
    ranges = {
        column: _COUNT if info.dtype == COUNT else _STUDIES.get(column, _AMOUNT)
        for column, info in known.items()
    }
    columns = dict(table)
    for column, info in known.items():
        if info.dtype == TEXT and column in columns:
            columns[column] = _as_text(columns[column])
        elif (
            info.dtype not in (TEXT, EITHER) and columns.get(column, np.empty(0)).dtype.kind == "O"
        ):
            raise SessionError(f"its {_shown(location)} has text instead of numbers in {column}")
    cleaned = {
        column: _standard_numbers(values, known.get(column))
        for column, values in _table(columns, ranges, location).items()
    }
    rows = row_count(cleaned)
    for column, info in known.items():
        if column in cleaned or info.dtype == EITHER or (name, column) in _ABSENT:
            continue
        blank: object = "" if info.dtype == TEXT else 0.0 if info.dtype == COUNT else math.nan
        cleaned[column] = np.full(rows, blank, object if info.dtype == TEXT else np.float64)
    return cleaned


def _standard_numbers(values: NDArray, info: ColumnInfo | None) -> NDArray:
    """Return numbers as float64 or int64, the types in which this program computes."""
    if values.dtype.kind == "O":
        return values
    is_integer = values.dtype.kind in "bi" and (info is None or info.dtype != NUMBER)
    return np.asarray(values, np.int64 if is_integer else np.float64)


# Columns whose absence means something: the library's operators were not recorded.
_ABSENT = {("kernels", "operator")}


def _check_sweep(study: Study, location: str) -> None:
    arms, fields = len(study.request["arms"]), len(study.request["fields"])
    for table in study.tables.values():
        if "arm" in table and np.any(table["arm"] >= arms):
            raise SessionError(f"its {location} has points of arms that do not exist")
        if "y" in table and fields < 2:
            raise SessionError(f"its {location} has values of a second field that does not exist")
    for toggles in study.request.get("toggles", []):
        try:
            msgspec.json.decode(toggles, type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise SessionError(f"the toggles of its {location} are malformed ({error})") from None


def _check_profile(study: Study, location: str) -> None:
    times_ms = study.tables.get("memory", {}).get("t_ms", np.empty(0))
    if not np.all(np.diff(times_ms, prepend=0.0) >= 0):  # NaN is no time either
        raise SessionError(f"the memory times of its {location} do not rise")
    for name in ("kernels", "gaps"):
        for module in study.tables.get(name, {}).get("module", ()):
            if module.count(".") > _DEEPEST_MODULE:
                raise SessionError(
                    f"its {location} has modules nested more than {_DEEPEST_MODULE} deep"
                )
    _check_timeline(study, location)


def _check_timeline(study: Study, location: str) -> None:
    tables = [study.tables.get(name, {}) for name in TIMELINE]
    rows, labels, tracks = map(row_count, tables)
    if rows > _MOST_SLICES:
        raise SessionError(
            f"the timeline of its {location} has {rows:,} slices, at most {_MOST_SLICES:,}"
        )
    if not has_timeline(study):
        return
    limits = {"track": tracks, "name": labels, "module": labels, "launch": rows + 1}
    for column, most in limits.items():
        values = tables[0][column]
        if np.any(values >= most) or np.any(values % 1):
            raise SessionError(f"the timeline of its {location} has a {column} that does not exist")
    if np.any(tables[0]["depth"] > _DEEPEST_SLICE):
        raise SessionError(f"the timeline of its {location} is nested too deeply")


def _check_orders(session: Session) -> None:
    counts = {name: len(getattr(session, name)) for name in ("segments", "comparisons", "studies")}
    before = dict.fromkeys(counts, 0)
    for order in session.orders:
        _within(order.start_s, _TIME, "time of a command")
        for name, most in counts.items():
            if not before[name] <= getattr(order, name) <= most:
                raise SessionError(f"its orders count {name} that do not exist")
            before[name] = getattr(order, name)
        if order.claims is not None and order.claims >= counts["studies"]:
            raise SessionError("its orders refer to claims that do not exist")


def _table(
    table: Mapping[str, NDArray], ranges: Mapping[str, Range], location: str
) -> dict[str, NDArray]:
    """Return the columns in memory, text cleaned and numbers within their ranges."""
    columns = {}
    for name in table:
        column = table[_key(name, f"column in {location}")]
        if column.dtype.kind == "O":
            columns[name] = _texts(column, f"{name} in {location}")
        else:
            _check(
                column, ranges.get(name, _AMOUNT if ranges else _NUMBER), f"{name} in {location}"
            )
            columns[name] = column
    return columns


def _check(values: NDArray, allowed: Range, location: str) -> None:
    """Raise ``SessionError`` for a number out of its range."""
    if not values.size:
        return
    low, high = float(np.fmin.reduce(values, None)), float(np.fmax.reduce(values, None))
    if not allowed.unknown and np.isnan(values).any():
        raise SessionError(f"its {_shown(location)} has NaN, expected numbers")
    if low < allowed.low or high > allowed.high:
        outside = low if low < allowed.low else high
        raise SessionError(
            f"its {_shown(location)} is {outside:.16g}, expected {allowed.low:.16g} to "
            f"{allowed.high:.16g}"
        )
    if allowed.least and np.any((values > 0) & (values < allowed.least)):
        raise SessionError(f"its {_shown(location)} is below {allowed.least:g} and not 0")


def _within(value: float, allowed: Range, location: str) -> None:
    _check(np.array([value], np.float64), allowed, location)


def _texts(column: NDArray, location: str) -> NDArray:
    total = 0
    cleaned = np.empty(len(column), object)
    for row, cell in enumerate(column):
        cleaned[row] = _text(cell, location)
        total += len(cell)
        if total > _MOST_TEXT:
            raise SessionError(f"its {_shown(location)} has more than {_MOST_TEXT:,} characters")
    return cleaned


def _as_text(column: NDArray) -> NDArray:
    """Return a column of text; one in which nothing was written may be stored as NaN."""
    if column.dtype.kind == "O":
        return column
    return np.array(["" if value != value else f"{value:g}" for value in column], object)


def _text(value: str, location: str, most: int = LONGEST_TEXT) -> str:
    if len(value) > most:
        raise SessionError(
            f"its {_shown(location)} has {len(value):,} characters, at most {most:,}"
        )
    return plain(value)


def _name(value: str, location: str) -> str:
    return _text(value, location, LONGEST_NAME)


def _key(value: str, location: str) -> str:
    """Return the name of a group in a file."""
    return _text(value, location, LONGEST_KEY)


def cleaned_names(values: Mapping[str, str], location: str) -> dict[str, str]:
    """Return texts by name as ``cleaned`` does; raise ``SessionError``."""
    return {_name(name, location): _text(value, location) for name, value in values.items()}


def _shown(location: str) -> str:
    return one_line(location, _SHOWN)


def _plain_json(value: Any, depth: int = 0) -> Any:
    """Return JSON with its text cleaned; raise ``SessionError`` if it is too large or too deep."""
    if depth > DEEPEST_JSON:
        raise SessionError(f"its JSON is nested more than {DEEPEST_JSON} deep")
    match value:
        case int() if abs(value) > LARGEST:
            raise SessionError("a number in its JSON is too large")
        case str():
            return plain(value)
        case list():
            return [_plain_json(entry, depth + 1) for entry in value]
        case dict():
            return {plain(name): _plain_json(entry, depth + 1) for name, entry in value.items()}
    return value


def _plain_struct(struct: T) -> T:
    return msgspec.convert(_plain_json(msgspec.to_builtins(struct)), type(struct))
