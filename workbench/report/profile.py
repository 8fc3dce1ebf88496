"""Time and memory of a step: by module, kernel and class, and by role."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.studies import breakdown
from sessions.studies.breakdown_tables import (
    achieved_table,
    kernels_table,
    kinds_table,
    memory_table,
    modules_table,
)
from workbench.plots import Run
from workbench.report._section import Chart, Heading, Parts, Section, Words, titled_studies


def parts(runs: Sequence[Run]) -> Parts:
    """Yield each profile of the session."""
    (run,) = runs
    for study in titled_studies(run.session, breakdown.KIND):
        if "kernels" not in study.tables:
            continue
        shown = [run.alone(study)]
        yield Heading(study.title)
        yield Words(breakdown.words(study))
        yield Chart("breakdown", shown)
        if "timeline" in study.tables:
            yield Chart("kernel_timeline", shown)
        if breakdown.roof_points(study):
            yield Chart("profile_roofline", shown)
        yield kinds_table(study)
        if breakdown.achieved(study):
            yield achieved_table(study)
        yield kernels_table(study)
        yield modules_table(study)
        yield Chart("memory_roles", shown)
        yield Chart("memory_course", shown)
        yield memory_table(study)


SECTION = Section(
    name="profile",
    title="Step breakdown",
    help=__doc__ or "",
    order=90,
    parts=parts,
    has=lambda session: bool(breakdown.profiles(session)),
    nothing="No steps were profiled.",
)
