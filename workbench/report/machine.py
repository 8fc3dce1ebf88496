"""The machine, its state during the session, and events."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.tables import environment_table, events_table
from workbench.plots import Run
from workbench.report._section import Chart, Parts, Section


def parts(runs: Sequence[Run]) -> Parts:
    """Yield memory, utilization and power over time, the events, the environment."""
    (run,) = runs
    session = run.session
    if session.segments:
        for plot in ("memory", "utilization", "power"):
            yield Chart(plot, runs)
    if session.events:
        yield events_table(session)
    yield environment_table(session)


SECTION = Section(
    name="machine",
    title="Machine",
    help=__doc__ or "",
    order=120,
    parts=parts,
    has=lambda session: bool(session.environment or session.events or session.segments),
    nothing="The session has no facts about the machine.",
)
