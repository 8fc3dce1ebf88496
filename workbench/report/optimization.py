"""The best configuration: the Pareto front, the verdicts, and the options tried or left out."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.studies.optimization.words import (
    EFFECTS,
    KIND,
    candidates_table,
    headline,
    options_table,
    remarks,
    verdicts_table,
)
from workbench.plots import Run
from workbench.report._section import Chart, Heading, Parts, Section, Words, studies, titled_studies


def parts(runs: Sequence[Run]) -> Parts:
    """Show each optimization of the session."""
    (run,) = runs
    for study in titled_studies(run.session, KIND):
        yield Heading(study.title)
        yield Words([f"{headline(study)}.", *remarks(study)])
        yield Chart("pareto", [run.alone(study)])
        if study.tables.get(EFFECTS):
            yield verdicts_table(study)
        yield candidates_table(study)
        yield options_table(study)


SECTION = Section(
    name="optimization",
    title="Best configuration",
    help=__doc__ or "",
    order=45,
    parts=parts,
    has=lambda session: bool(studies(session, KIND)),
    nothing="No search for a configuration was run.",
)
