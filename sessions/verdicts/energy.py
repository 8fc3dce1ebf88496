"""The energy of a step in a paired comparison: the third ratio beside time and memory.

A unit is a pair of long blocks, one of each arm in random order: the log ratio of joules a step.
How many pairs there are is settled before the first one. All run in the last build of both arms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from sessions.model import EnergyPairs, PairedComparison
from sessions.numbers import interval_cells, number, text
from sessions.verdicts import verdict
from sessions.verdicts.verdict import region_of

FACT = "energy"  # the fact of a comparison


def judge_energy(joules: Sequence[Sequence[float]]) -> EnergyPairs:
    """Return the ratio and its interval of pairs of joules a step, the first arm's first."""
    pairs = [list(map(float, pair)) for pair in joules]
    if not pairs:
        return EnergyPairs(why_not="no pair of blocks was measured")
    values = np.array(pairs)
    interval = verdict.fixed_interval(np.log(values[:, 1] / values[:, 0]))
    ratio, low, high = map(_finite, interval.ratios)
    return EnergyPairs(joules=pairs, ratio=ratio, low=low, high=high)


def energy_of_pairs(comparison: PairedComparison) -> EnergyPairs | None:
    """Return the energy of a comparison; None if it was never asked for."""
    fact: Any = comparison.facts.get(FACT)
    return None if fact is None else msgspec.convert(fact, EnergyPairs)


def energy_line(comparison: PairedComparison) -> str:
    """Return a sentence on the energy; empty if the comparison has none."""
    energy = energy_of_pairs(comparison)
    if energy is None:
        return ""
    if energy.ratio is None:
        return f"Energy was not measured: {energy.why_not}."
    first, second = (number(float(mean)) for mean in np.mean(energy.joules, axis=0))
    low, high = (math.nan if end is None else end for end in (energy.low, energy.high))
    ratio, *ends = map(text, interval_cells(energy.ratio, low, high, region_of(comparison)))
    interval = "no interval" if math.isnan(low) else f"95 % interval {ends[0]} to {ends[1]}"
    count = len(energy.joules)
    return (
        f"Energy of a step: B needs {ratio} of A's ({interval}, {count} "
        f"pair{'' if count == 1 else 's'} of one build): {second} J and {first} J."
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
