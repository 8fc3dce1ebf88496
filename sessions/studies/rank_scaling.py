"""Scaling of steps over ranks, as a session keeps it: efficiency against one device, by kind.

Strong scaling divides one batch among n ranks: the efficiency is t1 / (n tn). Weak scaling gives
every rank as many rows as one device had: the efficiency is t1 / tn. Both come from the ratio of
one paired comparison with one device, and so does the interval. Table ``efficiencies`` has one row
for each kind of parallelism and number of ranks, and ``ranks`` one for each rank of those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sessions.model import SCALING, Session, Study
from sessions.numbers import (
    MISSING,
    STEP_TIME,
    Cell,
    Measured,
    count_of,
    counted,
    interval_cells,
    is_drawable,
    text,
)
from sessions.numerics import MARKS
from sessions.sizes import sized
from sessions.studies.attribution.words import ONE_BUILD, rows
from sessions.studies.sweep import MEASURED
from sessions.tables import Column, Table
from sessions.verdicts.work import OTHER_WORK

KIND, POINTS, RANKS = SCALING, "efficiencies", "ranks"
STRONG, WEAK = "strong", "weak"
MODES = (STRONG, WEAK)
ONE_DEVICE = "one device"  # instead of a kind: the baseline of all others
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Efficiency:
    """An efficiency with its 95 % interval; NaN where it is not known. 1 is ideal."""

    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def efficiency(mode: str, ranks: int, ratio: float, low: float, high: float) -> Efficiency:
    """Return the efficiency of ``ranks`` ranks from the ratio of step times, tn over t1."""
    share = ranks if mode == STRONG else 1
    value, least, most = (
        1 / (share * end) if math.isfinite(end) and end > 0 else math.nan
        for end in (ratio, high, low)
    )
    return Efficiency(value, least, most)


def scalings(session: Session) -> list[Study]:
    """Return the session's scaling studies, the oldest first, that have a point."""
    return [study for study in session.studies if study.kind == KIND and POINTS in study.tables]


def points(study: Study) -> list[dict[str, Any]]:
    """Return the rows of points: kind by kind in the order of the request, ascending in ranks.

    A file may hold rows of no rank, or of infinitely many: they are left out.
    """
    kinds = [ONE_DEVICE, *map(str, study.request.get("kinds", []))]

    def order(row: dict[str, Any]) -> tuple[int, float]:
        kind = str(row["kind"])
        return kinds.index(kind) if kind in kinds else len(kinds), float(row["count"])

    possible = [row for row in rows(study, POINTS) if count_of(row["count"])]
    return sorted(possible, key=order)


def curves(study: Study) -> dict[str, list[dict[str, Any]]]:
    """Return the points with an efficiency, by kind."""
    curves_by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in points(study):
        if row["kind"] != ONE_DEVICE and is_drawable(row["efficiency"]):
            curves_by_kind.setdefault(str(row["kind"]), []).append(row)
    return curves_by_kind


