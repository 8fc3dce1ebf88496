"""Energy of a step in a paired comparison: one dot for the ratio of each pair of long blocks.

Below 1, the second configuration needs less energy. The band is the 95 % interval from all pairs so
far, and the line is the ratio. Within the grey strip, step times count as the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sessions.model import EnergyPairs
from sessions.verdicts import verdict
from sessions.verdicts.energy import energy_of_pairs, judge_energy
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style
from workbench.charts.units import RATIO, STEPS
from workbench.plots import _arms
from workbench.plots._narrowing import Narrowing, PairDots, Same
from workbench.plots.verdict import no_comparison, shown


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw the pairs, the interval and the strip of the same."""
    comparison, pairs = shown(runs), _pairs(runs)
    if comparison is None or not len(pairs):
        return
    plot_item.describe((STEPS, "Pair of long blocks"), (RATIO, "Energy of a step, B over A"))
    if style.paper:
        a, b = _arms.apart(*map(runs[0].titled, comparison.arms))
        notes = [plot_item.header.subtitle, f"A: {a}, B: {b}"]
        plot_item.header.subtitle = "; ".join(filter(None, notes))
    plot_item.zero = False
    plot_item.pad_x = 0.0
    numbers = np.arange(1, len(pairs) + 1)
    course = [judge_energy(pairs[:count].tolist()) for count in numbers]
    known = np.array([energy.low is not None for energy in course])
    ratio, low, high = (
        np.array([getattr(energy, name) for energy in course], np.float64)[known]
        for name in ("ratio", "low", "high")
    )
    plot_item.add(Same(verdict.region_of(comparison), style))
    plot_item.add(Narrowing(numbers[known], ratio, low, high, style))
    plot_item.add(PairDots(numbers, pairs[:, 1] / pairs[:, 0], style))


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return the joules of a step of both arms in every pair, and their ratio."""
    pairs = _pairs(runs)
    return {
        "pair": np.arange(1, len(pairs) + 1),
        "a_joules": pairs[:, 0],
        "b_joules": pairs[:, 1],
        "ratio": pairs[:, 1] / pairs[:, 0],
    }


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show, if so."""
    if (reason := no_comparison(runs)) is not None:
        return reason
    energy = _energy(runs)
    if energy.joules:
        return None
    why = energy.why_not or "no verdict of this session measured it"
    return f"The energy of a step was not measured: {why}."


def _energy(runs: Sequence[Run]) -> EnergyPairs:
    comparison = shown(runs)
    return (comparison and energy_of_pairs(comparison)) or EnergyPairs()


def _pairs(runs: Sequence[Run]) -> Array:
    return np.array(_energy(runs).joules, np.float64).reshape(-1, 2)


PLOT = Plot(
    name="energy",
    title="Energy of a verdict",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
)
