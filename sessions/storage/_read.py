"""Reader of the layout that ``_write`` writes; any other file is refused with a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from sessions import schema
from sessions.errors import SessionError
from sessions.model import (
    Configuration,
    Event,
    Evidence,
    MetricSeries,
    Order,
    PairedComparison,
    PhaseSpan,
    Segment,
    Session,
    Study,
)
from sessions.plain_text import one_line
from sessions.schema import ColumnInfo
from sessions.storage import seal
from sessions.storage._columns import (
    check_column,
    child_group,
    child_groups,
    list_columns,
    read_short,
)
from sessions.storage._lazy import LazyColumns, Source
from sessions.storage._structure import DEEPEST_JSON
from sessions.storage._write import FORMAT
from sessions.verdicts import work

_Value = TypeVar("_Value")
_LONGEST_JSON = 100_000_000
_LONGEST_REASON = 200  # characters


def read(source: Source, sealed: bool) -> Session:
    """Return the session in the file; long columns are read later.

    ``sealed``: True if the file has a matching checksum. Raises ``SessionError`` with a sentence
    about "it", or errors of the HDF5 library on a damaged file.
    """
    with source.open() as file:
        _identify(file, sealed)
        session = Session(
            title=_attribute(file, "title", str),
            id=_attribute(file, "id", str),
            created=_attribute(file, "created", float),
            notes=_attribute(file, "notes", str),
            environment=_named(file, "environment", schema.ENVIRONMENT),
            # Older files have none.
            titles=_named(file, "titles", schema.TITLES) if "titles" in file else {},
            segments=[_segment(group, source) for group in child_groups(file, "segments")],
            telemetry={
                _attribute(group, "device", str): _table(group, schema.TELEMETRY, source)
                for group in child_groups(file, "telemetry")
            },
            events=_events(file),
            comparisons=[_comparison(group) for group in child_groups(file, "comparisons")],
            studies=_studies(file, source),
            orders=_orders(file),
        )
    work.learn_toggles(session.environment)
    session.comparisons = [
        work.explained(session, comparison) for comparison in session.comparisons
    ]
    return session


def _identify(file: h5py.File, sealed: bool) -> None:
    written = file.attrs.get("format")
    if not isinstance(written, str) or written != FORMAT:
        raise SessionError("it is an HDF5 file, but not a session of this workbench")
    version = _attribute(file, "version", int)
    if version > seal.VERSION:
        raise seal.newer(version)
    if "sealed" in file.attrs and not sealed:
        raise SessionError(
            "its checksum is missing: another program rewrote it, or it is damaged; "
            "if the change was intended, accept it with `python -m sessions.accept FILE`"
        )


def _segment(group: h5py.Group, source: Source) -> Segment:
    return Segment(
        index=_attribute(group, "index", int),
        configuration=_json(group, "configuration", Configuration),
        label=_attribute(group, "label", str),
        start_s=_attribute(group, "start_s", float),
        phases=_phases(group),
        evidence=_json(group, "evidence", list[Evidence]),
        ledger=_json(group, "ledger", dict[str, Any]),
        steps=_table(child_group(group, "steps"), schema.STEPS, source),
        breakdown=_optional(group, "breakdown", schema.BREAKDOWN, source),
        memory=_optional(group, "memory", schema.MEMORY, source),
        metrics=_metrics(group, source),
    )


def _metrics(segment: h5py.Group, source: Source) -> dict[str, MetricSeries]:
    if "metrics" not in segment:  # written before models measured themselves, or by one without
        return {}

    # In the order in which the model has them, which files before had not.
    def index(group: h5py.Group) -> int:
        return _attribute(group, "index", int) if "index" in group.attrs else 0

    groups = sorted(child_groups(segment, "metrics"), key=index)
    return {_attribute(group, "name", str): _metric(group, source) for group in groups}


def _metric(group: h5py.Group, source: Source) -> MetricSeries:
    values = group.get("values")
    if source.trusted:
        samples, rows, columns = values.shape
    else:
        info = schema.METRIC["values"]
        samples, rows, columns = check_column(f"{group.name}/values", values, info, axes=3)
        times = check_column(f"{group.name}/t_s", group.get("t_s"), schema.METRIC["t_s"])
        if times != (samples,):
            raise SessionError(
                f"its columns in {group.name} differ in length (t_s {times[0]:,}, "
                f"values {samples:,})"
            )
    return MetricSeries(
        title=_attribute(group, "title", str),
        unit=_attribute(values, "units", str),
        help=_attribute(group, "description", str),
        row=_attribute(group, "row", str),
        column=_attribute(group, "column", str),
        shape=(rows, columns),
        table=LazyColumns(source, group.name, list(schema.METRIC), {}, samples),
    )


def _phases(group: h5py.Group) -> list[PhaseSpan]:
    dataset = group.get("phases")
    expected = np.dtype(schema.PHASES)
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype != expected or dataset.ndim != 1:
        raise SessionError(f"its {group.name}/phases is not a list of {expected.names}")
    return [PhaseSpan(*span) for span in dataset[()].tolist()]


def _comparison(group: h5py.Group) -> PairedComparison:
    details = {
        name: info for name, info in schema.BLOCK_DETAILS.items() if f"blocks/{name}" in group
    }
    blocks = read_short(group, "blocks", schema.BLOCKS | details)
    return PairedComparison(
        arms=_json(group, "arms", list[str]),
        order=blocks["arm"].tolist(),
        medians_ms=blocks["median_ms"].tolist(),
        ratio=_attribute(group, "ratio", float),
        low=_attribute(group, "low", float),
        high=_attribute(group, "high", float),
        verdict=_attribute(group, "verdict", str),
        facts=_json(group, "facts", dict[str, Any]),
        pairs=blocks["pair"].tolist() if "pair" in blocks else [],
        clocks_mhz=blocks["clock_mhz"].tolist() if "clock_mhz" in blocks else [],
        voids=blocks["void"].tolist() if "void" in blocks else [],
        means_ms=blocks["mean_ms"].tolist() if "mean_ms" in blocks else [],
        builds=blocks["build"].tolist() if "build" in blocks else [],
    )


def _studies(file: h5py.File, source: Source) -> list[Study]:
    if "studies" not in file:  # there were none
        return []
    return [
        Study(
            kind=_attribute(group, "kind", str),
            title=_attribute(group, "description", str),
            start_s=_attribute(group, "start_s", float),
            request=_json(group, "asked", dict[str, Any]),
            facts=_json(group, "facts", dict[str, Any]),
            tables={
                table.name.rpartition("/")[2]: _table(table, {}, source)
                for table in child_groups(group, "tables")
            },
        )
        for group in child_groups(file, "studies")
    ]


def _orders(file: h5py.File) -> list[Order]:
    if "orders" not in file:  # an older file, or no order
        return []
    columns = read_short(file, "orders", schema.ORDERS)
    orders = []
    for t_s, command, *counts, claims in zip(
        *(columns[name].tolist() for name in schema.ORDERS), strict=True
    ):
        before = dict(zip(("segments", "comparisons", "studies"), counts, strict=True))
        decoded = _converted(command, "/orders/command", dict[str, Any])
        study = None if claims < 0 else claims
        orders.append(Order(start_s=t_s, command=decoded, **before, claims=study))
    return orders


def _named(file: h5py.File, name: str, known: Mapping[str, ColumnInfo]) -> dict[str, str]:
    """Return a table of names and values."""
    columns = read_short(file, name, known)
    return dict(zip(columns["name"], columns["value"], strict=True))


def _events(file: h5py.File) -> list[Event]:
    columns = read_short(file, "events", schema.EVENTS)
    rows = zip(columns["t_s"], columns["kind"], columns["text"], strict=True)
    return [Event(float(t_s), kind, text) for t_s, kind, text in rows]


def _optional(
    parent: h5py.Group, name: str, columns: Mapping[str, ColumnInfo], source: Source
) -> Mapping[str, NDArray]:
    if name not in parent:
        return {}
    group = child_group(parent, name)
    names, rows = list_columns(group, columns, source)
    return LazyColumns(source, group.name, names, {}, rows)


def _table(
    group: h5py.Group, columns: Mapping[str, ColumnInfo], source: Source
) -> Mapping[str, NDArray]:
    names, rows = list_columns(group, columns, source)
    missing = {name: info.dtype for name, info in columns.items() if name not in names}
    return LazyColumns(source, group.name, names, missing, rows)


def _attribute(group: h5py.Group, name: str, kind: type[_Value]) -> _Value:
    try:
        value = group.attrs[name]
    except KeyError as error:
        raise SessionError(f"it lacks the attribute {name} of {group.name}") from error
    if isinstance(value, np.generic):
        value = value.item()
    if kind is float and isinstance(value, int):
        value = float(value)
    if not isinstance(value, kind):
        raise SessionError(
            f"its attribute {name} of {group.name} is {type(value).__name__}, "
            f"expected {kind.__name__}"
        )
    return value


def _json(group: h5py.Group, name: str, kind: type[_Value]) -> _Value:
    written = _attribute(group, name, str)
    return _converted(written, f"attribute {name} of {group.name}", kind)


def _converted(written: str, location: str, kind: type[_Value]) -> _Value:
    """Return the value that is written as JSON."""
    try:
        if len(written) > _LONGEST_JSON:
            raise ValueError(f"{len(written):,} characters, at most {_LONGEST_JSON:,}")
        value = json.loads(written)
        _require_shallow(value)
        return msgspec.convert(value, kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        reason = one_line(str(error), _LONGEST_REASON)
        raise SessionError(f"the JSON in its {location} is malformed ({reason})") from error


def _require_shallow(value: Any, depth: int = 0) -> None:
    """Raise ``ValueError`` for JSON that is nested too deeply."""
    if depth > DEEPEST_JSON:
        raise ValueError(f"nested more than {DEEPEST_JSON} deep")
    if isinstance(value, list | dict):
        for entry in value.values() if isinstance(value, dict) else value:
            _require_shallow(entry, depth + 1)
