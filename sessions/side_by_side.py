"""Paired comparisons of one session read side by side: verdicts that hold for all of them at once.

Of many verdicts, each wrong in at most 5 % of cases, some are wrong more often than that. By Holm's
correction the chance that any FASTER or SLOWER of the session is wrong is at most 5 %. Comparisons
of identical arms claim nothing, and do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from sessions import prediction
from sessions.model import Judgement, PairedComparison
from sessions.tables import Cell, Column, Measured, Table
from sessions.verdict import are_right, corrected, wrong_arms
from sessions.verdict_words import p_text


def side_by_side(comparisons: Sequence[PairedComparison]) -> list[PairedComparison]:
    """The comparisons with verdicts that hold together.

    Where more than one counts, ``facts`` say ``of``, their number, ``p_holm``, the adjusted p
    value, and ``alone``, the verdict of the comparison by itself.
    """
    places = [place for place, one in enumerate(comparisons) if _counts(one)]
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


def verdicts_table(comparisons: Sequence[PairedComparison]) -> Table:
    """One row a comparison: arms, ratio, interval, the verdict that holds among all, numbers."""
    columns = [
        *(Column(name) for name in ("A", "B", "ratio", "ratio from", "ratio to", "pairs")),
        *(Column(name) for name in ("verdict", "p (Holm)", "by itself", "numbers")),
    ]
    foretold = any(prediction.of(one) for one in comparisons)
    if foretold:
        columns.append(Column("predicted"))
    rows: list[list[Cell]] = []
    for one in side_by_side(comparisons):
        error = (one.high - one.low) / 2
        rows.append(
            [
                *[*one.arms, "", ""][:2],
                *(Measured(value, error) for value in (one.ratio, one.low, one.high)),
                one.facts.get("pairs", len(one.order) // 2),
                one.verdict,
                p_text(one.facts["p_holm"]) if "p_holm" in one.facts else None,
                one.facts.get("alone", one.verdict),
                _numbers(one),
            ]
        )
        if foretold:
            made = prediction.of(one)
            ratio = None if made is None else made.ratio
            rows[-1].append(None if ratio is None else Measured(ratio, error))
    of = sum(map(_counts, comparisons))
    return Table(f"Verdicts, of {of} comparisons" if of > 1 else "Verdicts", columns, rows)


def blocks_table(comparison: PairedComparison) -> Table:
    """One row a block, as they ran; an empty "void" is of a block that counts."""
    count = len(comparison.order)
    pairs = comparison.pairs or [place // 2 for place in range(count)]
    clocks = comparison.clocks_mhz or [math.nan] * count
    voids = comparison.voids or [""] * count
    means = comparison.means_ms or [math.nan] * count
    rows: list[list[Cell]] = [
        [pair, "AB"[arm] if arm < 2 else str(arm), comparison.arms[arm],
         *map(_fine, (median_ms, mean_ms)), Measured(clock, 1.0), void]
        for pair, arm, median_ms, mean_ms, clock, void in zip(
            pairs, comparison.order, comparison.medians_ms, means, clocks, voids, strict=True
        )
    ]  # fmt: skip
    columns = [
        *(Column("pair"), Column("arm"), Column("configuration"), Column("median", "ms")),
        *(Column("mean", "ms"), Column("SM clock", "MHz"), Column("void")),
    ]
    return Table(f"Blocks of {' against '.join(comparison.arms[::-1])}", columns, rows)


def _fine(ms: float) -> Measured:
    """A time with the digits that a ratio of two needs: verdicts are about parts of a percent."""
    return Measured(ms, 1e-5 * ms)


def _counts(comparison: PairedComparison) -> bool:
    """Whether it was judged, and claims something."""
    facts = comparison.facts
    return isinstance(facts.get("p"), int | float) and not facts.get("identical")


def _numbers(comparison: PairedComparison) -> str:
    """Whether the arms computed what they should."""
    wrong = " and ".join(arm for arm, _ in wrong_arms(comparison))
    if wrong:
        return f"{wrong} WRONG"
    numerics = comparison.facts.get("numerics", {})
    known = len(numerics) > 1 and all(map(are_right, numerics.values()))
    return "right" if known else "unknown"


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
