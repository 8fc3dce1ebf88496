"""The tables of paired comparisons: one row a comparison, or one row a block."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sessions.model import EnergyPairs, PairedComparison
from sessions.numbers import STEP_TIME, interval_cells
from sessions.studies import prediction
from sessions.tables import Cell, Column, Measured, Table
from sessions.verdicts.arm_results import are_right, wrong_arms
from sessions.verdicts.energy import energy_of_pairs
from sessions.verdicts.multiple_comparisons import counts, side_by_side
from sessions.verdicts.verdict import region_of
from sessions.verdicts.verdict_words import p_text, pair_count, verdict_word
from sessions.verdicts.work import DIFFERENCE


def verdicts_table(comparisons: Sequence[PairedComparison], most: int | None = None) -> Table:
    """Return one row for each comparison: arms, ratio, interval, overall verdict, numbers.

    ``most``: so many of the newest. Verdicts are corrected for the number of all comparisons.
    """
    listed = side_by_side(comparisons)[-(most or len(comparisons)) :]
    columns = [
        *(Column(name) for name in ("A", "B")),
        *(Column(name, STEP_TIME) for name in ("ratio", "ratio from", "ratio to")),
        *(Column(name) for name in ("pairs", "verdict", "p (Holm)", "uncorrected", "numbers")),
    ]
    has_predictions = any(prediction.of(comparison) for comparison in listed)
    if has_predictions:
        columns.append(Column("predicted", STEP_TIME))
    energies = [energy_of_pairs(comparison) for comparison in listed]
    has_energy = any(energy and energy.ratio for energy in energies)
    if has_energy:
        columns += [Column(name) for name in ("energy ratio", "energy from", "energy to")]
    rows: list[list[Cell]] = []
    for comparison in listed:
        rows.append(
            [
                *[*comparison.arms, "", ""][:2],
                *interval_cells(
                    comparison.ratio, comparison.low, comparison.high, region_of(comparison)
                ),
                pair_count(comparison),
                verdict_word(comparison),
                p_text(comparison.facts["p_holm"]) if "p_holm" in comparison.facts else None,
                comparison.facts.get(DIFFERENCE)
                or comparison.facts.get("alone", comparison.verdict),
                _numbers(comparison),
            ]
        )
        if has_predictions:
            predicted = prediction.of(comparison)
            ratio = None if predicted is None else predicted.ratio
            error = (comparison.high - comparison.low) / 2
            rows[-1].append(None if ratio is None else Measured(ratio, error))
        if has_energy:
            energy = energy_of_pairs(comparison) or EnergyPairs()
            ratio, low, high = (
                math.nan if end is None else end for end in (energy.ratio, energy.low, energy.high)
            )
            rows[-1] += interval_cells(ratio, low, high, region_of(comparison))
    of = sum(map(counts, comparisons))
    return Table(f"Verdicts, of {of} comparisons" if of > 1 else "Verdicts", columns, rows)


_ERRORS = (  # errors of a check, each with its limit if it has one
    ("relative_error", "relative error", "tolerance"),
    ("max_error", "largest error", ""),
    ("mse", "mean squared error", ""),
    ("cosine", "cosine", ""),
    ("loss_difference", "difference of the loss", ""),
    ("curve_difference", "largest difference of the losses", "curve_allowed"),
)


def numerics_table(comparison: PairedComparison) -> Table:
    """Return the errors of each arm's results: measured, and the limit where there is one."""
    rows: list[list[Cell]] = [
        ["AB"[int(arm)], title, Measured(check[name], 0.01 * abs(check[name])), check.get(limit)]
        for arm, check in sorted(comparison.facts.get("numerics", {}).items())
        for name, title, limit in _ERRORS
        if check.get(name) is not None
    ]
    columns = [Column("arm"), Column("error"), Column("measured"), Column("limit")]
    return Table("Results against the reference", columns, rows)


def blocks_table(comparison: PairedComparison) -> Table:
    """Return one row for each block, as they ran; an empty "void" is of a block that counts."""
    count = len(comparison.order)
    pairs = comparison.pairs or [block // 2 for block in range(count)]
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
    """Return a time with the digits that a ratio needs: verdicts are about parts of a percent."""
    return Measured(ms, 1e-5 * ms)


def _numbers(comparison: PairedComparison) -> str:
    """Return the cell that says if the arms computed what they should."""
    wrong = " and ".join(arm for arm, _ in wrong_arms(comparison))
    if wrong:
        return f"{wrong} WRONG"
    numerics = comparison.facts.get("numerics", {})
    known = len(numerics) > 1 and all(map(are_right, numerics.values()))
    return "right" if known else "unknown"
