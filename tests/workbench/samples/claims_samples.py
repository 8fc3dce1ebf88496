"""Claims as they may have come out on some GPU, with every kind of result, for panels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from sessions.studies import claims
from sessions.studies.claims import FAILS, HOLDS, MEASURING, NOT_MEASURED, UNDECIDED, WAITING, Row
from workbench import protocol
from workbench.claims import documents
from workbench.claims._course import Course

# Result, measured, low, high, reason: dealt out to the claims in turn.
OUTCOMES = (
    (HOLDS, 2.31, 2.27, 2.35, ""),
    (FAILS, 1.23, 1.19, 1.3, ""),
    (UNDECIDED, 1.78, 1.69, 1.88, ""),
    (HOLDS, 0.412, None, None, ""),
    (
        NOT_MEASURED, None, None, None,
        "+ checkpointing=full: not built: building earlier arms took 121 s, 120 s are "
        "allowed; compiling took 97 s",
    ),
    (FAILS, 3.9, 3.8, 4.0, "+ compile=default computed wrong numbers"),
)  # fmt: skip


def rows(upto: int | None = None) -> list[Row]:
    """Every claim of every document; from ``upto`` on one is being measured, and the rest wait."""
    every = [(d, e) for d in documents().values() for e in d.experiments]
    blank = Course(every, 3.0).rows
    made = []
    for index, row in enumerate(blank):
        result, *numbers, reason = OUTCOMES[index % len(OUTCOMES)]
        if upto is not None and index >= upto:
            result = MEASURING if row.experiment == blank[upto].experiment else WAITING
            numbers, reason = [None] * 3, ""
        known = dict(zip(("measured", "low", "high"), numbers, strict=True))
        measured = {name: value for name, value in known.items() if value is not None}
        made.append(dataclasses.replace(row, result=result, reason=reason, **measured))
    return made


def messages(now: float, upto: int | None = None) -> Iterator[protocol.AnyMessage]:
    """Yield the study of the rows as it is written beside a runner."""
    own = protocol.OWN_STUDY
    request = {
        "documents": [*documents()],
        "experiments": [
            experiment.name for made in documents().values() for experiment in made.experiments
        ],
        "budget_s": 3.0,
        "limit_s": 0.0,
    }
    yield protocol.StudyStarted(
        t_s=now, index=own, kind=claims.KIND, title="claims", request=request
    )
    columns = claims.columns(rows(upto))
    yield protocol.StudyRows(t_s=now, study=own, table=claims.TABLE, columns=columns, replace=True)
    if upto is None:
        yield protocol.StudyFacts(t_s=now, study=own, facts={"final": True})
