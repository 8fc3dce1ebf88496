"""Toggles of each segment: the requested option, whether it took effect, and the evidence."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.model import Session
from sessions.tables import evidence_table
from workbench.plots import Run
from workbench.report._section import Parts, Section


def parts(runs: Sequence[Run]) -> Parts:
    """Yield a table with a row for each toggle of each segment that has evidence."""
    (run,) = runs
    yield evidence_table(run.session)


def _has(session: Session) -> bool:
    return any(segment.evidence for segment in session.segments)


SECTION = Section(
    name="evidence",
    title="Evidence",
    help=__doc__ or "",
    order=80,
    parts=parts,
    has=_has,
    nothing="No toggle has evidence.",
)
