"""The validation checklist: each check, its result, its evidence, and the source lines found."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.studies.checklist import KIND, checks_table, headline, rows
from workbench.plots import Run
from workbench.report._section import (
    Heading,
    Parts,
    Script,
    Section,
    Words,
    studies,
    titled_studies,
)


def parts(runs: Sequence[Run]) -> Parts:
    """Yield each checklist of the session."""
    (run,) = runs
    for study in titled_studies(run.session, KIND):
        yield Heading(study.title)
        yield Words([f"{headline(study)}."])
        yield checks_table(study)
        for row in rows(study):
            if row.lines:
                yield Words([f"{row.title}:"])
                yield Script("\n".join(row.lines))


SECTION = Section(
    name="checklist",
    title="Validation checklist",
    help=__doc__ or "",
    order=40,
    parts=parts,
    has=lambda session: bool(studies(session, KIND)),
    nothing="The checklist was not run.",
)
