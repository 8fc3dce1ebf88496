"""Tables for people: a title, columns with units, and cells with no more digits than they deserve.

A ``Table`` knows nothing of the window: it becomes CSV or GitHub's Markdown, and a view shows
``text(cell)``.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sessions import numerics
from sessions.ceilings import UTILIZATION, doubt, utilization
from sessions.columns import row_count
from sessions.model import Session
from sessions.numbers import DIGITS as DIGITS
from sessions.numbers import MISSING as MISSING
from sessions.numbers import STEP_TIME, Cell, counted, interval_cells, text
from sessions.numbers import Measured as Measured
from sessions.numbers import number as number
from sessions.plain_text import for_spreadsheet, plain
from sessions.sizes import sized
from sessions.verdicts.comparison import (
    OTHERS,
    Arm,
    Comparison,
    Difference,
    compare_segments,
    configuration_differences,
)
from sessions.verdicts.ratios import UNPAIRED
from sessions.verdicts.work import INVALID, is_invalid


@dataclass(frozen=True)
class Column:
    """A column's heading; ``unit`` holds for every cell of it."""

    name: str
    unit: str = ""

    @property
    def heading(self) -> str:
        """Name and unit as one text."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; raises ``ValueError`` for a row of another length.

    ``notes`` are sentences that a reader of the rows must know; CSV has no place for them.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for line, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {line} of {self.title!r} has {counted(len(row), 'cell')}, "
                    f"expected {len(self.columns)}"
                )

    def column(self, name: str) -> int:
        """Return the position of a column; raise ``ValueError`` if there is none of that name."""
        return [column.name for column in self.columns].index(name)

    def numeric(self) -> list[bool]:
        """Return, for each column, True if it has numbers."""
        return [
            any(not isinstance(row[index], str | None) for row in self.rows)
            for index in range(len(self.columns))
        ]

    def filled(self) -> Table:
        """Return the table without columns that have no value in any row."""
        if not self.rows:
            return self
        columns = [
            index
            for index in range(len(self.columns))
            if any(text(row[index]) != MISSING for row in self.rows)
        ]
        return dataclasses.replace(
            self,
            columns=[self.columns[index] for index in columns],
            rows=[[row[index] for index in columns] for row in self.rows],
        )

    def turned(self) -> Table:
        """Return the table on its side: a row for each column but the first, the names."""
        names, *remaining = range(len(self.columns))
        columns = [self.columns[names], *(Column(text(row[names])) for row in self.rows)]
        rows = [[self.columns[n].heading, *(row[n] for row in self.rows)] for n in remaining]
        return dataclasses.replace(self, columns=columns, rows=rows)

    def to_data(self) -> dict[str, Any]:
        """Return columns and rows for programs: numbers as they are, without their errors."""
        return {
            "title": self.title,
            "columns": [column.heading for column in self.columns],
            "rows": [
                [cell.value if isinstance(cell, Measured) else cell for cell in row]
                for row in self.rows
            ],
            "notes": [*self.notes],
        }

    def to_csv(self) -> str:
        """Write headings and rows as RFC 4180 has it; a missing number is empty."""
        stream = io.StringIO()
        writer = csv.writer(stream)
        writer.writerow(for_spreadsheet(column.heading) for column in self.columns)
        for row in self.rows:
            cells = map(text, row)
            writer.writerow("" if cell == MISSING else for_spreadsheet(cell) for cell in cells)
        return stream.getvalue()

    def to_markdown(self) -> str:
        """Return a GitHub table under its title; columns of numbers are aligned to the right."""
        lines = [
            _line(escaped(column.heading) for column in self.columns),
            _line("---:" if right else "---" for right in self.numeric()),
            *(_line(escaped(text(cell)) for cell in row) for row in self.rows),
        ]
        notes = "".join(f"\n{escaped(note)}\n" for note in self.notes)
        return f"### {escaped(self.title)}\n\n" + "\n".join(lines) + f"\n{notes}"


def segments_table(session: Session, baseline: int = 0) -> Table:
    """Return one row for each segment: its differences, its steps, and how they compare.

    ``baseline`` is the place of the segment that the ratios refer to. Raises ``SessionError`` for
    one that is not there; a session without segments gives a table without rows.
    """
    if not session.segments and baseline == 0:
        return Table(session.title, [Column("segment"), *_STEP_COLUMNS, Column(PEAK)], [])
    labels = [segment.title for segment in session.segments]
    runs = [(session, segment) for segment in session.segments]
    arms, warnings = compare_segments(runs, labels, baseline)
    different = configuration_differences([segment.configuration for segment in session.segments])
    return _arms_table(session.title, "segment", arms, different, warnings)


def comparison_table(comparison: Comparison) -> Table:
    """Return one row for each session: the compared segment, differences, steps, and ratio.

    Only ``differences_table`` lists toggles that some session lacks, as sessions of kernels do.
    """
    listed = [
        difference
        for difference in comparison.differences
        if not difference.name.startswith("environment.")
        and not (difference.name.startswith("toggles.") and None in difference.values)
    ]
    chosen = Difference("segment", [arm.segment.title for arm in comparison.arms])
    return _arms_table("Comparison", "session", comparison.arms, [chosen, *listed])


def differences_table(comparison: Comparison) -> Table:
    """Return one row for each setting that differs, one column for each session."""
    columns = [Column("setting"), *(Column(arm.title) for arm in comparison.arms)]
    rows = [
        [difference.name, *(None if value is None else str(value) for value in difference.values)]
        for difference in comparison.differences
    ]
    return Table("Differences", columns, rows)


def evidence_table(session: Session) -> Table:
    """Return one row for each segment's toggle that has evidence."""
    names = ("segment", "toggle", "asked", "effect", "evidence")
    rows = [
        [segment.title, evidence.toggle, evidence.requested, evidence.status, evidence.text]
        for segment in session.segments
        for evidence in segment.evidence
    ]
    return Table("Requested and effective", [Column(name) for name in names], rows)


