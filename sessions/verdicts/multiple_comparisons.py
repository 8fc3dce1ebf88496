"""Paired comparisons of one session read side by side: verdicts that hold for all of them at once.

Of many verdicts, each wrong in at most 5 % of cases, some are wrong more often than that. By Holm's
correction the chance that any FASTER or SLOWER of the session is wrong is at most 5 %. Comparisons
of identical arms claim nothing, and do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from sessions.model import Judgement, PairedComparison
from sessions.verdicts.verdict import corrected


def side_by_side(comparisons: Sequence[PairedComparison]) -> list[PairedComparison]:
    """The comparisons with verdicts that hold together.

    Where more than one counts, ``facts`` say ``of``, their number, ``p_holm``, the adjusted p
    value, and ``alone``, the verdict of the comparison by itself.
    """
    places = [place for place, one in enumerate(comparisons) if counts(one)]
    found = list(comparisons)
    if len(places) < 2:
        return found
    judged = corrected([judgement_of(comparisons[place]) for place in places])
    for place, judgement in zip(places, judged, strict=True):
        one = comparisons[place]
        more = {"of": len(places), "p_holm": judgement.p, "alone": one.verdict}
        found[place] = msgspec.structs.replace(
            one,
            verdict=judgement.verdict,
            facts={**one.facts, **more, "reasons": judgement.reasons},
        )
    return found


def counts(comparison: PairedComparison) -> bool:
    """Whether it was judged, and claims something."""
    facts = comparison.facts
    return isinstance(facts.get("p"), int | float) and not facts.get("identical")


def judgement_of(comparison: PairedComparison) -> Judgement:
    """What the comparison was judged to show, by itself."""
    facts = comparison.facts
    return Judgement(
        verdict=comparison.verdict,
        pairs=facts.get("pairs", 0),
        ratio=None if math.isnan(comparison.ratio) else comparison.ratio,
        low=None if math.isnan(comparison.low) else comparison.low,
        high=None if math.isnan(comparison.high) else comparison.high,
        whole=facts.get("whole"),
        p=facts.get("p", 1.0),
        reasons=facts.get("reasons", []),
    )
