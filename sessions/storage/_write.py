"""Lays a session out as HDF5; the other half of ``sessions.storage._read``."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from sessions import schema
from sessions.columns import row_count
from sessions.errors import SessionError
from sessions.model import MetricSeries, PairedComparison, Segment, Session, Study
from sessions.schema import ColumnInfo
from sessions.storage import seal
from sessions.storage._lazy import kept_open
from sessions.storage.study_schema import columns_of

FORMAT = "gpu-optimization-workbench session"

# Deflate at level 1 rather than LZF: h5dump and every other HDF5 program can read it, and it is
# within the second that saving a million steps may take (0.7 s against 0.5 s, 9.3 MB against 11.1).
_FILTERS = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}
_compressed = ContextVar("compressed", default=True)
_CHUNK_ROWS = 65536
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_TEXT = h5py.string_dtype("utf-8")


def image(session: Session, key: bytes | None = None, *, compressed: bool = True) -> memoryview:
    """Return the complete file of a session, sealed with the account's key, as bytes in memory.

    A file that is not ``compressed`` is read once and has no seal. Another thread may still add to
    the session: of each table, the rows that all columns have at that moment are saved. Raises
    ``SessionError`` for a ledger that cannot be written as JSON, ``ValueError`` for columns of
    different lengths.
    """
    stream = io.BytesIO()
    # From HDF5 1.10 on (libver v110) all metadata carries checksums.
    layout = {"libver": ("v110", "v110"), "userblock_size": seal.SIZE}
    token = _compressed.set(compressed)
    try:
        with kept_open(session), h5py.File(stream, "w", **layout) as file:
            _write(file, session)
    finally:
        _compressed.reset(token)
    content = stream.getbuffer()
    if compressed:
        seal.stamp(content, key)
    return content


def text(value: str) -> str:
    """Return the text as HDF5 can hold it: NUL and lone surrogates become U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", value)


def _write(file: h5py.File, session: Session) -> None:
    file.attrs["description"] = "Measured steps of a model under GPU optimizations"
    file.attrs["format"] = FORMAT
    file.attrs["version"] = seal.VERSION
    file.attrs["sealed"] = True
    file.attrs["id"] = text(session.id)
    file.attrs["created"] = float(session.created)
    file.attrs["created_units"] = "s since 1970-01-01 00:00 UTC"
    file.attrs["title"] = text(session.title)
    file.attrs["notes"] = text(session.notes)
    environment = dict(session.environment)
    _columns(
        file,
        "environment",
        "Hardware and software of the measuring machine",
        {"name": _texts(environment), "value": _texts(environment.values())},
        schema.ENVIRONMENT,
    )
    titles = dict(session.titles)
    if titles:
        _columns(
            file,
            "titles",
            "Displayed titles of the names in configurations",
            {"name": _texts(titles), "value": _texts(titles.values())},
            schema.TITLES,
        )
    events = list(session.events)
    _columns(
        file,
        "events",
        "Events, in order of time",
        {
            "t_s": np.array([event.t_s for event in events], "f8"),
            "kind": _texts(event.kind for event in events),
            "text": _texts(event.text for event in events),
        },
        schema.EVENTS,
    )
    segments = _group(file, "segments", "One group per segment: the steps of one configuration")
    for number, segment in enumerate(list(session.segments)):
        _segment(segments, f"{number:04d}", segment)
    telemetry = _group(file, "telemetry", "Samples of each device")
    for number, (device, table) in enumerate(list(session.telemetry.items())):
        name = device if _is_plain(device) else f"device{number}"
        group = _columns(telemetry, name, "Samples of one device", table, schema.TELEMETRY)
        group.attrs["device"] = text(device)
    comparisons = _group(file, "comparisons", "Comparisons of arms whose blocks alternate")
    for number, comparison in enumerate(list(session.comparisons)):
        _comparison(comparisons, f"{number:04d}", comparison)
    if session.studies:
        studies = _group(
            file, "studies", "Studies: measurements of several configurations or extra steps"
        )
        for number, study in enumerate(list(session.studies)):
            _study(studies, f"{number:04d}", study)
    if orders := list(session.orders):
        counts = ("segments", "comparisons", "studies")
        columns = {
            name: np.array([getattr(order, name) for order in orders], "i8") for name in counts
        }
        claims = [-1 if order.claims is None else order.claims for order in orders]
        _columns(
            file,
            "orders",
            "Commands to the runner, in order of time",
            {
                "t_s": np.array([order.start_s for order in orders], "f8"),
                "command": _texts(_json(order.command, "an order") for order in orders),
                **columns,
                "claims": np.array(claims, "i8"),
            },
            schema.ORDERS,
        )


def _segment(parent: h5py.Group, name: str, segment: Segment) -> None:
    group = _group(parent, name, "The steps of one configuration")
    group.attrs["index"] = segment.index
    group.attrs["label"] = text(segment.label)
    group.attrs["start_s"] = float(segment.start_s)
    group.attrs["configuration"] = _json(segment.configuration, f"configuration of segment {name}")
    group.attrs["evidence"] = _json(segment.evidence, f"evidence of segment {name}")
    group.attrs["ledger"] = _json(segment.ledger, f"ledger of segment {name}")
    spans = [(span.phase, span.start_s, span.stop_s) for span in segment.phases]
    phases = group.create_dataset("phases", data=np.array(spans, schema.PHASES))
    phases.attrs["description"] = f"Time spans of the segment's phases: {schema.PHASE_NAMES}"
    phases.attrs["units"] = "s since the session began"
    _columns(group, "steps", "One row per step", segment.steps, schema.STEPS)
    if segment.breakdown:
        _columns(group, "breakdown", "Device time by kernel", segment.breakdown, schema.BREAKDOWN)
    if segment.memory:
        _columns(group, "memory", "Device memory by role", segment.memory, schema.MEMORY)
    if segment.metrics:
        metrics = _group(group, "metrics", "Metrics that the model reported, one group per metric")
        for number, (key, series) in enumerate(list(segment.metrics.items())):
            group = _metric(metrics, key if _is_plain(key) else f"metric{number}", key, series)
            group.attrs["index"] = number


