"""A simulated device for searches: effects, interactions, noise, drift and failures are planted."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sessions.model import Evidence, Numerics
from sessions.studies.optimization.space import (
    Built,
    Candidate,
    Dimension,
    Failure,
    Measurement,
    Point,
    replaced,
)
from sessions.studies.sweep import OUT_OF_MEMORY

Option = tuple[int, str]
GIB = 2.0**30


def dimensions(*counts: int) -> list[Dimension]:
    """Return dimensions with as many options each, called a, b and so on; the start has a."""
    return [
        Dimension(f"toggle{axis}", tuple("abcdef"[:count]), "a")
        for axis, count in enumerate(counts)
    ]


@dataclass
class SimulatedBench:
    """Step times are ``base_ms`` times the exponential of all effects, of drift and of noise."""

    dimensions: Sequence[Dimension]
    effects: Mapping[Option, float]  # log ratio of step time to the start's option
    interactions: Mapping[tuple[Option, Option], float] = field(default_factory=dict)
    wrong: frozenset[Option] = frozenset()
    too_large: frozenset[Option] = frozenset()
    idle: frozenset[Option] = frozenset()  # evidence says that they do nothing
    blocked: frozenset[Option] = frozenset()
    excluded: Mapping[Option, Option] = field(default_factory=dict)  # options that need another off
    needed: Mapping[Option, Option] = field(default_factory=dict)  # options that need another on
    memory: Mapping[Option, float] = field(default_factory=dict)  # log ratio of peak memory
    builds_s: Mapping[Option, float] = field(default_factory=dict)
    first_builds_s: Mapping[Option, float] = field(default_factory=dict)  # of the first, beyond it
    compiling: frozenset[Option] = frozenset()  # options whose builds are known to take long
    noise: float = 0.01
    drift: float = 0.0  # standard deviation of the random walk's step from block to block
    base_ms: float = 5.0
    build_s: float = 1.0
    check_s: float = 1.0
    later_check_s: float = math.nan  # of what checks share, nothing is left after the first
    seed: int = 0
    counts_memory: bool = False
    build_noise: float = 0.0  # standard deviation of what a build adds to all of its blocks
    clock_s: float = 0.0
    predictions: Mapping[Option, float] = field(default_factory=dict)
    prediction_s: float = 0.01
    waits: Mapping[Option, float] = field(default_factory=dict)  # log ratios of what saves them
    host_ms: float = 0.0  # that a step takes at least, unless it is captured
    capturing: frozenset[Option] = frozenset()  # options that capture it
    block_steps: int = 20
    plans_blocks: bool = False  # a build tells how long a block takes
    warm_up_steps: int = 0  # of a build, and of a check again

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._walk = 0.0
        self._ready: set[Point] = set()
        self._offsets: dict[Point, float] = {}
        self.built: list[Point] = []
        self.checked: list[Point] = []

    def truth(self, point: Point) -> float:
        """Return the true log ratio of a point's step time to the start's."""
        total = self._on_gpu(point)
        if self.host_ms and not set(enumerate(point)) & self.capturing:
            total = max(total, math.log(self.host_ms / self.base_ms))
        return total

    def _on_gpu(self, point: Point) -> float:
        own = list(enumerate(point))
        total = sum(self.effects.get(option, 0.0) for option in own)
        return total + sum(
            gain for pair, gain in self.interactions.items() if set(pair) <= set(own)
        )

    def is_right(self, point: Point) -> bool:
        """Return True if a point computes right numbers and fits in memory."""
        return not (set(enumerate(point)) & (self.wrong | self.too_large | self.blocked))

    def points(self) -> list[Point]:
        """Return every point of the space."""
        return list(itertools.product(*(dimension.options for dimension in self.dimensions)))

    def optimum(self) -> float:
        """Return the smallest log ratio of any right point that can be used."""
        usable = [point for point in self.points() if self.usable(point)[0] == point]
        return min(self.truth(point) for point in usable if self.is_right(point))

    def sweep_seconds(self, blocks: int = 16) -> float:
        """Return how long it takes to build and measure every point."""
        block_s = 20 * self.base_ms / 1000
        return sum(self._build_seconds(point) + blocks * block_s for point in self.points())

    def now(self) -> float:
        return self.clock_s

    def usable(self, point: Point) -> tuple[Point | None, str]:
        options = set(enumerate(point))
        if options & self.blocked:
            return None, "needs another device"
        for option, (axis, choice) in self.needed.items():
            if option in options and (axis, choice) not in options:
                return replaced(point, [(axis, choice)]), f"needs {choice}"
        for option, (axis, choice) in self.excluded.items():
            if {option, (axis, choice)} <= options:
                start = self.dimensions[axis].start
                return replaced(point, [(axis, start)]), f"cannot be combined with {choice}"
        return point, ""

    def saved_waits(self, point: Point, best: Candidate) -> float:
        captured, before = (
            bool(set(enumerate(options)) & self.capturing) for options in (point, best.point)
        )
        waited = self.truth(best.point) - self._on_gpu(best.point)
        if captured and not before and waited > 0:
            return -waited
        saving = (o for o in enumerate(point) if o in self.waits and o not in enumerate(best.point))
        return next((self.waits[option] for option in saving), math.nan)

    def predict(self, point: Point) -> float:
        self.clock_s += self.prediction_s
        known = [self.predictions[o] for o in enumerate(point) if o in self.predictions]
        return sum(known) if known else math.nan

    def compiles(self, point: Point) -> bool:
        return bool(set(enumerate(point)) & self.compiling)

    def build(self, candidate: Candidate) -> Built | Failure:
        began, point = self.clock_s, candidate.point
        is_new = point not in self._ready
        if is_new:
            self.clock_s += self._build_seconds(point)
            before = {option for earlier in self.built for option in enumerate(earlier)}
            new = set(enumerate(point)) - before
            self.clock_s += sum(self.first_builds_s.get(option, 0.0) for option in new)
            self.built.append(point)
        if set(enumerate(point)) & self.too_large:
            return Failure(OUT_OF_MEMORY, "Out of memory: 3.0 GiB more was needed.")
        self._ready.add(point)
        names = [dimension.name for dimension in self.dimensions]
        evidence = [
            Evidence(names[axis], option, "no effect", "nothing calls it")
            for axis, option in enumerate(point)
            if (axis, option) in self.idle
        ]
        if is_new:
            self.clock_s += self._steps_s(point, self.warm_up_steps)
        block_s = self._steps_s(point, self.block_steps) if self.plans_blocks else math.nan
        return Built(self.clock_s - began, self._peak(point), evidence, block_s)

    def release(self, candidate: Candidate) -> None:
        pass

    def rebuild(self, candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            self.clock_s += self._build_seconds(candidate.point)
            self._offsets[candidate.point] = self._offset()

    def round(self, candidates: Sequence[Candidate]) -> dict[int, Measurement | Failure]:
        blocks: dict[int, Measurement | Failure] = {}
        order = list(candidates)
        self._random.shuffle(order)
        for candidate in order:
            self._walk += self._random.gauss(0, self.drift)
            log = self.truth(candidate.point) + self._walk + self._random.gauss(0, self.noise)
            if candidate.point not in self._offsets:
                self._offsets[candidate.point] = self._offset()
            log += self._offsets[candidate.point]
            median_ms = self.base_ms * math.exp(log)
            self.clock_s += self.block_steps * median_ms / 1000
            blocks[candidate.number] = Measurement(median_ms)
        return blocks

    def check(self, candidate: Candidate) -> Numerics:
        is_later = self.checked and not math.isnan(self.later_check_s)
        self.clock_s += self.later_check_s if is_later else self.check_s
        self.clock_s += self._steps_s(candidate.point, self.warm_up_steps)
        self.checked.append(candidate.point)
        is_wrong = bool(set(enumerate(candidate.point)) & self.wrong)
        error = 1.0 if is_wrong else 1e-6
        return Numerics(
            reference="float64", ok=not is_wrong, text=f"relative error {error:g}", max_error=error
        )

    def _steps_s(self, point: Point, steps: int) -> float:
        return steps * self.base_ms * math.exp(self.truth(point)) / 1000

    def _offset(self) -> float:
        return self._random.gauss(0, self.build_noise) if self.build_noise else 0.0

    def _build_seconds(self, point: Point) -> float:
        return self.build_s + sum(self.builds_s.get(option, 0.0) for option in enumerate(point))

    def _peak(self, point: Point) -> float:
        if not self.counts_memory:
            return math.nan
        return 8 * GIB * math.exp(sum(self.memory.get(option, 0.0) for option in enumerate(point)))
