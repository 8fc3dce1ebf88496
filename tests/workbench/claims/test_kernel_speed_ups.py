"""The interval of a kernel's speed-up: its error rates by simulation (seeds fixed, rates stated).

The simulated GPU takes 100 us for a call, with an AR(1) disturbance of lag-1 correlation 0.8 and
2 % scatter from one call to the next, whoever is called, and a clock that drifts, by 5 or 50 %
while the calls last, or jumps. The real
scheduling runs on it: which contender is called when is what is tested.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from session_samples import step_noise

from kernels.measure import rounds
from sessions.columns import Columns
from sessions.model import KERNELS, STEP_COLUMNS, Configuration, Phase, Segment
from sessions.studies.kernels import speedup

TRIALS = 100
MOST_CALLS = 900
CALLS_BEFORE = 30  # of each implementation, before they alternated
DISTURBANCES = ("none", "drift", "steep drift", "clock", "load")


class Machine:
    """A GPU on which every call advances the same disturbance."""

    def __init__(self, disturbance: str, seed: int, calls: int) -> None:
        rng = np.random.default_rng(seed)
        self.x = step_noise(rng, MOST_CALLS)
        there = np.arange(MOST_CALLS)
        self.x += {"drift": 0.05, "steep drift": 0.5}.get(disturbance, 0.0) * there / calls
        if disturbance == "clock":
            for sign in (1, -1):
                self.x += 0.03 * sign * (there >= rng.integers(0, calls))
        if disturbance == "load":  # another program, which comes and goes
            self.x += 0.47 * (np.cumsum(rng.random(MOST_CALLS) < 1 / 30) % 2)
        self.position = 0

    def times_us(self, call, repeats, device, evictions=1):
        own = self.x[self.position : self.position + repeats]
        assert len(own) == repeats
        self.position += repeats
        return (100 * call() * np.exp(own)).tolist()


def segment(timings):
    count = len(timings.us)
    columns = {name: np.full(count, np.nan) for name in STEP_COLUMNS}
    columns |= {
        "t_s": np.arange(count),
        "gpu_ms": np.asarray(timings.us) / 1e3,
        "phase": np.full(count, int(Phase.STEADY)),
        "block": np.asarray(timings.rounds),
    }
    steps = Columns(STEP_COLUMNS)
    steps.append(columns)
    return Segment(0, Configuration(family=KERNELS, preset="rope"), "", steps=steps)


def intervals(monkeypatch, disturbance, *, faster=1.0, other_contenders=0):
    """Return the intervals of the second contender against the first, one for each trial."""
    measured = []
    monkeypatch.setattr(rounds, "warm_up", lambda call: None)
    calls = [lambda: faster, lambda: 1.0, *[lambda: 1.7] * other_contenders]
    for seed in range(TRIALS):
        machine = Machine(disturbance, seed, len(calls) * rounds.ROUNDS * rounds.CALLS)
        monkeypatch.setattr(rounds, "times_us", machine.times_us)
        timed = rounds.alternate(calls, "cpu", describe_failure=str, seed=seed)
        measured.append(speedup(*(segment(segment_timed) for segment_timed in timed[:2])))
    return measured


def ends_before(disturbance):
    """Yield the former intervals: one after the other, a bootstrap over each one's single calls."""
    from scipy import stats  # slow to load, in every process that collects the tests

    def difference(first, second, axis):
        return np.log(np.median(first, axis=axis) / np.median(second, axis=axis))

    for seed in range(TRIALS):
        machine = Machine(disturbance, seed, 2 * CALLS_BEFORE)
        times = [machine.times_us(lambda: 1.0, CALLS_BEFORE, "cpu") for _ in range(2)]
        bootstrapped = stats.bootstrap(
            times,
            difference,
            n_resamples=499,
            method="percentile",
            random_state=np.random.default_rng(0),
        )
        yield bootstrapped.confidence_interval


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_identical_kernels_are_told_apart_in_at_most_5_percent(monkeypatch, disturbance):
    """Results: 0 to 1 %. One after the other, 40 to 100 % of them were told apart."""
    measured = intervals(monkeypatch, disturbance)
    assert all(interval.n == rounds.ROUNDS for interval in measured)
    apart = np.mean([interval.low > 0 or interval.high < 0 for interval in measured])
    before = np.mean([low > 0 or high < 0 for low, high in ends_before(disturbance)])
    assert apart <= 0.05
    assert before > 0.3


@pytest.mark.parametrize(
    ("disturbance", "other_contenders"), [("none", 0), ("drift", 3), ("clock", 3)]
)
def test_the_interval_holds_the_true_speed_up_whoever_else_is_timed(
    monkeypatch, disturbance, other_contenders
):
    """Nominal 95 %; found 99 to 100 %, for it holds at every look. 10 % is always found."""
    measured = intervals(monkeypatch, disturbance, faster=1.1, other_contenders=other_contenders)
    covered = np.mean([interval.low <= math.log(1.1) <= interval.high for interval in measured])
    seen = np.mean([interval.low > 0 for interval in measured])
    assert covered >= 0.95
    assert seen > 0.95