def _metric(parent: h5py.Group, name: str, key: str, series: MetricSeries) -> h5py.Group:
    group = _group(parent, name, text(series.help))
    group.attrs["name"] = text(key)
    group.attrs["title"] = text(series.title)
    group.attrs["row"] = text(series.row)
    group.attrs["column"] = text(series.column)
    rows = row_count(series.table)
    for column, info in schema.METRIC.items():
        if column == "values":
            info = info._replace(unit=text(series.unit))
        cells = series.shape if column == "values" else ()
        _column(group, column, info, np.asarray(series.table[column]), rows, cells)
    return group


def _comparison(parent: h5py.Group, name: str, comparison: PairedComparison) -> None:
    group = _group(parent, name, "A comparison of arms whose blocks alternate")
    group.attrs["arms"] = _json(comparison.arms, f"arms of comparison {name}")
    for field in ("ratio", "low", "high"):
        group.attrs[field] = float(getattr(comparison, field))
    group.attrs["verdict"] = text(comparison.verdict)
    group.attrs["facts"] = _json(comparison.facts, f"facts of comparison {name}")
    blocks = {
        "arm": np.array(comparison.order, "i4"),
        "median_ms": np.array(comparison.medians_ms, "f8"),
    }
    if comparison.pairs:
        blocks["pair"] = np.array(comparison.pairs, "i4")
    if comparison.clocks_mhz:
        blocks["clock_mhz"] = np.array(comparison.clocks_mhz, "f8")
    if comparison.voids:
        blocks["void"] = _texts(comparison.voids)
    if comparison.means_ms:
        blocks["mean_ms"] = np.array(comparison.means_ms, "f8")
    if comparison.builds:
        blocks["build"] = np.array(comparison.builds, "i4")
    columns = schema.BLOCKS | schema.BLOCK_DETAILS
    _columns(group, "blocks", "One row per block, in the order they ran", blocks, columns)


def _study(parent: h5py.Group, name: str, study: Study) -> None:
    group = _group(parent, name, text(study.title))
    group.attrs["kind"] = text(study.kind)
    group.attrs["start_s"] = float(study.start_s)
    group.attrs["asked"] = _json(study.request, f"request of study {name}")
    group.attrs["facts"] = _json(study.facts, f"facts of study {name}")
    tables = _group(group, "tables", "Results of the study")
    for table, columns in sorted(study.tables.items()):
        if not _is_plain(table):
            raise ValueError(f"table name {table!r} in {group.name}: only letters, digits and _")
        known = columns_of(study.kind, table)
        _columns(tables, table, "One table of the study", columns, known, ordered=True)


def _group(parent: h5py.Group, name: str, description: str, ordered: bool = False) -> h5py.Group:
    """Return a new group; if it is ``ordered``, its content is read in the order of writing."""
    group = parent.create_group(name, track_order=ordered)
    group.attrs["description"] = description
    return group


def _columns(
    parent: h5py.Group,
    name: str,
    description: str,
    table: Mapping[str, NDArray],
    columns: Mapping[str, ColumnInfo],
    ordered: bool = False,
) -> h5py.Group:
    group = _group(parent, name, description, ordered)
    rows = row_count(table)
    for column in table:
        if not _is_plain(column):
            raise ValueError(f"column name {column!r} in {group.name}: only letters, digits and _")
        info = columns.get(
            column, ColumnInfo(schema.EITHER, "", "a column that this program does not know")
        )
        _column(group, column, info, np.asarray(table[column]), rows)
    return group


def _column(
    group: h5py.Group,
    name: str,
    info: ColumnInfo,
    values: NDArray,
    rows: int,
    cells: tuple[int, ...] = (),
) -> None:
    """Write one column of ``rows`` rows, each of them of shape ``cells``."""
    if values.shape[1:] != cells or len(values) < rows:
        expected = (rows, *cells)
        raise ValueError(f"{group.name}/{name} has shape {values.shape}, expected {expected}")
    values = values[:rows]
    if info.dtype == schema.TEXT or values.dtype.kind in "OUT":
        dataset = group.create_dataset(name, data=_texts(values), dtype=_TEXT)
    else:
        as_it_is = info.dtype in schema.STORED_AS_THEY_ARE
        values = np.ascontiguousarray(values, values.dtype if as_it_is else info.dtype)
        chunk = min(rows, max(1, _CHUNK_ROWS // math.prod(cells)))
        filters = {**_FILTERS, "chunks": (chunk, *cells)} if rows and _compressed.get() else {}
        dataset = group.create_dataset(name, data=values, **filters)
    dataset.attrs["units"] = info.unit
    dataset.attrs["description"] = info.text


def _texts(values: Any) -> NDArray:
    return np.array([text(str(value)) for value in values], dtype=object)


def _is_plain(name: str) -> bool:
    return name.replace("_", "a").isalnum() and name.isascii()


def _json(value: object, description: str) -> str:
    """Write JSON with NaN, infinities and integers of any size, which ``json.loads`` reads back."""
    try:
        return json.dumps(msgspec.to_builtins(value, enc_hook=_number))
    except (TypeError, ValueError, RecursionError) as error:
        raise SessionError(f"The {description} cannot be saved: {error}.") from error


def _number(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} is neither text, number nor list")
