"""Comparisons that ran in the background of a run: blocks of its baseline beside its own steps."""

from __future__ import annotations

from sessions.model import PairedComparison, Session

BACKGROUND = "background"  # the fact of such a comparison


def is_background(comparison: PairedComparison) -> bool:
    """Return True if nobody requested the comparison: a run paired itself with its baseline."""
    return bool(comparison.facts.get(BACKGROUND))


def baselines(session: Session) -> set[int]:
    """Return the indices of the segments whose blocks ran after their end, beside later ones."""
    return {one.facts["segments"][0] for one in session.comparisons if is_background(one)}
