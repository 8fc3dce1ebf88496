"""The space that an optimization searches: dimensions, points, candidates, and the Pareto front.

A *dimension* is a toggle with the options that may be tried. A *point* has an option of each
dimension. A *candidate* is a point that was proposed, with all that was learned about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sessions.model import Evidence, Numerics
from sessions.verdicts.martingale import critical

TIME, MEMORY, ENERGY = OBJECTIVES = ("time", "memory", "energy")

# States of a candidate, besides FAILED, REFUSED and OUT_OF_MEMORY, which sweeps name. Only a
# candidate that was raced, or is the start, can be proposed.
RACED, BLOCKED = "raced", "blocked"
NO_EFFECT, TOO_LARGE, NOT_TRIED = "no effect", "over the memory limit", "not tried"

LEAST_ROUNDS = 5  # rounds before a race decides anything
# A wrong elimination loses the optimum, so that its error rate is below that of a verdict. The
# mixture is wide: the large effects that most candidates have are then decided in 5 rounds.
ALPHA, MIXTURE = 0.01, 20.0

Point = tuple[str, ...]
BATCH = "settings.batch"  # a dimension that is no toggle; times are for the start's batch


class StartFailed(Exception):  # noqa: N818 - the configuration failed, not the program
    """The configuration that all others are measured against cannot run: a sentence."""


@dataclass(frozen=True)
class Dimension:
    """A toggle or ``BATCH``, its options that may be tried, and the one that the start has."""

    name: str
    options: tuple[str, ...]
    start: str


@dataclass(frozen=True)
class Goal:
    """The quantity to minimise, and the limits that a proposed configuration keeps."""

    objective: str = TIME
    memory_limit: float = math.inf  # bytes
    max_error: float = math.inf  # largest absolute error of an output
    budget_s: float = 600.0


@dataclass(frozen=True)
class Measurement:
    """A block of steps of one candidate; NaN where the device does not report a quantity."""

    median_ms: float
    mean_ms: float = math.nan
    clock_mhz: float = math.nan
    joules: float = math.nan  # joules of one step


@dataclass(frozen=True)
class Failure:
    """A candidate that could not run: ``FAILED``, ``REFUSED`` or ``OUT_OF_MEMORY``, and why."""

    state: str
    reason: str


@dataclass(frozen=True)
class Built:
    """A candidate that is ready to run, its build time, and its results without a race."""

    seconds: float
    peak_bytes: float = math.nan
    evidence: Sequence[Evidence] = ()
    block_s: float = math.nan  # seconds that a block should take


@dataclass(frozen=True)
class Race:
    """The mean log ratio of a candidate to another one, and the half-width of its interval."""

    n: int
    mean: float
    half: float

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half


@dataclass(eq=False)
class Candidate:
    """A point that was proposed.

    ``value`` and ``time`` are natural logarithms: objective and step time over the start's. They
    are estimates of the search along the chain of incumbents, and no verdicts.
    """

    number: int
    point: Point
    title: str
    state: str = NOT_TRIED
    reason: str = ""
    predicted: float = math.nan  # log ratio of step time to the start's
    against: int = -1  # number of the candidate that it was last raced against
    value: float = math.nan
    time: float = math.nan
    build_s: float = math.nan
    block_s: float = math.nan  # seconds that a block should take, as built last
    peak_bytes: float = math.nan
    numerics: Numerics | None = None
    evidence: Sequence[Evidence] = ()
    void: str = ""  # why its latest block does not count, as a clause
    measurements: list[Measurement] = field(default_factory=list)
    rounds: dict[int, list[tuple[Measurement, Measurement]]] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """True if its numbers were checked and are within tolerance."""
        return self.numerics is not None and self.numerics.ok is True

    @property
    def max_error(self) -> float:
        """The largest absolute error of an output against the reference; NaN if not known."""
        error = None if self.numerics is None else self.numerics.max_error
        return math.nan if error is None else error

    @property
    def step_ms(self) -> float:
        """The median of its blocks' medians; NaN where there are none."""
        medians = [block.median_ms for block in self.measurements]
        return float(np.median(medians)) if medians else math.nan

    @property
    def joules(self) -> float:
        """The median energy of a step; NaN where it is not counted."""
        joules = [block.joules for block in self.measurements if math.isfinite(block.joules)]
        return float(np.median(joules)) if joules else math.nan

    def add(self, reference: int, base: Measurement, measurement: Measurement) -> None:
        """Keep a round: a block of the reference and a block of this candidate."""
        self.against = reference
        self.rounds.setdefault(reference, []).append((base, measurement))

    def race(self, reference: int, objective: str = TIME) -> Race:
        """Return the result of the rounds against another candidate so far.

        The interval holds at every look. It is infinite below ``LEAST_ROUNDS``.
        """
        pairs = self.rounds.get(reference, [])
        logs = np.array([_log_ratio(base, measurement, objective) for base, measurement in pairs])
        logs = logs[np.isfinite(logs)]
        n = len(logs)
        if n < 2:
            return Race(n, float(logs[0]) if n else math.nan, math.inf)
        error = float(logs.std(ddof=1)) / math.sqrt(n)
        half = float(critical(n, ALPHA, MIXTURE)) if n >= LEAST_ROUNDS else math.inf
        return Race(n, float(logs.mean()), half * error if math.isfinite(half) else half)


