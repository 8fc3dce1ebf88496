"""Effects of the toggles: the chart of each attribution, its effects and its arms."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.studies.attribution.words import (
    KIND,
    arms_table,
    effects_table,
    headline,
    remarks,
)
from workbench.plots import Run
from workbench.report._section import Chart, Heading, Parts, Section, Words, studies, titled_studies


def parts(runs: Sequence[Run]) -> Parts:
    """Yield each attribution of the session."""
    (run,) = runs
    for study in titled_studies(run.session, KIND):
        yield Heading(study.title)
        yield Words([f"{headline(study)}.", *remarks(study)])
        yield Chart("attribution", [run.alone(study)])
        yield effects_table(study)
        yield arms_table(study)


SECTION = Section(
    name="attribution",
    title="Attribution",
    help=__doc__ or "",
    order=50,
    parts=parts,
    has=lambda session: bool(studies(session, KIND)),
    nothing="No effects of toggles were measured.",
)
