"""Growth of time, throughput and memory with a field: the curves, their exponents and points."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.studies.sweep import KIND, dimensions, fits_table, numbers_lines, points_table
from workbench.plots import PLOTS, Run
from workbench.report._section import Chart, Heading, Parts, Section, Words, studies, titled_studies

_CURVES = ("sweep_time", "sweep_throughput", "sweep_memory")
_MAP = "sweep_map"  # the map of one arm


def parts(runs: Sequence[Run]) -> Parts:
    """Yield each sweep of the session."""
    (run,) = runs
    for study in titled_studies(run.session, KIND):
        yield Heading(study.title)
        shown = [run.alone(study)]
        if dimensions(study) == 1:
            yield from (Chart(plot, shown) for plot in _CURVES)
        else:
            arms = PLOTS[_MAP].choices(shown).get("arm", ())  # a choice only if there are several
            yield from (Chart(_MAP, shown, {"arm": arm}) for arm in arms)
            if not arms:
                yield Chart(_MAP, shown)
        yield fits_table(study)
        yield points_table(study)
        yield Words(numbers_lines(study))


SECTION = Section(
    name="sweep",
    title="Sweeps",
    help=__doc__ or "",
    order=60,
    parts=parts,
    has=lambda session: bool(studies(session, KIND)),
    nothing="No sweep was measured.",
)