def objection(candidate: Candidate, goal: Goal) -> str:
    """Return why a candidate that was measured cannot be proposed; empty if it can."""
    numerics = candidate.numerics
    if candidate.peak_bytes > goal.memory_limit:
        return TOO_LARGE
    if math.isnan(candidate.peak_bytes) and math.isfinite(goal.memory_limit):
        return "its peak memory is not known"
    if numerics is None:
        return "its numbers were not checked"
    if numerics.ok is None:
        return f"its numbers could not be checked: {numerics.text}"
    if not numerics.ok:
        return f"wrong numbers: {numerics.text}"
    if candidate.max_error > goal.max_error:
        return f"its largest error is {candidate.max_error:.2g}"
    if math.isnan(candidate.max_error) and math.isfinite(goal.max_error):
        return "its largest error is not known"
    return ""


def _log_ratio(base: Measurement, measurement: Measurement, objective: str) -> float:
    values = (
        (measurement.joules, base.joules)
        if objective == ENERGY
        else (measurement.median_ms, base.median_ms)
    )
    return math.log(values[0] / values[1]) if min(values) > 0 else math.nan


def changes(dimensions: Sequence[Dimension], point: Point) -> dict[str, str]:
    """Return the options of a point that are not the start's, by dimension."""
    pairs = zip(dimensions, point, strict=True)
    return {dimension.name: option for dimension, option in pairs if option != dimension.start}


def title_of(dimensions: Sequence[Dimension], point: Point) -> str:
    """Return what a point changes, for a person."""
    changed = changes(dimensions, point).items()
    return ", ".join(f"{name}={option}" for name, option in changed) or "start"


def by_turns(dimensions: Sequence[Dimension], point: Point) -> list[tuple[int, str]]:
    """Return the options that a point lacks: the first of each dimension, then the second ones."""
    ranked = [
        (rank, axis, option)
        for axis, dimension in enumerate(dimensions)
        for rank, option in enumerate(dimension.options)
        if option != point[axis]
    ]
    return [(axis, option) for _, axis, option in sorted(ranked)]


def replaced(point: Point, options: Iterable[tuple[int, str]]) -> Point:
    """Return the point with other options on some axes."""
    changed = list(point)
    for axis, option in options:
        changed[axis] = option
    return tuple(changed)


def pareto_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that no other one beats in time, memory, error or energy.

    A quantity that is not known for all of them does not count. The fastest comes first.
    """
    quantities = np.array(
        [[c.time, c.peak_bytes, c.max_error, c.joules] for c in candidates]
    ).reshape(-1, 4)
    quantities = quantities[:, np.isfinite(quantities).all(axis=0)]
    front = []
    for row, candidate in zip(quantities, candidates, strict=True):
        no_worse = (quantities <= row).all(axis=1)
        better = (quantities < row).any(axis=1)
        if not (no_worse & better).any():
            front.append(candidate)
    return sorted(front, key=lambda candidate: candidate.time)
