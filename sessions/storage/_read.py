"""Reader of what ``_write`` laid out; anything else is refused with a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
from sessions.storage._lazy import LazyColumns, Source, read_column
from sessions.storage._write import FORMAT
from sessions.verdicts import work

_Value = TypeVar("_Value")
_LONGEST_JSON, _DEEPEST_JSON = 100_000_000, 32
_LONGEST_REASON = 200  # characters


def read(source: Source, sealed: bool) -> Session:
    """Return the session in the file, its long columns left there.

    ``sealed``: True if the file has a checksum that fits. Raises ``SessionError`` with a
    sentence about "it", or whatever the HDF5 library raises on a damaged file.
    """
    with source.open() as file:
        _identify(file, sealed)
        session = Session(
            title=_attribute(file, "title", str),
            id=_attribute(file, "id", str),
            created=_attribute(file, "created", float),
            notes=_attribute(file, "notes", str),
            environment=_named(file, "environment", schema.ENVIRONMENT),
            # Files of before have none.
            titles=_named(file, "titles", schema.TITLES) if "titles" in file else {},
            segments=[_segment(group, source) for group in _children(file, "segments")],
            telemetry={
                _attribute(group, "device", str): _table(group, schema.TELEMETRY, source)
                for group in _children(file, "telemetry")
            },
            events=_events(file),
            comparisons=[_comparison(group) for group in _children(file, "comparisons")],
            studies=_studies(file, source),
            orders=_orders(file),
        )
    work.learn_toggles(session.environment)
    session.comparisons = [
        work.explained(session, comparison) for comparison in session.comparisons
    ]
    return session


def _identify(file: h5py.File, sealed: bool) -> None:
    if "format" not in file.attrs or file.attrs["format"] != FORMAT:
        raise SessionError("it is an HDF5 file, but not a session of this workbench")
    version = _attribute(file, "version", int)
    if version > seal.VERSION:
        raise seal.newer(version)
    if "sealed" in file.attrs and not sealed:
        raise SessionError(
            "its checksum is missing, so another program wrote it anew or it is damaged; "
            "if that was meant, accept it with `python -m sessions.accept FILE`"
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
        steps=_table(_child(group, "steps"), schema.STEPS, source),
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

    groups = sorted(_children(segment, "metrics"), key=index)
    return {_attribute(group, "name", str): _metric(group, source) for group in groups}


def _metric(group: h5py.Group, source: Source) -> MetricSeries:
    values = group.get("values")
    if source.trusted:
        samples, rows, columns = values.shape
    else:
        info = schema.METRIC["values"]
        samples, rows, columns = _check_column(f"{group.name}/values", values, info, axes=3)
        times = _check_column(f"{group.name}/t_s", group.get("t_s"), schema.METRIC["t_s"])
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
    blocks = _short(group, "blocks", schema.BLOCKS | details)
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
                for table in _children(group, "tables")
            },
        )
        for group in _children(file, "studies")
    ]


def _orders(file: h5py.File) -> list[Order]:
    if "orders" not in file:  # of before they were kept, or nothing was asked for
        return []
    columns = _short(file, "orders", schema.ORDERS)
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
    columns = _short(file, name, known)
    return dict(zip(columns["name"], columns["value"], strict=True))


def _events(file: h5py.File) -> list[Event]:
    columns = _short(file, "events", schema.EVENTS)
    rows = zip(columns["t_s"], columns["kind"], columns["text"], strict=True)
    return [Event(float(t_s), kind, text) for t_s, kind, text in rows]


def _short(parent: h5py.Group, name: str, columns: Mapping[str, ColumnInfo]) -> dict[str, NDArray]:
    """Return a table of few rows, all of whose columns must exist, read at once."""
    group = _child(parent, name)
    names, _ = _checked(group, columns)
    for column in columns:
        if column not in names:
            raise SessionError(f"its {group.name} lacks the column {column}")
    return {column: read_column(group[column]) for column in columns}


def _optional(
    parent: h5py.Group, name: str, columns: Mapping[str, ColumnInfo], source: Source
) -> Mapping[str, NDArray]:
    if name not in parent:
        return {}
    group = _child(parent, name)
    names, rows = _listed(group, columns, source)
    return LazyColumns(source, group.name, names, {}, rows)


def _table(
    group: h5py.Group, columns: Mapping[str, ColumnInfo], source: Source
) -> Mapping[str, NDArray]:
    names, rows = _listed(group, columns, source)
    missing = {name: info.dtype for name, info in columns.items() if name not in names}
    return LazyColumns(source, group.name, names, missing, rows)


def _listed(
    group: h5py.Group, columns: Mapping[str, ColumnInfo], source: Source
) -> tuple[list[str], int]:
    """Return the group's columns, those we know first, and their number of rows.

    Those of a trusted file, which this program wrote, are not opened to see whether they fit: it
    is most of the time that opening a session of many segments takes.
    """
    if not source.trusted:
        return _checked(group, columns)
    names = _in_order(group, columns)
    return names, group[names[0]].shape[0] if names else 0


def _in_order(names: Iterable[str], columns: Mapping[str, ColumnInfo]) -> list[str]:
    present = dict.fromkeys(names)
    return [name for name in columns if name in present] + [
        name for name in present if name not in columns
    ]


def _checked(group: h5py.Group, columns: Mapping[str, ColumnInfo]) -> tuple[list[str], int]:
    """Return what ``_listed`` does; refuse columns of wrong type, shape or of differing lengths."""
    lengths = {
        name: _check_column(f"{group.name}/{name}", dataset, columns.get(name))[0]
        for name, dataset in group.items()
    }
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {rows:,}" for name, rows in sorted(lengths.items()))
        raise SessionError(f"its columns in {group.name} differ in length ({listed})")
    return _in_order(lengths, columns), next(iter(lengths.values()), 0)


def _check_column(
    name: str, dataset: object, info: ColumnInfo | None, axes: int = 1
) -> tuple[int, ...]:
    """Return the shape of a column; refuse another type or number of axes."""
    if not isinstance(dataset, h5py.Dataset):
        raise SessionError(f"its {name} is not a column of numbers or text")
    shape, dtype = dataset.shape, dataset.dtype
    _check_type(name, dtype, None if info is None else info.dtype)
    if shape is None or len(shape) != axes:
        wanted = "one axis" if axes == 1 else f"{axes} axes"
        raise SessionError(f"its {name} has shape {shape}, expected {wanted}")
    return tuple(shape)


def _check_type(name: str, dtype: np.dtype, expected: str | None) -> None:
    is_text = h5py.check_string_dtype(dtype) is not None
    if expected is None:
        fits = is_text or dtype.kind in "biuf"
        expected = "numbers or text"
    elif expected == "str":
        fits, expected = is_text, "text"
    else:
        fits = not is_text and dtype.newbyteorder("=") == np.dtype(expected)
    if not fits:
        raise SessionError(f"its {name} has type {dtype}, expected {expected}")


def _child(parent: h5py.Group, name: str) -> h5py.Group:
    child = parent.get(name)
    if not isinstance(child, h5py.Group):
        raise SessionError(f"it lacks the group {parent.name.rstrip('/')}/{name}")
    return child


def _children(file: h5py.File, name: str) -> list[h5py.Group]:
    parent = _child(file, name)
    return [_child(parent, child) for child in sorted(parent, key=lambda key: (len(key), key))]


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


def _converted(written: str, where: str, kind: type[_Value]) -> _Value:
    """Return the value that is written as JSON."""
    try:
        if len(written) > _LONGEST_JSON:
            raise ValueError(f"{len(written):,} characters, at most {_LONGEST_JSON:,}")
        value = json.loads(written)
        _require_shallow(value)
        return msgspec.convert(value, kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        reason = one_line(str(error), _LONGEST_REASON)
        raise SessionError(f"the JSON in its {where} is malformed ({reason})") from error


def _require_shallow(value: Any, depth: int = 0) -> None:
    """Raise ``ValueError`` for JSON that is nested too deeply."""
    if depth > _DEEPEST_JSON:
        raise ValueError(f"nested more than {_DEEPEST_JSON} deep")
    if isinstance(value, list | dict):
        for entry in value.values() if isinstance(value, dict) else value:
            _require_shallow(entry, depth + 1)
