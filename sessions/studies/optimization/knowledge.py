"""The knowledge of a search about single options: effects, predictions, costs and refusals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sessions.studies.optimization.bench import Bench
from sessions.studies.optimization.space import (
    RACED,
    TOO_LARGE,
    Candidate,
    Dimension,
    Point,
    by_turns,
    replaced,
)
from sessions.studies.sweep import FAILED, OUT_OF_MEMORY, REFUSED

IDLE = ("no effect", "as default")  # evidence that an option changes nothing
Option = tuple[int, str]  # index of a dimension, and one of its options
COMPILE_S = 20.0  # assumed until a compile was measured; 7 to 60 s on an H200
SAVING = 0.02  # share of the peak memory that may let an option fit
# Reasons to try an option in no other configuration.
_UNUSABLE = {FAILED: "it failed", REFUSED: "it was refused"}
PROMISING = math.log(1.05)  # a predicted effect that makes the dimension's other options promising


@dataclass
class Knowledge:
    """The effects of single options, as log ratios to the start's option of their dimension."""

    effects: dict[Option, float] = field(default_factory=dict)  # latest measured effects
    predicted: dict[Option, float] = field(default_factory=dict)
    # Options that alone needed too much memory: peak bytes of the configuration without the option.
    large: dict[Option, float] = field(default_factory=dict)
    refused: dict[Option, str] = field(default_factory=dict)  # why not to try them again
    costs: dict[Option, float] = field(default_factory=dict)  # seconds that building took at least
    compile_s: float = math.inf  # shortest build of a compiled step

    def predict(
        self, bench: Bench, dimensions: Sequence[Dimension], begun: Candidate, until_s: float
    ) -> None:
        """Predict the single changes of the start, until the bench's clock shows ``until_s``.

        What saves waits of the start's steps needs no prediction. Where an option promises much,
        the other options of its dimension come next.
        """
        start, usable = begun.point, _usable_options(bench, dimensions, begun.point)
        for option, point in usable.items():
            self.predicted[option] = bench.saved_waits(point, begun)
        remaining = [option for option in usable if math.isnan(self.predicted[option])]
        while remaining and bench.now() <= until_s:
            option = remaining.pop(0)
            effect = _predict_alone(bench, option, usable[option], start)
            self.predicted[option] = effect
            if abs(effect) > PROMISING:
                remaining.sort(key=lambda other: other[0] != option[0])

    def learn_waits(self, bench: Bench, dimensions: Sequence[Dimension], best: Candidate) -> None:
        """Predict again the options that save waits: faster steps wait longer for their launches.

        What was measured beside slower steps no longer counts.
        """
        for option, point in _usable_options(bench, dimensions, best.point).items():
            saved = bench.saved_waits(point, best)
            if math.isfinite(saved):
                self.effects.pop(option, None)
                self.predicted[option] = self.effect((option[0], best.point[option[0]])) + saved

    def effect(self, option: Option) -> float:
        """Return the effect of an option: measured, predicted, or 0."""
        if option in self.effects:
            return self.effects[option]
        predicted = self.predicted.get(option, math.nan)
        return predicted if math.isfinite(predicted) else 0.0

    def score(self, point: Point, best: Point, start: Point) -> float:
        """Return the expected log ratio of a point to another one, if effects are additive.

        An option about which nothing is known counts as that of the other point.
        """
        total = 0.0
        for option, other in zip(enumerate(point), enumerate(best), strict=True):
            known = option in self.effects or option[1] == start[option[0]]
            if option != other and (known or math.isfinite(self.predicted.get(option, math.nan))):
                total += self.effect(option) - self.effect(other)
        return total

    def cost(self, point: Point, start: Point) -> float:
        """Return the seconds that building a point should take, by its options; 0 if unknown.

        The start's options do not count: its build also loads libraries.
        """
        options = changed_options(point, start)
        return max((self.costs.get(option, 0.0) for option in options), default=0.0)

    def expected_s(self, point: Point, start: Point, compiles: bool) -> float:
        """Return the seconds that building a point should take, at least.

        An option that was not built yet takes as long as the fastest build, or as compilation
        takes. 0 before the first build.
        """
        is_known = all(option in self.costs for option in changed_options(point, start))
        least_s = 0.0 if is_known else min(self.costs.values(), default=0.0)
        if compiles and not is_known:
            least_s = COMPILE_S if math.isinf(self.compile_s) else self.compile_s
        return max(self.cost(point, start), least_s)

    def learn_cost(self, point: Point, start: Point, seconds: float, compiles: bool) -> None:
        """Keep how long a point took to build."""
        if compiles:
            self.compile_s = min(seconds, self.compile_s)
        for option in changed_options(point, start):
            self.costs[option] = min(seconds, self.costs.get(option, math.inf))

    def learn_effect(self, candidate: Candidate, incumbent: Candidate) -> None:
        """Keep the effect of an option where it is the only difference."""
        changed_option = difference(candidate.point, incumbent.point)
        gain = candidate.value - incumbent.value
        if changed_option is not None and not math.isnan(gain):
            other = changed_option[0], incumbent.point[changed_option[0]]
            self.effects[changed_option] = self.effects.get(other, 0.0) + gain

    def learn_size(self, candidate: Candidate, best: Candidate) -> None:
        """Keep that an option needs too much memory, if it is the only difference."""
        changed_option = difference(candidate.point, best.point)
        if changed_option is not None:
            self.large[changed_option] = best.peak_bytes

    def is_too_large(self, option: Option, best: Candidate) -> bool:
        """Return True if an option was too large, and the best candidate needs no less memory."""
        if option not in self.large:
            return False
        return not best.peak_bytes < self.large[option] * (1 - SAVING)

    def learn_failure(self, candidate: Candidate, best: Candidate) -> None:
        """Learn from a candidate that could not run."""
        if candidate.state in _UNUSABLE:
            self.refuse(candidate, best, _UNUSABLE[candidate.state])
        else:
            self.learn_size(candidate, best)

    def refuse(self, candidate: Candidate, reference: Candidate, reason: str) -> None:
        """Try an option in no other configuration, if it is the only difference."""
        changed_option = difference(candidate.point, reference.point)
        if changed_option is not None:
            self.refused[changed_option] = f"{reason} in {candidate.title}"


