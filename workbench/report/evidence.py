"""What each segment asked of its toggles, whether it took effect, and how one can tell."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.model import Session
from sessions.tables import Column, Table
from workbench.report._section import Parts, Section
from workbench.ui.plots import Run


def parts(runs: Sequence[Run]) -> Parts:
    """A row for each toggle of each segment that left its evidence."""
    (run,) = runs
    names = ("segment", "toggle", "asked", "effect", "evidence")
    rows = [
        [segment.title, one.toggle, one.requested, one.status, one.text]
        for segment in run.session.segments
        for one in segment.evidence
    ]
    yield Table("Requested and effective", [Column(name) for name in names], rows)


def _has(session: Session) -> bool:
    return any(segment.evidence for segment in session.segments)


SECTION = Section(
    name="evidence",
    title="Evidence",
    help=__doc__ or "",
    place=80,
    parts=parts,
    has=_has,
    nothing="No toggle left evidence.",
)