def ranks_of(study: Study, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the ranks that made a point's steps."""
    return [
        rank
        for rank in rows(study, RANKS)
        if (rank["kind"], rank["count"]) == (row["kind"], row["count"])
        and count_of(rank["rank"]) is not None
    ]


def skew_ms(computing_ms: Sequence[float]) -> float:
    """Return by how much the slowest rank computes longer than the median rank; NaN if unknown."""
    known = np.asarray(computing_ms, np.float64)
    if not len(known) or not np.isfinite(known).all():
        return math.nan
    return float(known.max() - np.median(known))


def wrong_points(study: Study) -> list[str]:
    """Return the points whose results are out of tolerance, by name."""
    return [name_of(row) for row in points(study) if row["wrong"] == 1]


def name_of(row: dict[str, Any]) -> str:
    """Return a point's name, such as "data, 4 ranks"."""
    if row["kind"] == ONE_DEVICE:
        return ONE_DEVICE
    return f"{row['kind']}, {counted(int(row['count']), 'rank')}"


# In words and tables


def headline(study: Study) -> str:
    """State the efficiency of every kind at its largest number of ranks."""
    best = [curve[-1] for curve in curves(study).values()]
    if not best:
        return "no efficiency was measured"
    texts = [
        f"{name_of(row)}: {efficiency_text(row)}{', WRONG numbers' if row['wrong'] == 1 else ''}"
        for row in best
    ]
    return f"{study.request.get('mode', STRONG)} scaling efficiency of {'; '.join(texts)}"


def efficiency_text(row: dict[str, Any]) -> str:
    """Return ``0.92 (0.90 to 0.94)``; the efficiency alone if it has no interval."""
    value, *ends = map(text, _efficiency_cells(row))
    return value if MISSING in ends else f"{value} ({ends[0]} to {ends[1]})"


def _efficiency_cells(row: dict[str, Any]) -> list[Cell]:
    value, low, high = (float(row[name]) for name in ("efficiency", "low", "high"))
    return interval_cells(value, low, high, region=0.0)


def points_table(study: Study) -> Table:
    """Return one row for each kind and number of ranks."""
    shown, is_weak = points(study), study.request.get("mode") == WEAK
    unit, peaks = sized(float(row["peak_bytes"]) for row in shown)
    columns = [
        Column("kind"),
        Column("ranks"),
        Column("outcome"),
        Column("step time", "ms"),
        Column("ratio", STEP_TIME),
        Column("verdict"),
        Column("efficiency"),
        Column("from"),
        Column("to"),
        Column("exposed communication", "ms"),
        Column("skew", "ms"),
        Column(str(study.facts.get("memory", "peak memory")) + " of the largest rank", unit),
        Column("numbers"),
        Column("note"),
    ]
    table: list[list[Cell]] = []
    for row, peak in zip(shown, peaks, strict=True):
        ratio, error = float(row["ratio"]), (float(row["ratio_high"]) - row["ratio_low"]) / 2
        table.append(
            [
                str(row["kind"]),
                int(row["count"]),
                str(row["outcome"]),
                float(row["step_ms"]),
                Measured(ratio, error),
                OTHER_WORK if is_weak and row["verdict"] else str(row["verdict"]),
                *_efficiency_cells(row),
                _or_not_measured(row, "exposed_ms"),
                _or_not_measured(row, "skew_ms"),
                peak,
                MARKS[_right(row)] if row["outcome"] == MEASURED else "",
                str(row["reason"]),
            ]
        )
    return Table(study.title, columns, table, notes=remarks(study))


def ranks_table(study: Study) -> Table:
    """Return one row for each rank: its times in a step under the profiler, and its memory."""
    shown = [rank for row in points(study) for rank in ranks_of(study, row)]
    unit, peaks = sized(float(row["peak_bytes"]) for row in shown)
    times = ("computing_ms", "waiting_ms", "idle_ms", "communication_ms")
    columns = [
        *(Column(name) for name in ("kind", "ranks", "rank", "host")),
        *(Column(name.removesuffix("_ms"), "ms") for name in times),
        Column(str(study.facts.get("memory", "peak memory")), unit),
    ]
    table: list[list[Cell]] = [
        [
            str(row["kind"]),
            int(row["count"]),
            int(row["rank"]),
            str(row["host"]),
            *(float(row[name]) for name in times),
            peak,
        ]
        for row, peak in zip(shown, peaks, strict=True)
    ]
    return Table("Ranks: a step under the profiler", columns, table)


def remarks(study: Study) -> list[str]:
    """Return sentences that a reader of the points must know."""
    mode, batch = study.request.get("mode", STRONG), study.request.get("batch", "")
    lines = [
        f"Strong scaling: all ranks share a batch of {batch}; the efficiency is t1 / (n tn)."
        if mode == STRONG
        else f"Weak scaling: a batch of {batch} for each rank; the efficiency is t1 / tn."
    ]
    for name in ("communication", "device"):
        if fact := study.facts.get(name):
            lines.append(f"{fact}.")
    if omitted := len(rows(study, POINTS)) - len(points(study)):
        lines.append(f"Left out: {counted(omitted, 'row')} without a possible number of ranks.")
    if curves(study):
        lines.append(ONE_BUILD)
    if wrong := wrong_points(study):
        lines.append(f"Wrong numbers, however fast: {', '.join(wrong)}.")
    return lines


def _right(row: dict[str, Any]) -> bool | None:
    return {0.0: True, 1.0: False}.get(float(row["wrong"]))


def _or_not_measured(row: dict[str, Any], name: str) -> Cell:
    value = float(row[name])
    if row["kind"] == ONE_DEVICE or row["outcome"] != MEASURED:
        return None
    return value if math.isfinite(value) else NOT_MEASURED