def _usable_options(
    bench: Bench, dimensions: Sequence[Dimension], point: Point
) -> dict[Option, Point]:
    """Return the usable single changes of a point, with other options that they need."""
    usable = {}
    for option in by_turns(dimensions, point):
        changed, _ = bench.usable(replaced(point, [option]))
        if changed is not None and changed[option[0]] == option[1]:
            usable[option] = changed
    return usable


def _predict_alone(bench: Bench, option: Option, point: Point, start: Point) -> float:
    """Return the predicted effect of an option, beyond that of the options that it needs."""
    ratio, needed = bench.predict(point), replaced(point, [(option[0], start[option[0]])])
    own = ratio - bench.predict(needed) if needed != start else math.nan
    return ratio if math.isnan(own) else own


def changed_options(point: Point, other: Point) -> list[Option]:
    """Return the options in which a point differs from another one."""
    return [
        option
        for option, other_choice in zip(enumerate(point), other, strict=True)
        if option[1] != other_choice
    ]


def difference(point: Point, other: Point) -> Option | None:
    """Return the only option in which a point differs; None if there are several, or none."""
    options = changed_options(point, other)
    return options[0] if len(options) == 1 else None


def idle_reason(candidate: Candidate, best: Candidate, dimensions: Sequence[Dimension]) -> str:
    """Return the evidence that a candidate is equivalent to the best candidate; empty if not."""
    changed = {dimensions[a].name: o for a, o in changed_options(candidate.point, best.point)}
    idle = {
        evidence.toggle: evidence.text
        for evidence in candidate.evidence
        if evidence.status in IDLE and changed.get(evidence.toggle) == evidence.requested
    }
    return "; ".join(idle.values()) if idle.keys() == changed.keys() else ""


def smaller_points(
    candidates: Sequence[Candidate], best: Candidate, large: Iterable[Option], memory_limit: float
) -> list[Point]:
    """Return the best point with an option that is too large alone, and a change that saves enough.

    ``large``: options that were too large in other configurations.
    """
    singles = {option: c for c in candidates if (option := difference(c.point, best.point))}
    here = [option for option, c in singles.items() if c.state in (TOO_LARGE, OUT_OF_MEMORY)]
    points = []
    for option in dict.fromkeys([*here, *large]):
        peak_bytes = singles[option].peak_bytes if option in singles else math.nan
        for saving, saver in singles.items():
            saves = saver.state == RACED and saver.peak_bytes < best.peak_bytes
            peak = peak_bytes * saver.peak_bytes / best.peak_bytes
            if saves and option[0] != saving[0] and not peak > memory_limit:
                points.append(replaced(best.point, [option, saving]))
    return points


def without_excluded(bench: Bench, point: Point, best: Point, start: Point) -> Point | None:
    """Return the point without the option of the best candidate that excludes the change."""
    for axis, option in changed_options(best, start):
        without = replaced(point, [(axis, start[axis])])
        if point[axis] == option and bench.usable(without)[0] == without:
            return without
    return None
