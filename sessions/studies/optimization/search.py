"""The search for the best configuration: proposals, races, elimination, and omitted points.

* **Proposals.** The search begins at the user's configuration. It proposes single changes of the
  best candidate so far, the most promising first: by the measured effect of the option elsewhere,
  otherwise by the prediction, then by the time of the build. All changes that help are also
  proposed together, and at the end pairs of changes that are only slightly worse.
* **Races.** Up to ``BATCH`` candidates and the incumbent run blocks of steps in random order, round
  by round. A candidate is eliminated when the interval of its paired log ratios shows that it
  cannot be better by more than ``MATTERS``. The interval holds at every look, so a look after each
  round costs nothing.
* **Budget.** Builds, compiles, checks and races all count. A candidate that does not fit, does not
  build or is wrong is a data point. Numbers are checked where much depends on them
  (``sessions.studies.optimization.checks``), and those of the result always.

The ratios of a search are those of the best of many, so they are too good (the winner's curse).
``sessions.studies.optimization.verdicts`` measures the result again with new blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sessions.model import Numerics
from sessions.studies.optimization.bench import Bench
from sessions.studies.optimization.checks import Checks
from sessions.studies.optimization.knowledge import (
    Knowledge,
    Option,
    idle_reason,
    smaller_points,
    without_excluded,
)
from sessions.studies.optimization.space import (
    BLOCKED,
    ENERGY,
    LEAST_ROUNDS,
    MEMORY,
    NO_EFFECT,
    NOT_TRIED,
    RACED,
    TIME,
    TOO_LARGE,
    Candidate,
    Dimension,
    Failure,
    Goal,
    Measurement,
    Point,
    StartFailed,
    by_turns,
    changes,
    objection,
    replaced,
    title_of,
)
from sessions.studies.optimization.time_plan import TimePlan
from sessions.studies.sweep import FAILED

BATCH = 4  # candidates of a race; more would compete for memory
MATTERS = 0.0025  # log ratio: a smaller improvement is not worth a race
MOST_ROUNDS = 16  # an undecided candidate races again after all others
MOST_TURNS = 6  # races of a candidate against one incumbent
MUCH_BETTER = math.log(1.1)  # a candidate that seems better by this races until it is decided
SINGLE_REACH = math.log(1.1)  # a change that lost more elsewhere is not tried again
# Changes that lose more together are not tried as a pair. Losses are estimated in short races: the
# limit leaves room for their error, which both estimates share: that of the best candidate.
PAIR_REACH = math.log(1.07)
NEAR = math.log(1.01)  # predictions closer than this do not order; what is built sooner comes first
RACE_SHARE = 0.5  # share of the time left for a race; each batch of untried options has one
COMPILE_SHARE = 0.5  # share of the search's time; then options that compile no longer wait
PREDICTION_SHARE = 0.05  # share of the budget for predictions
NO_TIME = "no time was left"
BETTER, WORSE, OPEN = "better", "worse", "open"


@dataclass
class Search:
    """One search. ``report`` is called with a text after each build, check and round."""

    dimensions: Sequence[Dimension]
    bench: Bench
    goal: Goal
    report: Callable[[str], None] = lambda text: None
    candidates: list[Candidate] = field(default_factory=list)
    left_out: dict[Point, str] = field(default_factory=dict)  # points with the reason
    knowledge: Knowledge = field(default_factory=Knowledge)
    is_complete: bool = False  # every change of the best candidate within reach was decided
    rounds: int = 0  # rounds of all races

    def __post_init__(self) -> None:
        self._by_point: dict[Point, Candidate] = {}
        self._turns: dict[tuple[int, int], int] = {}  # races of two candidates, by their numbers
        self._lacks_time = False  # the last proposals did not fit in the time
        self.plan = TimePlan(self.goal.budget_s, self.bench.now)
        self.best = self.candidate(tuple(dimension.start for dimension in self.dimensions))
        self.checks = Checks(self)

    @property
    def start(self) -> Candidate:
        """The configuration at which the search began."""
        return self.candidates[0]

    @property
    def spent_s(self) -> float:
        """Seconds since the search began."""
        return self.plan.spent_s

    def run(self) -> None:
        """Search until nothing is left to try or the time is spent; raises ``StartFailed``."""
        self.start.value = self.start.time = 0.0
        failure = self.build(self.start)
        if failure is not None:
            raise StartFailed(failure.reason)
        self.start.state = RACED
        self.check(self.start)
        with self.plan.timed("prediction"):
            until_s = self.bench.now() + PREDICTION_SHARE * self.goal.budget_s
            self.knowledge.predict(self.bench, self.dimensions, self.start, until_s)
        while (batch := self._next_batch()) or not self.checks.confirm():
            if batch:
                self._race(batch)
        reasons = [*self.left_out.values(), *(candidate.reason for candidate in self.candidates)]
        is_cut = any(reason.startswith(NO_TIME) for reason in reasons) or self.checks.lacked_time
        self.is_complete = not (self._is_over or self._lacks_time or is_cut)

    # Candidates

    def candidate(self, point: Point) -> Candidate:
        """Return the candidate of a point, which is made if there is none yet."""
        if point not in self._by_point:
            candidate = Candidate(len(self.candidates), point, title_of(self.dimensions, point))
            if len(changed := changes(self.dimensions, point)) == 1:
                options = (o for o in enumerate(point) if self.dimensions[o[0]].name in changed)
                candidate.predicted = self.knowledge.predicted.get(next(options), math.nan)
            self._by_point[point] = candidate
            self.candidates.append(candidate)
        return self._by_point[point]

    def proposable(self, candidate: Candidate) -> bool:
        """Return True if a candidate was measured, is right, and keeps the limits."""
        return candidate.state == RACED and not self.objection(candidate)

    def objection(self, candidate: Candidate) -> str:
        """Return why a candidate that was measured cannot be proposed; empty if it can."""
        return objection(candidate, self.goal)

    def build(self, candidate: Candidate) -> Failure | None:
        """Build a candidate and record its results; return the failure, if there is one."""
        with self.plan.timed("build"):
            built = self.bench.build(candidate)
        if isinstance(built, Failure):
            candidate.state, candidate.reason = built.state, built.reason
        else:
            if math.isnan(candidate.build_s):  # a later build finds its compiled code in a cache
                candidate.build_s = built.seconds
                point, compiles = candidate.point, self.bench.compiles(candidate.point)
                self.knowledge.learn_cost(point, self.start.point, built.seconds, compiles)
            if not math.isnan(built.peak_bytes):
                candidate.peak_bytes = built.peak_bytes
            if not math.isnan(built.block_s):
                candidate.block_s = built.block_s
            candidate.evidence = built.evidence
        self.report(candidate.title)
        return built if isinstance(built, Failure) else None

    def check(self, candidate: Candidate) -> bool:
        """Check the numbers of a candidate once; return True if they are right."""
        if candidate.numerics is None:
            with self.plan.timed_check():
                numerics = self.bench.check(candidate)
            if isinstance(numerics, Failure):  # the reference may need more memory than the steps
                text = f"not checked: {numerics.reason}"
                numerics = Numerics(reference="", ok=None, text=text)
            candidate.numerics = numerics
            self.report(candidate.title)
        return candidate.is_right

    def score(self, point: Point) -> float:
        """Return the expected log ratio of a point to the best candidate."""
        return self.knowledge.score(point, self.best.point, self.start.point)

    def cost(self, point: Point) -> float:
        """Return the seconds that building a point should take, at least."""
        return self.knowledge.expected_s(point, self.start.point, self.bench.compiles(point))

    @property
    def _left_s(self) -> float:
        if not any(candidate.rounds for candidate in self.candidates):
            return self.most_left_s  # before a race, only the least time is reserved for verdicts
        final_s = self.plan.final_s([self.start, self.best])
        return self.plan.left_s - final_s - self.checks.owed_s

    @property
    def most_left_s(self) -> float:
        """Seconds that are left to a race which has begun."""
        least_s = self.plan.least_final_s([self.start, self.best])
        return self.plan.left_s - least_s - self.checks.owed_s

    @property
    def _is_over(self) -> bool:
        return self._left_s <= 0

    def replace_best(self, candidate: Candidate) -> None:
        """Replace the best candidate after the search."""
        self.best = candidate
        self.is_complete = self.is_complete and not self._singles()

    # Proposals

    def _next_batch(self) -> list[Candidate]:
        """Return the candidates of the next race; none when nothing is left or time is over."""
        self._lacks_time = False
        if self.checks.is_due:
            self.checks.confirm()
        for proposals in (self._together, self._singles, self._smaller, self._open, self._pairs):
            if batch := self._built(proposals()):
                return batch
        if self._is_over or self._lacks_time:
            for point in self._singles():
                self._leave_out(point, f"{NO_TIME} to try it")
        return []

    def _built(self, points: Sequence[Point]) -> list[Candidate]:
        """Return the first candidates of these points that can be built and race."""
        batch: list[Candidate] = []
        for point in points:
            # Expect a candidate that is not built yet to be as fast as the best candidate.
            left_s = self._left_s - self._least_race_s([*batch, self.best])
            if len(batch) == BATCH or left_s <= 0:
                self._lacks_time |= left_s <= 0
                break
            if batch and self.bench.compiles(point) > self.bench.compiles(batch[-1].point):
                break  # how long that takes is not known, and it would take the time of this race
            if (cost := self.cost(point)) > left_s:
                self._leave_out(point, f"{NO_TIME} to build it, which takes about {cost:.0f} s")
                continue
            candidate = self.candidate(point)
            if self.build(candidate) is not None:
                self.knowledge.learn_failure(candidate, self.best)
            elif self._least_race_s([*batch, candidate]) > self.most_left_s:
                self._lacks_time, candidate.reason = True, f"{NO_TIME} to race it"
                self.bench.release(candidate)
            elif self._can_race(candidate):
                batch.append(candidate)
        return batch

    def _least_race_s(self, batch: Sequence[Candidate]) -> float:
        """Return the seconds in which a race can decide and a check can end, as far as known.

        What is built without time for a race is of no use.
        """
        check_s = self.plan.check_s - self.checks.owed_s
        return LEAST_ROUNDS * self.plan.round_s([self.best, *batch]) + check_s

    def _can_race(self, candidate: Candidate) -> bool:
        """Return True unless a candidate is too large or is equivalent to the best one."""
        if candidate.peak_bytes > self.goal.memory_limit:
            candidate.state, candidate.reason = TOO_LARGE, "its peak memory is over the limit"
            self.knowledge.learn_size(candidate, self.best)
        elif reason := idle_reason(candidate, self.best, self.dimensions):
            candidate.state, candidate.reason = NO_EFFECT, reason
            self.knowledge.refuse(candidate, self.best, "it had no effect")
        else:
            return True
        self.bench.release(candidate)
        return False

    def _together(self) -> list[Point]:
        """Propose together all options that are better than the best candidate's.

        The measured effect decides, or the prediction if an option was not measured.
        """
        point, effect = self.best.point, self.knowledge.effect
        for axis, dimension in enumerate(self.dimensions):
            options = [o for o in dimension.options if self._can_join((axis, o))]
            option = min(options, key=lambda o: effect((axis, o)), default=point[axis])
            if effect((axis, point[axis])) - effect((axis, option)) > MATTERS:
                point = replaced(point, [(axis, option)])
        return self._untried([point])

    def _can_join(self, option: Option) -> bool:
        knowledge = self.knowledge
        return option not in knowledge.refused and not knowledge.is_too_large(option, self.best)

    def _singles(self) -> list[Point]:
        """Propose the single changes of the best candidate that nothing speaks against."""
        points = []
        for axis, option in by_turns(self.dimensions, self.best.point):
            point = replaced(self.best.point, [(axis, option)])
            score = self.score(point)
            if (reason := self.knowledge.refused.get((axis, option))) is not None:
                self._leave_out(point, reason)
            elif self.knowledge.is_too_large((axis, option), self.best):
                self._leave_out(point, "it needed too much memory in another configuration")
            elif (axis, option) in self.knowledge.effects and score > SINGLE_REACH:
                percent = 100 * math.expm1(score)
                self._leave_out(point, f"it was {percent:.0f} % worse in another configuration")
            else:
                points.append(point)
        return self._untried(points)

    def _smaller(self) -> list[Point]:
        """Propose options that are too large alone with each change that saves enough memory."""
        points = smaller_points(
            self.candidates, self.best, self.knowledge.large, self.goal.memory_limit
        )
        return self._untried(points)

    def _open(self) -> list[Point]:
        """Propose again the points that may be better than the best candidate."""
        candidates = [
            candidate
            for candidate in self.candidates
            if candidate.state == RACED
            and candidate is not self.best
            and self._may_be_better(candidate)
        ]
        return [candidate.point for candidate in sorted(candidates, key=lambda c: c.value)]

    def _pairs(self) -> list[Point]:
        """Propose pairs of changes that lose little together, if effects are additive."""
        options = [
            (axis, option)
            for axis, dimension in enumerate(self.dimensions)
            for option in dimension.options
            if option != self.best.point[axis]
            and (axis, option) in self.knowledge.effects
            and (axis, option) not in self.knowledge.refused
        ]
        points = [
            replaced(self.best.point, pair)
            for pair in itertools.combinations(options, 2)
            if pair[0][0] != pair[1][0]
        ]
        return self._untried([point for point in points if self.score(point) <= PAIR_REACH])

    def _untried(self, points: Sequence[Point]) -> list[Point]:
        """Return the points that can be used and were not tried, the most promising first."""
        untried: dict[Point, None] = {}
        for point in points:
            if point in self._by_point or point in self.left_out:
                continue
            usable, reason = self.bench.usable(point)
            if usable == self.best.point:  # an option of it excludes the change
                usable = without_excluded(self.bench, point, self.best.point, self.start.point)
            if usable is None:
                self._leave_out(point, f"{BLOCKED}: {reason}")
            elif usable not in self._by_point and usable not in self.left_out:
                untried[usable] = None
        return sorted(untried, key=self._rank)

    def _rank(self, point: Point) -> tuple[int, bool, float]:
        """Return the rank of a point: by its expected effect, then by the time of its build.

        Once a step is compiled, each further change compiles again. So the options that compile
        wait for the others, but not for more than half of the time.
        """
        compiles, cost_s = self.bench.compiles, self.knowledge.cost(point, self.start.point)
        is_early = self.spent_s < COMPILE_SHARE * (self.spent_s + self._left_s)
        waits = is_early and compiles(point) and not compiles(self.best.point)
        return round(self.score(point) / NEAR), waits, cost_s

    def _leave_out(self, point: Point, reason: str) -> None:
        if point not in self._by_point:
            self.left_out.setdefault(point, reason)

    # Races

    def _race(self, batch: Sequence[Candidate]) -> None:
        """Alternate the best candidate and a batch until each is decided, or rounds are spent.

        A share of the time is left to the options that were not tried. What is still open then
        races again after them.
        """
        live, races = list(batch), 1 + math.ceil(len(self._singles()) / BATCH)
        until_s, rounds_before = self.spent_s + RACE_SHARE * self._left_s / races, self.rounds
        for candidate in batch:
            pair = candidate.number, self.best.number
            self._turns[pair] = self._turns.get(pair, 0) + 1
        with self.plan.timed("race"):
            for number in range(MOST_ROUNDS):
                left_s = self._race_left_s(number, live, until_s)
                if not live or left_s < 0 or self.plan.round_s([self.best, *live]) > left_s:
                    break
                self._round(live)
                live = [candidate for candidate in live if self._is_live(candidate)]
                self.report(f"racing candidates: {len(live)} of {len(batch)}")
        self.settle(batch)
        for candidate in batch:
            if candidate.state == NOT_TRIED and self.rounds == rounds_before:
                candidate.reason = f"{NO_TIME} to race it"
            elif candidate.state == NOT_TRIED:
                reason = ": ".join(filter(None, ("all its blocks are void", candidate.void)))
                candidate.state, candidate.reason = FAILED, reason
            if candidate is not self.best:
                self.bench.release(candidate)

    def _race_left_s(self, rounds: int, live: Sequence[Candidate], until_s: float) -> float:
        """Return the seconds left to a race: of its share, or more for a large improvement."""
        if rounds < LEAST_ROUNDS:
            return self.most_left_s
        races = (candidate.race(self.best.number, self.goal.objective) for candidate in live)
        is_large = any(race.mean < -MUCH_BETTER for race in races)
        return self._left_s if is_large else until_s - self.spent_s

    def _round(self, live: Sequence[Candidate]) -> None:
        runners = [self.best, *live]
        with self.plan.timed_round(runners):
            blocks = self.bench.round(runners)
        self.rounds += 1
        base = self._add_block(self.best, blocks)
        for candidate in live:
            measurement = self._add_block(candidate, blocks)
            if base is not None and measurement is not None:
                candidate.state = RACED
                candidate.add(self.best.number, base, measurement)

    def _add_block(
        self, candidate: Candidate, blocks: dict[int, Measurement | Failure]
    ) -> Measurement | None:
        """Add a candidate's block of a round and return it; None if there is none that counts."""
        block = blocks.get(candidate.number)
        if isinstance(block, Failure):
            candidate.state, candidate.reason = block.state, block.reason
            if candidate is self.best:
                self._fall_back(block)
            return None
        if block is not None:
            candidate.measurements.append(block)
        return block

    def _fall_back(self, failure: Failure) -> None:
        """Continue with the next-best candidate, because the best one failed in the race."""
        proposable = [candidate for candidate in self.candidates if self.proposable(candidate)]
        if not proposable:
            raise StartFailed(failure.reason)
        self.best = min(proposable, key=lambda candidate: candidate.value)
        self.checks.forget()

    def _is_live(self, candidate: Candidate) -> bool:
        return candidate.state in (RACED, NOT_TRIED) and self._outcome(candidate) == OPEN

    def _outcome(self, candidate: Candidate) -> str:
        """Return whether a candidate is better or worse than the best one, or open."""
        objective = self.goal.objective
        race = candidate.race(self.best.number, ENERGY if objective == ENERGY else TIME)
        if race.n < LEAST_ROUNDS:
            return OPEN
        if objective == MEMORY:
            gain = math.log(self.best.peak_bytes / candidate.peak_bytes)
            return BETTER if gain > MATTERS else WORSE
        if race.low > -MATTERS:
            return WORSE
        return BETTER if race.high < 0 else OPEN

    def _may_be_better(self, candidate: Candidate) -> bool:
        """Return True if another race against the best candidate may show that this is better."""
        if self.goal.objective == MEMORY:  # memory is counted exactly
            return False
        if self.checks.is_suspect(candidate):
            return False
        race = candidate.race(self.best.number, self.goal.objective)
        if self._turns.get((candidate.number, self.best.number), 0) >= MOST_TURNS:
            return False
        if race.n:
            return self._outcome(candidate) == OPEN and race.mean < 0
        if candidate.numerics is not None and self.objection(candidate):
            return False
        before = candidate.race(candidate.against, self.goal.objective)
        reach = before.half if math.isfinite(before.half) else 0.0
        return candidate.value - reach < self.best.value - MATTERS

    def settle(self, batch: Sequence[Candidate]) -> None:
        """Estimate values, learn effects, and make the best right candidate the incumbent."""
        objective, incumbent = self.goal.objective, self.best
        outcomes = {}
        for candidate in batch:
            if candidate.state != RACED or not candidate.race(incumbent.number).n:
                continue
            candidate.time = incumbent.time + candidate.race(incumbent.number, TIME).mean
            if objective == MEMORY:
                candidate.value = math.log(candidate.peak_bytes / self.start.peak_bytes)
            else:
                candidate.value = incumbent.value + candidate.race(incumbent.number, objective).mean
            outcomes[candidate] = self._outcome(candidate)
            self.knowledge.learn_effect(candidate, incumbent)
        for candidate in sorted(outcomes, key=lambda c: c.value):
            if outcomes[candidate] != BETTER and self.checks.is_base(incumbent):
                continue
            if self.checks.accept(candidate, incumbent):
                self.best = candidate
                if objective == TIME:  # effects on memory or energy stay as measured
                    self.knowledge.learn_waits(self.bench, self.dimensions, candidate)
                return
