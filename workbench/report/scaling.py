"""Scaling of steps over ranks: efficiency by kind of parallelism, and the time of each rank."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.studies.rank_scaling import (
    KIND,
    curves,
    headline,
    points_table,
    ranks_table,
    scalings,
    wrong_points,
)
from workbench.plots import Run
from workbench.report._section import BAD, Chart, Heading, Parts, Section, Words, titled_studies


def parts(runs: Sequence[Run]) -> Parts:
    """Show each scaling study of the session."""
    (run,) = runs
    for study in titled_studies(run.session, KIND):
        yield Heading(study.title)
        yield Words([f"{headline(study)}."], BAD if wrong_points(study) else "")
        shown = [run.alone(study)]
        if curves(study):
            yield Chart("scaling", shown)
        yield points_table(study).filled()
        if (ranks := ranks_table(study)).rows:
            yield Chart("rank_lanes", shown)
            yield ranks.filled()


SECTION = Section(
    name="scaling",
    title="Scaling over ranks",
    help=__doc__ or "",
    order=62,
    parts=parts,
    has=lambda session: bool(scalings(session)),
    nothing="Steps of several ranks were not compared with one device.",
)