def facts_table(session: Session) -> Table:
    """Return one row for each other fact of a segment, as it is kept."""
    rows: list[list[Cell]] = [
        [segment.title, name, value if isinstance(value, str) else json.dumps(value)]
        for segment in session.segments
        for name, value in sorted(segment.ledger.items())
    ]
    return Table("Facts", [Column("segment"), Column("fact"), Column("value")], rows)


def events_table(session: Session) -> Table:
    """Return one row for each event, in the order in which they happened."""
    columns = [Column("time", "s"), Column("kind"), Column("what happened")]
    rows = [[f"{event.t_s:.2f}", event.kind, event.text] for event in session.events]
    return Table("Events", columns, rows)


def environment_table(session: Session) -> Table:
    """Return one row for each thing that is known of the machine."""
    rows = [[name, value] for name, value in session.environment.items()]
    return Table("Environment", [Column("name"), Column("value")], rows)


NUMBERS = "numbers"
_STEP_COLUMNS = [
    Column("steady steps"),
    Column("median", "ms"),
    Column("p95", "ms"),
    *(Column(name, STEP_TIME) for name in ("ratio", "ratio from", "ratio to")),
    Column("verdict"),
]
UNPAIRED_NOTE = (
    "Unpaired ratios prove nothing: the runs followed each other, so the machine may have changed."
)
PEAK = "peak memory"
RESIDENT = "peak resident set"  # peak of the process, if no allocator counts bytes
PEAKS = (PEAK, RESIDENT)
OWN = "own peak"  # the peak without memory of other configurations


