"""Every configuration that ran: step times, ratios to the first, peak memory, numbers."""

from __future__ import annotations

from collections.abc import Sequence

from sessions import numerics
from sessions.tables import segments_table
from workbench.plots import Run
from workbench.report._section import Chart, Parts, Section, Words


def parts(runs: Sequence[Run]) -> Parts:
    """Yield the table, distributions, and the timeline."""
    (run,) = runs
    yield segments_table(run.session)
    sentences = [
        f"{segment.title}: numbers {numerics.mark(segment.ledger)}: {numerics.text(segment.ledger)}"
        for segment in run.session.segments
        if numerics.was_checked(segment.ledger)
    ]
    yield Words(sentences)
    for plot in ("box", "step_time", "throughput"):
        yield Chart(plot, runs)


SECTION = Section(
    name="segments",
    title="Segments",
    help=__doc__ or "",
    order=70,
    parts=parts,
    has=lambda session: bool(session.segments),
    nothing="No configuration ran.",
)
