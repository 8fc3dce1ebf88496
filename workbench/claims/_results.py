"""A document's claims beside what was measured: as a table, as data, as a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sessions.model import Session, Study
from sessions.numbers import Cell, Measured
from sessions.tables import Column, Table
from workbench.claims._claim import (
    FAILS,
    HOLDS,
    NOT_HERE,
    NOT_MEASURED,
    UNDECIDED,
    Document,
    Outcome,
)

KIND = "claims"


def claims_table(document: Document, outcomes: Sequence[Outcome]) -> Table:
    """One row a claim: what the document says, what was measured, and whether it holds."""
    columns = [Column(name) for name in (
        "claim", "document says", "measured", "from", "to", "unit", "result", "experiment", "note"
    )]  # fmt: skip
    rows: list[list[Cell]] = []
    for one in outcomes:
        rows.append(
            [
                f"{one.claim.row} {one.claim.name}",
                one.claim.says,
                *_cells(one),
                one.claim.unit,
                one.verdict,
                one.experiment.name,
                one.reason,
            ]
        )
    return Table(f"{document.title}: claimed and measured", columns, rows)


def count(outcomes: Sequence[Outcome]) -> str:
    """How many claims came out how."""
    verdicts = [one.verdict for one in outcomes]
    named = (HOLDS, FAILS, UNDECIDED, NOT_MEASURED, NOT_HERE)
    shown = ", ".join(f"{verdicts.count(v)} {v}" for v in named if v in verdicts)
    return f"{len(verdicts)} claims: {shown}"


def _cells(one: Outcome) -> list[Cell]:
    if one.reading is None:
        return [None, None, None]
    if one.reading.low is None or one.reading.high is None:
        return [one.reading.value, "exact", ""]
    low, high = one.reading.ends
    return [Measured(end, (high - low) / 2) for end in (one.reading.value, low, high)]


def as_data(one: Outcome) -> dict[str, Any]:
    """One claim for programs."""
    reading, claim = one.reading, one.claim
    return {
        "row": claim.row,
        "claim": claim.name,
        "says": claim.says,
        "unit": claim.unit,
        "least": claim.least,
        "most": claim.most,
        "measured": None if reading is None else reading.value,
        "low": None if reading is None else reading.low,
        "high": None if reading is None else reading.high,
        "result": one.verdict,
        "reason": one.reason,
        "experiment": one.experiment.name,
        "how": one.experiment.how,
    }


def study(document: Document, outcomes: Sequence[Outcome], session: Session) -> Study:
    """The claims as a study of the session, beside those that measured them."""
    rows = [as_data(one) for one in outcomes]
    numbers = ("least", "most", "measured", "low", "high")
    columns = {
        name: np.array(
            [np.nan if row[name] is None else row[name] for row in rows],
            np.float64 if name in numbers else object,
        )
        for name in (rows[0] if rows else ())
    }
    start_s = session.segments[0].start_s if session.segments else 0.0
    asked = {"document": document.name}
    tables: dict[str, Mapping[str, NDArray]] = {"claims": columns} if rows else {}
    return Study(KIND, f"{document.title}: claims", start_s, asked, tables=tables)
