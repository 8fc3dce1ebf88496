"""The timed kernel library: compared with other libraries, and with this device's roofline."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.model import KERNELS, Session
from sessions.studies.kernels import kernels_table
from workbench.plots import Run
from workbench.report._section import Chart, Parts, Section


def parts(runs: Sequence[Run]) -> Parts:
    """Yield the table and the roofline."""
    (run,) = runs
    yield kernels_table(run.session)
    yield Chart("roofline", runs)


def _has(session: Session) -> bool:
    return any(segment.configuration.family == KERNELS for segment in session.segments)


SECTION = Section(
    name="kernels",
    title="Kernels",
    help=__doc__ or "",
    order=110,
    parts=parts,
    has=_has,
    nothing="No kernel was timed.",
)
