"""Claims of documents beside their measurements: a study's rows, in words and tables.

The study's table ``claims`` has a row for each requested claim; its columns are the fields of
``Row``. A result is tentative while it is ``MEASURING``; a claim without a result has not passed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sessions.columns import TableColumns, row_count
from sessions.model import CLAIMS, Session, Study
from sessions.numbers import Cell, Measured, counted, number, text
from sessions.tables import Column, Table

KIND = CLAIMS
TABLE = "claims"
HOLDS = "holds"
FAILS = "does not hold"
_PLURAL = {HOLDS: "hold", FAILS: "do not hold"}
UNDECIDED = "undecided"
NOT_HERE = "not applicable here"
NOT_MEASURED = "not measured"
MEASURING = "measuring"
WAITING = "waiting"
RESULTS = (HOLDS, FAILS, UNDECIDED, NOT_MEASURED, NOT_HERE, MEASURING, WAITING)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of a document, and its measurement.

    ``says`` is in the document's own words, ``least`` and ``most`` are its bounds, NaN for none.
    ``low`` and ``high`` are the ends of the 95 % interval; NaN if the number is exact or the
    ``rounds`` are too few. ``rounds`` is NaN if there were none, and in older files. ``result`` is
    one of ``RESULTS``, or empty if not requested; ``reason`` explains it.
    """

    document: str
    experiment: str
    row: str  # the id in the project's list of requirements
    claim: str
    says: str
    unit: str
    least: float = math.nan
    most: float = math.nan
    measured: float = math.nan
    low: float = math.nan
    high: float = math.nan
    result: str = WAITING
    reason: str = ""
    how: str = ""
    rounds: float = math.nan  # rounds behind the interval

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Return what distinguishes a claim from every other."""
        return self.document, self.experiment, self.claim, self.says, self.unit

    @property
    def final(self) -> bool:
        """Return True if it is known how this ended."""
        return self.result not in (MEASURING, WAITING, "")


def columns(claims: Sequence[Row]) -> TableColumns:
    """Return the rows as columns of a study's table; None is NaN."""
    names = [field.name for field in dataclasses.fields(Row)]
    return {name: [_wire(getattr(row, name)) for row in claims] for name in names}


def rows(study: Study) -> list[Row]:
    """Return the rows of a study of claims; a missing column is as if it was empty."""
    table = study.tables.get(TABLE, {})
    known = [field.name for field in dataclasses.fields(Row) if field.name in table]
    texts = {field.name for field in dataclasses.fields(Row) if field.type == "str"}
    blank: dict[str, Any] = dict.fromkeys(texts, "") | {
        "document": str(study.request.get("document", ""))
    }
    read = [
        Row(**blank | {n: _typed(table[n][row], n in texts) for n in known})
        for row in range(row_count(table) if table else 0)
    ]
    # Older sessions have "x faster than", which a factor below 1 contradicts.
    return [
        dataclasses.replace(row, unit=row.unit.replace("x faster than ", "x as fast as "))
        for row in read
    ]


def studies(session: Session) -> list[Study]:
    """Return the session's studies of claims, in the order of their requests."""
    return [study for study in session.studies if study.kind == KIND]


def newest(session: Session, running: bool = False) -> dict[tuple[str, ...], Row]:
    """Return the newest row of each claim by its key.

    ``running``: the last study continues, so that its unmeasured claims may still get a result.
    """
    newest_rows: dict[tuple[str, ...], Row] = {}
    requested = studies(session)
    for study in requested:
        goes_on = running and study is requested[-1]
        for row in rows(study):
            if row.final or goes_on:
                newest_rows[row.key] = row
            elif row.key not in newest_rows:
                newest_rows[row.key] = _cut_short(row)
    return newest_rows


def measured_text(row: Row) -> str:
    """Return the measured number with its interval and unit: "1.23x (1.19 to 1.30)", or nothing."""
    if not math.isfinite(row.measured):
        return ""
    value, low, high = _rounded(row)
    times, _, unit_suffix = row.unit.partition(" ")
    factor = times == "x"
    interval = f" ({low} to {high})" if low else ""
    return f"{value}{'x' if factor else ''}{interval} {unit_suffix if factor else row.unit}".strip()


def count(claims: Iterable[Row]) -> str:
    """Return how many claims ended with each result."""
    results = [row.result for row in claims]
    counts = [(results.count(result), result) for result in RESULTS if result in results]
    shown = ", ".join(
        f"{n} {_PLURAL.get(result, result) if n > 1 else result}" for n, result in counts
    )
    return f"{counted(len(results), 'claim')}: {shown}"


def claims_table(claims: Sequence[Row], title: str) -> Table:
    """Return one row for each claim: the document's value, ours, whether it holds, why not."""
    headings = [Column(name) for name in (
        "document", "claim", "document says", "measured", "from", "to", "unit", "result",
        "experiment", "note",
    )]  # fmt: skip
    cells: list[list[Cell]] = [
        [
            row.document,
            f"{row.row} {row.claim}",
            row.says,
            *_cells(row),
            row.unit,
            row.result,
            row.experiment,
            row.reason,
        ]
        for row in claims
    ]
    return Table(title, headings, cells)


def summary_table(claims: Sequence[Row], title: str) -> Table:
    """Return the same in four columns, as a page about the results shows it."""
    headings = [Column(name) for name in ("claim", "document", "measured (interval)", "verdict")]
    cells: list[list[Cell]] = [
        [
            f"{row.document}: {row.claim}",
            row.says,
            measured_text(row) or None,
            f"{row.result}: {row.reason}" if row.reason else row.result,
        ]
        for row in claims
    ]
    return Table(title, headings, cells)


def _cells(row: Row) -> list[Cell]:
    if not math.isfinite(row.measured):
        return [None, None, None]
    if not math.isfinite(row.low):
        return [row.measured, *(["exact", ""] if math.isnan(row.rounds) else [None, None])]
    return _interval_cells(row)


def _interval_cells(row: Row) -> list[Cell]:
    """Return number and interval, with enough digits to show on which side of bounds they lie."""
    error = (row.high - row.low) / 2
    edges = [bound for bound in (row.least, row.most) if math.isfinite(bound)]
    return [Measured(row.measured, error), *(Measured(end, error, edges)
            for end in (row.low, row.high))]  # fmt: skip


def _rounded(row: Row) -> tuple[str, str, str]:
    if not math.isfinite(row.low):
        counted = math.isnan(row.rounds) and row.measured.is_integer() and row.measured >= 1000
        return f"{row.measured:,.0f}" if counted else number(row.measured), "", ""
    value, low, high = map(text, _interval_cells(row))
    return value, low, high


def _cut_short(row: Row) -> Row:
    """Return the row of a run that was killed before it wrote how it ended."""
    return dataclasses.replace(
        row,
        result=NOT_MEASURED,
        reason="the run ended before this was measured",
        measured=math.nan,
        low=math.nan,
        high=math.nan,
    )


def _wire(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _typed(value: Any, is_text: bool) -> str | float:
    return str(value) if is_text else float(value)
