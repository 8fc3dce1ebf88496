"""The exponent of a sweep on machines that drift, by simulation with fixed seeds."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from test_ratios import MACHINES

from sessions.studies import scaling, sweep

SWEEPS = 300
BLOCKS = 10  # of a point, as in the runner
LINEAR = 1.05  # an exponent up to this is called linear


def swept(
    machine: Callable[[np.random.Generator, int], np.ndarray], points: int, seed: int
) -> scaling.Scaling:
    """Fit a sweep whose step time is proportional to its size, on a machine of these factors."""
    draw = np.random.default_rng(seed)
    sizes = 512 * 2.0 ** np.arange(points)
    factors = machine(draw, points * BLOCKS).reshape(points, BLOCKS)
    order = [index for (index,) in sweep.balanced_order([points], random.Random(seed))]
    times = [
        sweep.typical(sizes[index] * factor * np.exp(draw.normal(0, 0.004, BLOCKS)))
        for index, factor in zip(order, factors, strict=True)
    ]
    return scaling.fit(sizes[order], [time.ms for time in times], [time.error for time in times])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("points", [4, 8])
def test_the_exponent_of_a_drifting_machine_covers_the_truth_and_is_no_false_claim(machine, points):
    """Nominal 95 %; measured 95 to 100 %. Not one linear time was called more than linear."""
    fits = [swept(machine, points, seed) for seed in range(SWEEPS)]
    assert np.mean([fit.low <= 1 <= fit.high for fit in fits]) >= 0.94
    assert np.mean([fit.low > LINEAR for fit in fits]) <= 0.05
