"""The verdicts of an optimization: new blocks measure the result of the search again.

The start, the best candidate, the runner-up and the best candidate without each of its changes
alternate in rounds. The blocks of the search do not count, because they chose the best of many. If
the new blocks show that another of these is faster than the best candidate or needs less, and its
numbers are right, it becomes the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sessions.numbers import counted
from sessions.studies.attribution import estimation
from sessions.studies.attribution.design import Contrast
from sessions.studies.attribution.estimation import Effect
from sessions.studies.optimization.knowledge import changed_options
from sessions.studies.optimization.search import MATTERS, Search
from sessions.studies.optimization.space import (
    ENERGY,
    MEMORY,
    NOT_TRIED,
    RACED,
    Candidate,
    Failure,
    Measurement,
    Point,
    pareto_front,
    replaced,
)
from sessions.verdicts import verdict
from sessions.verdicts.verdict_words import duration

MOST_CHECKS = 4  # checks of candidates that may be the runner-up
BUILDS = verdict.LEAST_BUILDS + 1  # one more build of all arms, because the last may not end
REBUILD_SHARE = 0.5  # largest share of the verdicts' time
SEARCH_SHARE = 0.25  # largest share of the search's time for all builds and their rounds
LEAST_ROUNDS = 2  # fewest rounds of a build
MOST_FRONT = 6  # candidates that are checked because they may be on the Pareto front
GROWTH = 1.25  # factor of the rounds between two looks
NO_TIME = "no time was left to measure it"
GAIN, RUNNER_UP, WITHOUT = KINDS = ("total", "runner-up", "without")


@dataclass
class Verdicts:
    """The final measurement of one search, which has ended."""

    search: Search
    region: float = verdict.REGION
    floor: float = 0.0
    half_width: float = verdict.HALF_WIDTH
    runner_up: Candidate | None = None
    arms: list[Candidate] = field(default_factory=list)
    contrasts: list[Contrast] = field(default_factory=list)
    rounds: list[dict[int, Measurement]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)  # effects on step time
    energy: list[Effect] = field(default_factory=list)  # effects on the energy of a step
    builds: list[int] = field(default_factory=list)  # number of the build, by round
    slice_s: float = math.inf  # time after which all arms are built again
    one_build: str = ""  # why they are built once, as a clause
    seconds: float = 0.0  # seconds of alternating blocks
    _refuted: list[Candidate] = field(default_factory=list)  # former best candidates

    @property
    def best(self) -> Candidate | None:
        """The candidate that is proposed; None where no candidate can be.

        It is the start if the new blocks show that the search's best one is slower or needs more,
        or if that one failed in them.
        """
        best, start = self.search.checks.right, self.search.start
        is_refuted = self._is_slower_than_the_start or not self.search.proposable(best)
        if is_refuted and self.search.proposable(start):
            return start
        return best if self.search.proposable(best) else None

    @property
    def is_settled(self) -> bool:
        """True if more rounds would change nothing."""
        return estimation.settled(self.effects)

    def run(self) -> None:
        """Check the front, choose the arms, and alternate until the verdicts settle."""
        self._check_front()
        self.runner_up = self._find_runner_up()
        with self.search.plan.timed("verdicts"):
            self._choose_arms()
            self._alternate()

    @property
    def left_s(self) -> float:
        """Seconds that are left of the budget."""
        return self.search.plan.left_s

    def front(self) -> list[Candidate]:
        """Return the Pareto front of candidates that can be proposed, the fastest first.

        It includes the best candidate, even if estimates order near ties differently: no race
        showed that another candidate is better.
        """
        front = pareto_front([c for c in self.search.candidates if self.search.proposable(c)])
        if self.best is not None and self.best not in front:
            front.append(self.best)
        return sorted(front, key=lambda candidate: candidate.time)

    def _unchecked(self) -> list[Candidate]:
        """Return the measured candidates that are not checked, the best first."""
        candidates = [
            c for c in self.search.candidates
            if c.state == RACED and c.numerics is None
            and not c.peak_bytes > self.search.goal.memory_limit
        ]  # fmt: skip
        return sorted(candidates, key=lambda c: c.value)

    def _can_check(self, candidate: Candidate) -> bool:
        """Return True if there is time to build and check one candidate more."""
        search = self.search
        needed_s = 2 * (search.plan.check_s + search.cost(candidate.point))
        return self.left_s > needed_s + search.plan.verdict_s([search.start, search.best])

    def _check(self, candidate: Candidate) -> None:
        if self._can_check(candidate) and self.search.build(candidate) is None:
            self.search.check(candidate)

    def _check_front(self) -> None:
        """Check the candidates that only their numbers keep from the Pareto front."""
        for candidate in self._unchecked()[:MOST_FRONT]:
            if math.isnan(candidate.peak_bytes):
                return  # by time alone, the best candidate is the front
            if candidate in pareto_front([*self.front(), candidate]):
                self._check(candidate)

    def _find_runner_up(self) -> Candidate | None:
        """Return the second-best candidate whose numbers are right, other than the start."""
        search = self.search
        contenders = [c for c in search.candidates if c not in (search.best, search.start)]
        ranked = sorted((c for c in contenders if c.state == RACED), key=lambda c: c.value)
        for candidate in ranked[:MOST_CHECKS]:
            if candidate.numerics is None:
                self._check(candidate)
            if search.proposable(candidate):
                return candidate
        return None

    def _choose_arms(self) -> None:
        """Build the arms, the most important first, as far as time allows."""
        search = self.search
        start, best = search.start, search.best
        if not self._add(best) or (best is not start and not self._add(start)):
            return
        if best is not start:
            self._contrast(GAIN, "best against start", start)
        if self.runner_up is not None:
            self._add_runner_up(self.runner_up)
        changed = [axis for axis, _ in changed_options(best.point, start.point)]
        for axis in changed if len(changed) > 1 else []:
            self._add_without(axis)

    def _add_runner_up(self, runner_up: Candidate) -> None:
        name = f"best against {runner_up.title}"
        if not self._fits(runner_up.point):
            self.contrasts.append(Contrast(RUNNER_UP, name, {}, reason=NO_TIME))
        elif self._add(runner_up):
            self._contrast(RUNNER_UP, name, runner_up)

    def _add_without(self, axis: int) -> None:
        """Add the best candidate without one change, and without what needs that change."""
        search, best = self.search, self.search.best
        dimension = search.dimensions[axis]
        name = f"{dimension.name}={best.point[axis]}"
        point = replaced(best.point, [(axis, dimension.start)])
        usable, reason = search.bench.usable(point)
        if usable == best.point:
            reason = "another option of the result needs it"
        if usable is None or usable == best.point:
            self.contrasts.append(Contrast(WITHOUT, name, {}, reason=reason))
            return
        names = [
            f"{dimension.name}={option}"
            for dimension, option, other in zip(search.dimensions, best.point, usable, strict=True)
            if option != other
        ]
        name = " + ".join(names)
        if any(contrast.name == name for contrast in self.contrasts):
            return
        if not self._fits(usable):
            self.contrasts.append(Contrast(WITHOUT, name, {}, reason=NO_TIME))
            return
        candidate = search.candidate(usable)
        if self._add(candidate):
            self._contrast(WITHOUT, name, candidate)
        else:
            self.contrasts.append(Contrast(WITHOUT, name, {}, reason=candidate.reason))

    def _fits(self, point: Point) -> bool:
        """Return True if another arm can be built and get a verdict in the time that is left.

        What was never built should be as fast as the best candidate.
        """
        search = self.search
        built = (c for c in search.candidates if c.point == point and not math.isnan(c.block_s))
        candidate = next(built, search.best)
        arms_s = search.plan.verdict_s([*self.arms, candidate])
        is_arm = any(arm.point == point for arm in self.arms)
        return is_arm or search.cost(point) + arms_s <= self.left_s

    def _add(self, candidate: Candidate) -> bool:
        if candidate not in self.arms:
            if self.search.build(candidate) is not None:
                return False
            self.arms.append(candidate)
        return True

    def _contrast(self, kind: str, name: str, other: Candidate) -> None:
        weights = {self.arms.index(self.search.best): 1.0, self.arms.index(other): -1.0}
        self.contrasts.append(Contrast(kind, name, weights))

    def _refutations(self) -> list[Effect]:
        """Return the effects by which the best candidate is slower or needs more, largest first."""
        objective = self.search.goal.objective
        effects = self.energy if objective == ENERGY else self.effects
        judged = [(e.judgement, e) for e in effects if e.judgement and e.judgement.ratio]
        worse = [(j.ratio or math.nan, e) for j, e in judged if j.verdict == "SLOWER"]
        if objective == MEMORY:  # memory is counted exactly
            contrasts = [effect.contrast for _, effect in judged]
            ratios = estimation.memory(contrasts, [arm.peak_bytes for arm in self.arms])
            pairs = zip(ratios, judged, strict=True)
            worse = [(ratio, e) for ratio, (_, e) in pairs if math.log(ratio) > MATTERS]
        return [effect for _, effect in sorted(worse, key=lambda pair: -pair[0])]

    @property
    def _is_slower_than_the_start(self) -> bool:
        return any(effect.contrast.kind == GAIN for effect in self._refutations())

    def _replace_best(self) -> None:
        """Replace the best candidate if the rounds show that another candidate is better.

        The comparison was planned before these rounds, so its result is valid. The other candidate
        is the runner-up, or the best candidate without one of its options. The runner-up also
        replaces a best candidate that cannot be proposed, for example because it failed.
        """
        search, best = self.search, self.search.best
        has_failed = best.numerics is not None and not search.proposable(best)
        better = self.runner_up if has_failed else self._find_better()
        if better is None or not search.proposable(better):
            return
        self._refuted.append(best)
        self.contrasts = []
        self.runner_up = None if has_failed or best is search.start else best
        search.replace_best(better)
        self._choose_arms()
        self.judge()

    def _find_better(self) -> Candidate | None:
        """Return the fastest candidate that the rounds show to be better and right, if any."""
        for effect in self._refutations():
            if effect.contrast.kind == GAIN:
                continue
            (other,) = (arm for arm, weight in effect.contrast.weights.items() if weight < 0)
            candidate = self.arms[other]
            if candidate in self._refuted:
                continue
            if candidate.state == NOT_TRIED:  # the search did not measure it
                self._enter(candidate, effect.contrast)
            if candidate in self._unchecked():
                self._check(candidate)
            if self.search.proposable(candidate):
                return candidate
        return None

    def _enter(self, candidate: Candidate, contrast: Contrast) -> None:
        """Set the estimates of a candidate that the search did not measure, from the verdicts."""
        best, objective = self.search.best, self.search.goal.objective

        def gain(effects: Sequence[Effect]) -> float:
            judged = (e.judgement for e in effects if e.contrast is contrast)
            ratios = (judgement.ratio for judgement in judged if judgement is not None)
            return math.log(next(ratios, None) or math.nan)

        candidate.state = RACED
        candidate.time = best.time - gain(self.effects)
        candidate.value = best.value - gain(self.energy if objective == ENERGY else self.effects)
        if objective == MEMORY:
            candidate.value = math.log(candidate.peak_bytes / self.search.start.peak_bytes)
        blocks = (row.get(candidate.number) for row in self.rounds)
        candidate.measurements += [block for block in blocks if block is not None]

    def _alternate(self) -> None:
        """Run rounds of all arms until the verdicts settle or the budget is spent."""
        search, began = self.search, self.search.bench.now()
        arms = list(self.arms)
        self._plan_builds()
        build, built = 0, began
        while len(arms) > 1 and any(contrast.weights for contrast in self.contrasts):
            if self._should_rebuild(build, search.bench.now() - built):
                search.report(f"building {len(arms)} configurations again")
                search.bench.rebuild(arms)
                build, built = build + 1, search.bench.now()
            arms = self._round(self._affordable(arms))
            self.builds.append(build)
            count, self.seconds = len(self.rounds), search.bench.now() - began
            if is_look(count):
                self.judge()
                chosen = len(self.arms)
                self._replace_best()
                arms += self.arms[chosen:]
                search.report(f"{counted(count, 'round')} of {len(arms)} configurations")
                if self.is_settled:
                    return
            is_hopeless = count >= verdict.MIN_PAIRS and not any(self.rounds)
            if self.left_s <= search.plan.round_s(arms) or is_hopeless:
                break
        self.judge()
        self._replace_best()

    def _plan_builds(self) -> None:
        """Build all arms several times if that is cheap: builds of one configuration differ."""
        rebuild_s = sum(arm.build_s for arm in self.arms)
        rounds_s = LEAST_ROUNDS * self.search.plan.round_s(self.arms)
        slice_s = max((1 / REBUILD_SHARE - 1) * rebuild_s, rounds_s)
        room_s = min(self.left_s, SEARCH_SHARE * self.search.spent_s)
        if BUILDS * (slice_s + rebuild_s) <= room_s:  # never of NaN
            self.slice_s = slice_s
        else:
            rebuild_time = duration(rebuild_s) if math.isfinite(rebuild_s) else "an unknown time"
            self.one_build = (
                f"building all arms again takes {rebuild_time}, too long for the time of this "
                "search"
            )

    @property
    def least_builds(self) -> int:
        """Number of builds of all arms that a claim needs."""
        return 1 if math.isinf(self.slice_s) else verdict.LEAST_BUILDS

    def _should_rebuild(self, build: int, seconds: float) -> bool:
        return self.builds.count(build) >= LEAST_ROUNDS and seconds >= self.slice_s

    def _affordable(self, arms: list[Candidate]) -> list[Candidate]:
        """Return the arms that get verdicts in the time that is left: the most important ones."""
        while len(arms) > 2 and self._verdict_s(arms) > self.left_s:
            arms = arms[:-1]
        return arms

    def _verdict_s(self, arms: Sequence[Candidate]) -> float:
        return self.search.plan.verdict_s(arms, len(self.rounds))

    def _round(self, arms: list[Candidate]) -> list[Candidate]:
        """Run a block of each arm; return the arms that still run."""
        with self.search.plan.timed_round(arms):
            blocks = self.search.bench.round(arms)
        self.rounds.append({n: b for n, b in blocks.items() if isinstance(b, Measurement)})
        running = []
        for arm in arms:
            if isinstance(failure := blocks.get(arm.number), Failure):
                arm.state, arm.reason = failure.state, failure.reason
            else:
                running.append(arm)
        return running

    def judge(self) -> None:
        """Judge every contrast by the rounds so far."""
        blank = Measurement(math.nan)
        table = [[row.get(arm.number, blank) for arm in self.arms] for row in self.rounds]
        medians, means, clocks, joules = (
            np.array([[getattr(block, name) for block in row] for row in table])
            .reshape(len(table), len(self.arms))
            for name in ("median_ms", "mean_ms", "clock_mhz", "joules")
        )  # fmt: skip
        measure = functools.partial(
            estimation.measure,
            self.contrasts,
            region=self.region,
            floor=self.floor,
            half_width=self.half_width,
            seconds=self.seconds,
            builds=np.array(self.builds, int),
            least_builds=self.least_builds,
        )
        self.effects = measure(medians, clocks, means)
        if np.isfinite(joules).any():
            self.energy = measure(joules, np.full_like(joules, math.nan))

    def gain(self, quantity: str = "") -> Effect | None:
        """Return the effect of the best candidate against the start; None where there is none."""
        return self._effect(GAIN, quantity)

    def _effect(self, kind: str, quantity: str) -> Effect | None:
        effects = self.energy if quantity == ENERGY else self.effects
        return next((effect for effect in effects if effect.contrast.kind == kind), None)

    def payoff_steps(self) -> float:
        """Return after how many steps, at most, the longer build of the best candidate pays off.

        0 if its build is not longer; NaN if nothing is known, or no verdict says that it is faster.
        """
        effect, best = self.gain(), self.search.best
        judgement = None if effect is None or best.state != RACED else effect.judgement
        if judgement is None or judgement.high is None or judgement.verdict != "FASTER":
            return math.nan
        return payoff_steps(self._longer_s(), self.search.start.step_ms, judgement.high)

    def _longer_s(self) -> float:
        """Return the seconds, at most, by which the best candidate's build is the longer one.

        The start's build loads libraries for all. The first candidate that has an option compiles
        for it, and later ones may find that in caches. So the times of all that first had an option
        of the best candidate count, as far as they are longer than the shortest build. NaN if one
        of them failed: how long it compiled is not known.
        """
        start, best, candidates = self.search.start, self.search.best, self.search.candidates
        shortest_s = min(c.build_s for c in candidates if not math.isnan(c.build_s))
        wanted = set(changed_options(best.point, start.point))
        longer_s = 0.0
        for candidate in candidates:  # in the order of their first builds
            first_here = wanted.intersection(changed_options(candidate.point, start.point))
            if first_here or candidate is best:
                longer_s += candidate.build_s - shortest_s
            wanted -= first_here
        return longer_s


def is_look(rounds: int) -> bool:
    """Return True if the verdicts are judged after so many rounds, a look each quarter more.

    A look costs as much as some blocks.
    """
    if rounds <= verdict.MIN_PAIRS:
        return rounds == verdict.MIN_PAIRS
    looks, before = (
        math.floor(math.log(n / verdict.MIN_PAIRS, GROWTH)) for n in (rounds, rounds - 1)
    )
    return looks > before


def payoff_steps(extra_s: float, step_ms: float, ratio: float) -> float:
    """Return after how many steps ``extra_s`` of building are saved by a ratio of step times."""
    if extra_s <= 0:
        return 0.0 if ratio < 1 else math.nan
    if math.isnan(extra_s):
        return math.nan
    saved_ms = step_ms * (1 - ratio)
    return math.ceil(1000 * extra_s / saved_ms) if saved_ms > 0 else math.inf