def _arms_table(
    title: str,
    heading: str,
    arms: Sequence[Arm],
    different: Sequence[Difference],
    warnings: Sequence[str] = (),
) -> Table:
    unit, sizes = sized([a.peak_bytes for a in arms] + [a.own_peak_bytes for a in arms])
    peaks, own_peaks = sizes[: len(arms)], sizes[len(arms) :]
    columns = [Column(heading), *(Column(difference.name) for difference in different)]
    columns += [*_STEP_COLUMNS, Column(memory_heading(arms), unit)]
    if has_others := any(arm.segment.ledger.get(OTHERS) for arm in arms):
        columns.append(Column(OWN, unit))
    shares = [utilization(arm.segment, arm.summary.median) for arm in arms]
    if has_shares := any(map(math.isfinite, shares)):
        columns.append(Column(UTILIZATION, "%"))
    numbers = [numerics.mark(arm.segment.ledger) for arm in arms]
    if any(numbers):
        columns.append(Column(NUMBERS))
    notes = [_note(arm, arms) for arm in arms]
    if any(notes):
        columns.append(Column("note"))
    rows = []
    for row_number, (arm, note) in enumerate(zip(arms, notes, strict=True)):
        settings = [difference.values[row_number] for difference in different]
        row: list[Cell] = [arm.title]
        row += [None if value is None else str(value) for value in settings]
        row += [
            *_step_cells(arm),
            peaks[row_number],
            *([own_peaks[row_number]] if has_others else []),
        ]
        if has_shares:
            row.append(_percent(shares[row_number], arm.summary.median, arm.summary.error))
        if any(numbers):
            row.append(numbers[row_number] or None)
        if any(notes):
            row.append(note)
        rows.append(row)
    unpaired = any(arm.ratio is not None and arm.ratio.verdict == UNPAIRED for arm in arms)
    return Table(title, columns, rows, [*warnings, *[UNPAIRED_NOTE] * unpaired])


def memory_heading(arms: Sequence[Arm]) -> str:
    """Return the name of the arms' memory; arms without a measurement do not count."""
    measured = [arm.segment.steps["reserved"] for arm in arms if math.isfinite(arm.peak_bytes)]
    allocated = any(math.isfinite(reserved[-1]) for reserved in measured)
    return PEAK if allocated or not measured else RESIDENT


def _step_cells(arm: Arm) -> list[Cell]:
    summary = arm.summary
    cells: list[Cell] = [
        summary.n,
        Measured(summary.median, summary.error),
        Measured(summary.p95, summary.error),
    ]
    if arm.ratio is None:
        return [*cells, 1, None, None, INVALID if is_invalid(arm.segment) else None]
    ratio = interval_cells(arm.ratio.ratio, *arm.ratio.ends, arm.ratio.region)
    return [*cells, *ratio, arm.ratio.verdict or None]


def _percent(share: float, median: float, error: float | None) -> Cell:
    """Return a share in % with the relative error of the median that it was computed from."""
    return Measured(100 * share, None if error is None else 100 * share * error / median)


def _note(arm: Arm, arms: Sequence[Arm]) -> str:
    notes = []
    if arm.ratio is None:
        notes.append("baseline")
        if not arm.summary.n and (count := row_count(arm.segment.steps)):
            notes.append(f"none of its {counted(count, 'step')} is steady")
        if is_invalid(arm.segment):
            notes.append(f"{INVALID}: {arm.segment.ledger[INVALID]}")
    elif arm.ratio.note:
        notes.append(arm.ratio.note)
    if len({other.clock for other in arms if other.summary.n}) > 1 and arm.summary.n:
        notes.append(f"{arm.clock} time")
    if not is_invalid(arm.segment) and (why := doubt(arm.segment, arm.summary.median)):
        notes.append(why)
    return "; ".join(notes)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_SPECIAL = re.compile(r"[\\|`*<>\[\]~&]|(?<![^\W_])_|_(?![^\W_])")


def escaped(value: str) -> str:
    """Return Markdown that shows the text in one cell: no bar, line break, markup or HTML."""
    return _SPECIAL.sub(lambda match: "\\" + match[0], " ".join(plain(value).split()))
