"""The validation checklist: each check, how it ended, its evidence, and the source lines found."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.checklist import KIND, headline, rows
from sessions.tables import Column, Table
from workbench.report._section import Heading, Parts, Script, Section, Words, studies
from workbench.ui.plots import Run


def parts(runs: Sequence[Run]) -> Parts:
    """Each checklist of the session."""
    (run,) = runs
    for study in studies(run.session, KIND):
        yield Heading(study.title)
        yield Words([f"{headline(study)}."])
        found = rows(study)
        columns = [Column("check"), Column("result"), Column("evidence")]
        cells = [[row.title, row.status, row.evidence or "not done"] for row in found]
        yield Table("Checks", columns, cells)
        for row in found:
            if row.lines:
                yield Words([f"{row.title}:"])
                yield Script("\n".join(row.lines))


SECTION = Section(
    name="checklist",
    title="Validation checklist",
    help=__doc__ or "",
    place=40,
    parts=parts,
    has=lambda session: bool(studies(session, KIND)),
    nothing="No configuration was put through the checklist.",
)
