"""Paired comparisons of one session read side by side: verdicts that hold for all of them at once.

Of many verdicts, each wrong in at most 5 % of cases, some are wrong more often than that. By Holm's
correction the chance that any FASTER or SLOWER of the session is wrong is at most 5 %. Comparisons
of identical arms claim nothing, and do not count; nor do those without a valid pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from sessions.model import Judgement, PairedComparison
from sessions.verdicts.verdict import corrected


def side_by_side(comparisons: Sequence[PairedComparison]) -> list[PairedComparison]:
    """Return the comparisons with verdicts that hold together.

    Where more than one counts, ``facts`` say ``of``, their number, ``p_holm``, the adjusted p
    value, and ``alone``, the verdict without correction.
    """
    indices = [index for index, comparison in enumerate(comparisons) if counts(comparison)]
    adjusted = list(comparisons)
    if len(indices) < 2:
        return adjusted
    judged = corrected([judgement_of(comparisons[index]) for index in indices])
    for index, judgement in zip(indices, judged, strict=True):
        comparison = comparisons[index]
        correction = {"of": len(indices), "p_holm": judgement.p, "alone": comparison.verdict}
        adjusted[index] = msgspec.structs.replace(
            comparison,
            verdict=judgement.verdict,
            facts={**comparison.facts, **correction, "reasons": judgement.reasons},
        )
    return adjusted


def counts(comparison: PairedComparison) -> bool:
    """Return True if the comparison was judged, and claims something."""
    facts = comparison.facts
    is_judged = isinstance(facts.get("p"), int | float) and facts.get("pairs", 0) > 0
    return is_judged and not facts.get("identical")


def judgement_of(comparison: PairedComparison) -> Judgement:
    """Return the judgement of the comparison without correction."""
    facts = comparison.facts
    return Judgement(
        verdict=comparison.verdict,
        pairs=facts.get("pairs", 0),
        ratio=None if math.isnan(comparison.ratio) else comparison.ratio,
        low=None if math.isnan(comparison.low) else comparison.low,
        high=None if math.isnan(comparison.high) else comparison.high,
        of_means=facts.get("whole"),
        p=facts.get("p", 1.0),
        reasons=facts.get("reasons", []),
    )
