"""The validation checklist: its checks, and a study of one as rows that people read.

The study's table ``checks`` has a row for each check that is done (``check``, ``status``,
``evidence``), its table ``lines`` the lines of source that a check found (``check``, ``line``).
For an undecided check the facts hold its measured time (``seconds``) and the further seconds that
should decide it (``more_s``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sessions.model import CHECKLIST, Session, Study
from sessions.tables import Column, Table
from sessions.verdicts.verdict_words import budget_of

KIND = CHECKLIST
PASS, FAIL, NOT_APPLICABLE, WAITING = "pass", "fail", "not applicable", "waiting"
NOT_CHECKED = "not checked"  # a check was due and could not run
UNDECIDED = "undecided"  # too few measurements; more seconds may decide
CHECKS = {
    "numerics": "Error within tolerance",
    "syncs": "No synchronization in the hot path",
    "graph": "Fixed graph",
    "memory": "Memory",
    "speedup": "Speed-up",
    "batches": "Other batch sizes",
}


@dataclass(frozen=True)
class Row:
    """One check: ``status`` is one of the six, ``evidence`` is a sentence."""

    name: str
    title: str
    status: str
    evidence: str
    lines: list[str] = field(default_factory=list)


def newest(session: Session) -> Study | None:
    """Return the last checklist of a session."""
    checklists = [study for study in session.studies if study.kind == KIND]
    return checklists[-1] if checklists else None


def rows(study: Study) -> list[Row]:
    """Return every check, also those that are not done yet."""
    checked = study.tables.get("checks", {})
    names = [str(name) for name in checked.get("check", [])]
    lines = study.tables.get("lines", {})
    checks = []
    for name, title in CHECKS.items():
        check_lines = [
            str(line)
            for check, line in zip(lines.get("check", []), lines.get("line", []), strict=True)
            if check == name
        ]
        if name in names:
            row = names.index(name)
            status, evidence = str(checked["status"][row]), str(checked["evidence"][row])
        else:
            status, evidence = WAITING, ""
        checks.append(Row(name, title, status, evidence, check_lines))
    return checks


def checks_table(study: Study) -> Table:
    """Return one row for each check: its result and evidence."""
    columns = [Column("check"), Column("result"), Column("evidence")]
    cells = [[row.title, row.status, row.evidence or "not done"] for row in rows(study)]
    return Table("Checks", columns, cells)


def lines_table(study: Study) -> Table:
    """Return one row for each line of source that a check found."""
    cells = [[row.title, line] for row in rows(study) for line in row.lines]
    return Table("Lines of source", [Column("check"), Column("line")], cells)


def failed(study: Study) -> list[Row]:
    """Return the checks that failed."""
    return [row for row in rows(study) if row.status == FAIL]


def is_open(study: Study) -> bool:
    """Return True if only a lack of measurements keeps the configuration from being shown."""
    states = {row.status for row in rows(study)}
    return UNDECIDED in states and states <= {PASS, NOT_APPLICABLE, UNDECIDED}


def budget_s(study: Study) -> float | None:
    """Return the budget, in whole seconds, that should decide the undecided checks.

    None if all checks are decided, or if the budget is unknown.
    """
    more_s = study.facts.get("more_s")
    if more_s is None:
        return None
    budget_s = budget_of(more_s, study.facts.get("seconds", 0.0))
    return budget_s if math.isfinite(budget_s) else None


def complete(study: Study) -> bool:
    """Return True if every check was done, or at least tried."""
    return all(row.status != WAITING for row in rows(study))


def is_shown(study: Study) -> bool:
    """Return True if every check that applies was made, and none failed."""
    return all(row.status in (PASS, NOT_APPLICABLE) for row in rows(study))


def headline(study: Study) -> str:
    """Return how the checks ended, counted."""
    states = [row.status for row in rows(study)]
    parts = [
        f"{states.count(status)} {status}"
        for status in (PASS, FAIL, NOT_APPLICABLE, UNDECIDED, NOT_CHECKED)
        if status in states
    ]
    if WAITING in states:
        parts.append(f"{states.count(WAITING)} not done")
    return ", ".join(parts)
