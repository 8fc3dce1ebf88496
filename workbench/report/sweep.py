"""How time, throughput and memory grow with a field: the curves, their exponents and points."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.sweep import KIND, dimensions, fits_table, numbers_lines, points_table
from workbench.report._section import Chart, Heading, Parts, Section, Words, studies
from workbench.ui.plots import Run

_CURVES = ("sweep_time", "sweep_throughput", "sweep_memory")


def parts(runs: Sequence[Run]) -> Parts:
    """Each sweep of the session."""
    (run,) = runs
    for study in studies(run.session, KIND):
        yield Heading(study.title)
        shown = [run.alone(study)]
        for plot in _CURVES if dimensions(study) == 1 else ("sweep_map",):
            yield Chart(plot, shown)
        yield fits_table(study)
        yield points_table(study)
        yield Words(numbers_lines(study))


SECTION = Section(
    name="sweep",
    title="Sweeps",
    help=__doc__ or "",
    place=60,
    parts=parts,
    has=lambda session: bool(studies(session, KIND)),
    nothing="No field was swept.",
)
