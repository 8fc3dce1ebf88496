"""Refuses a runner's messages that no session file can hold.

A file is checked where it is opened later (``sessions.storage.content``). The same is refused here
when it comes, so that one wrong number does not cost the whole session.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from sessions.model import KERNELS, MetricSeries, PairedComparison, Phase, Segment
from sessions.storage import content
from workbench import protocol


def check_segment(segment: Segment, **changes: Any) -> None:
    """Raise ``SessionError`` for a segment with changes that no file can hold.

    Columns that are not among the changes are not read: they were checked when they came.
    """
    parts = {"steps": {"t_s": np.empty(0)}, "metrics": {}, "breakdown": {}, "memory": {}}
    content.cleaned_segment(dataclasses.replace(segment, **{**parts, **changes}), segment.index)


def check_steps(segment: Segment, columns: Mapping[str, np.ndarray]) -> None:
    """Raise ``SessionError`` for steps of this segment that no file can hold."""
    content.check_steps(columns)
    if segment.configuration.family == KERNELS:  # its ledger must say what was timed
        check_segment(segment, steps=columns)


def check_comparison(comparison: PairedComparison, segments: int, facts: Mapping[str, Any]) -> None:
    """Raise ``SessionError`` for a comparison with these facts alone that no file can hold."""
    changed = msgspec.structs.replace(comparison, facts=dict(facts))
    content.cleaned_comparison(changed, segments, "comparison")


def without_blocks(comparison: PairedComparison) -> PairedComparison:
    """Return the comparison as it was before its first block."""
    empty: dict[str, list[Any]] = {
        name: []
        for name in ("order", "medians_ms", "pairs", "clocks_mhz", "voids", "means_ms", "builds")
    }
    return msgspec.structs.replace(comparison, **empty)


def with_blocks(comparison: PairedComparison, blocks: list[protocol.Block]) -> PairedComparison:
    """Return a new comparison with more blocks: another thread may be saving the old one."""
    clocks = [math.nan if block.clock_mhz is None else block.clock_mhz for block in blocks]
    means = [math.nan if block.mean_ms is None else block.mean_ms for block in blocks]
    return msgspec.structs.replace(
        comparison,
        order=comparison.order + [block.arm for block in blocks],
        medians_ms=comparison.medians_ms + [block.median_ms for block in blocks],
        pairs=comparison.pairs + [block.pair for block in blocks],
        clocks_mhz=comparison.clocks_mhz + clocks,
        voids=comparison.voids + [block.void for block in blocks],
        means_ms=comparison.means_ms + means,
        builds=comparison.builds + [block.build for block in blocks],
    )


def study_columns(message: protocol.StudyRows) -> dict[str, np.ndarray]:
    """Return the rows' columns: objects if they are text, else FP64; NaN for what is not finite."""
    for name in (message.table, *message.columns):
        if not name.isidentifier() or not name.isascii():
            raise protocol.WireError(
                f"{name[:40]!r} is not a valid name of a table or column of a study"
            )
    lengths = {name: len(values) for name, values in message.columns.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise protocol.WireError(f"columns of one batch are empty or differ in length: {lengths}")
    columns = {}
    for name, values in message.columns.items():
        is_text = {isinstance(value, str) for value in values}
        if len(is_text) > 1:
            raise protocol.WireError(f"column {name[:40]!r} of a study mixes text and numbers")
        column = np.array(values, object if True in is_text else np.float64)
        # JSON on the wire has no infinity.
        columns[name] = column if True in is_text else np.where(np.isfinite(column), column, np.nan)
    return columns


def matrix(name: str, rows: list[list[float | None]], known: MetricSeries | None) -> np.ndarray:
    """Return the numbers (rows, columns) of one metric, FP32.

    NaN stands for None and for what is too large to be drawn, such as an infinite norm.
    """
    lengths = {len(row) for row in rows}
    if len(lengths) != 1 or lengths == {0}:
        raise protocol.WireError(
            f"metric {name[:40]!r}: rows differ in length: {sorted(lengths)} columns"
        )
    values = np.array(rows, np.float64)
    if known is not None and values.shape != known.shape:
        raise protocol.WireError(
            f"metric {name[:40]!r}: its shape in this segment was {known.shape}, but now it is "
            f"{values.shape}"
        )
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32)
    return np.where(np.abs(stored) < content.LARGEST, stored, np.float32(math.nan))


def check_integers(name: str, values: np.ndarray, limits: np.iinfo) -> None:
    """Raise ``WireError`` for a value that is not a whole number within the limits."""
    # NaN and numbers that are too large would become other numbers, with only a warning.
    is_integer = (values >= limits.min) & (values <= limits.max) & (values == np.floor(values))
    if not is_integer.all():
        raise protocol.WireError(
            f"column {name}: expected whole numbers from {limits.min} to {limits.max}"
        )


def check_phase(phase: int, last: Phase = Phase.CHECK) -> None:
    """Raise ``WireError`` for a phase that is unknown, or that no step has."""
    known = [int(phase) for phase in Phase if phase <= last]
    if phase not in known:
        raise protocol.WireError(f"phase {phase} is not one of {known}")
