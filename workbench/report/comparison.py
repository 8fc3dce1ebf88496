"""The sessions compared: ratios of step time, distributions, and what differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sessions.tables import comparison_table, differences_table
from sessions.verdicts.comparison import MOST, choose, compare
from sessions.verdicts.statistics import steady
from workbench.plots import Run
from workbench.report._section import WARNING, Chart, Parts, Section, Words


def parts(runs: Sequence[Run]) -> Parts:
    """Yield the comparison with the first session, and charts of the compared segments."""
    indices = [run.session.segments.index(choose(run.session)) for run in runs]
    sessions = [dataclasses.replace(run.session, title=run.title) for run in runs]
    comparison = compare(sessions, segments=indices)
    shown = [
        dataclasses.replace(run, segments=(index,))
        for run, index in zip(runs, indices, strict=True)
    ]
    yield from (Words([warning], WARNING) for warning in comparison.warnings)
    yield comparison_table(comparison)
    for plot in ("box", "ecdf", "aligned_timeline"):
        yield Chart(plot, shown)
    if comparison.differences:
        yield differences_table(comparison)


SECTION = Section(
    name="comparison",
    title="Sessions compared",
    help=__doc__ or "",
    order=15,
    parts=parts,
    has=lambda session: any(steady(segment).any() for segment in session.segments),
    nothing=f"2 to {MOST} sessions with steady steps can be compared.",
    together=2,
    most=MOST,
)
