"""Comparisons that ran in the background of a run: blocks of its baseline beside its own steps."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.model import PairedComparison, Session

BACKGROUND = "background"  # the fact of such a comparison


def is_background(comparison: PairedComparison) -> bool:
    """Return True if a run paired itself with its baseline, without a person's request."""
    return bool(comparison.facts.get(BACKGROUND))


def newest_requested(comparisons: Sequence[PairedComparison]) -> int | None:
    """Return the index of the last comparison that a person requested; None without any."""
    indices = range(len(comparisons) - 1, -1, -1)
    return next((index for index in indices if not is_background(comparisons[index])), None)


def baselines(session: Session) -> set[int]:
    """Return the indices of the segments whose blocks ran after their end, beside later ones."""
    return {
        index
        for comparison in session.comparisons
        if is_background(comparison)
        for index in comparison.segment_indices[:1]
    }
