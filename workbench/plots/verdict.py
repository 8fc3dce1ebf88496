"""A paired comparison over time: the ratio of each pair, and the interval after each pair.

A dot is one pair of blocks: the step time of the second arm divided by the first arm's. Below 1,
the second arm is faster. The band is the 95 % interval from all pairs so far, and the line is the
ratio. Ratios within the grey strip count as the same. A verdict is reached when the band is
completely inside or completely outside the strip. A pair with a void block is hatched; it was
repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sessions.model import PairedComparison
from sessions.verdicts import verdict
from sessions.verdicts.background import newest_requested
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style
from workbench.charts.units import RATIO, STEPS
from workbench.plots import _arms
from workbench.plots._narrowing import Narrowing, PairDots, Same, Voids


def shown(runs: Sequence[Run]) -> PairedComparison | None:
    """Return the chosen comparison of the first run that has one."""
    for run in runs:
        comparisons = run.session.comparisons
        if run.comparison == -1 and (newest := newest_requested(comparisons)) is not None:
            return comparisons[newest]
        if comparisons and -len(comparisons) <= run.comparison < len(comparisons):
            return comparisons[run.comparison]
    return None


def no_comparison(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if there is a comparison."""
    if shown(runs) is None:
        return "No two configurations of this session were compared in alternating blocks."
    return None


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw the pairs, the interval and the strip of the same."""
    comparison = shown(runs)
    if comparison is None:
        return
    plot_item.describe((STEPS, "Pair of blocks"), (RATIO, "Step time, B over A"))
    if style.paper:  # in the window the panel says so beside it
        a, b = _arms.apart(*map(runs[0].titled, comparison.arms))
        notes = [plot_item.header.subtitle, f"A: {a}, B: {b}"]
        plot_item.header.subtitle = "; ".join(filter(None, notes))
    plot_item.zero = False
    plot_item.pad_x = 0.0
    pairs = verdict.pairs(comparison)
    facts = comparison.facts
    plot_item.add(Same(verdict.region_of(comparison), style))
    history = np.array(facts.get("history", []), np.float64).reshape(-1, 4)
    history = history[history[:, 0] <= len(pairs.numbers)]
    places = pairs.numbers[history[:, 0].astype(int) - 1] + 1
    ratio, low, high = (history[:, column] for column in (1, 2, 3))
    plot_item.add(Narrowing(places, ratio, low, high, style))
    plot_item.add(PairDots(pairs.numbers + 1, np.exp(pairs.logs), style))
    plot_item.add(Voids(_void_pairs(comparison), style))


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return number, ratio of medians, and ratio in clock cycles of every pair that counts."""
    comparison = shown(runs)
    if comparison is None:
        return {"pair": np.empty(0, np.int64)}
    pairs = verdict.pairs(comparison)
    return {
        "pair": pairs.numbers + 1,
        "ratio": np.exp(pairs.logs),
        "ratio_cycles": np.exp(pairs.cycle_logs),
    }


def _void_pairs(comparison: PairedComparison) -> Array:
    # Files of other programs may lack the pairs.
    voids = {pair for pair, void in zip(comparison.pairs, comparison.voids, strict=False) if void}
    return np.array(sorted(voids), np.int64) + 1


PLOT = Plot(
    name="verdict",
    title="Verdict",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=no_comparison,
    axis="value",
)
