"""The checks of a search: when the numbers of its best candidates are compared with a reference.

A check may take as long as hundreds of steps, and most of the best candidates are only steps on the
way to the result. So the check of a new best candidate waits until the search has spent as long on
what builds on it, or until the search ends. If the numbers are wrong, the search returns to the
last candidate of the chain that is right, and tries the wrong option in no other.

Nothing that waits is proposed. Nothing waits if the candidate before it is not right, or if its
check is much shorter than the next build.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from sessions.studies.optimization.knowledge import (
    Knowledge,
    Option,
    changed_options,
    difference,
)
from sessions.studies.optimization.space import RACED, Candidate, Failure, Goal, Point
from sessions.studies.optimization.time_plan import TimePlan

RISK = 0.1  # the fraction of best candidates that may be wrong, as far as one can tell before


class Search(Protocol):
    """The part of a search that checks depend on."""

    best: Candidate
    candidates: list[Candidate]
    knowledge: Knowledge
    plan: TimePlan
    goal: Goal

    @property
    def start(self) -> Candidate:
        """The configuration at which the search began."""

    @property
    def most_left_s(self) -> float:
        """Seconds that are left to a race which has begun."""

    def proposable(self, candidate: Candidate) -> bool:
        """Return True if a candidate was measured, is right, and keeps the limits."""

    def objection(self, candidate: Candidate) -> str:
        """Return why a candidate that was measured cannot be proposed; empty if it can."""

    def build(self, candidate: Candidate) -> Failure | None:
        """Build a candidate; return the failure, if there is one."""

    def check(self, candidate: Candidate) -> bool:
        """Check the numbers of a candidate once; return True if they are right."""

    def cost(self, point: Point) -> float:
        """Return the seconds that building a point should take, at least."""

    def settle(self, batch: Sequence[Candidate]) -> None:
        """Make the best of the candidates that were better in a race the incumbent."""


class Checks:
    """The best candidates of a search that wait for a check, each built on the one before."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._waiting: list[Candidate] = []
        self._right: Candidate | None = None  # on which the first that waits is built
        self._since_s = 0.0  # seconds of the search when that one became the best
        self.lacked_time = False  # for candidates that may be better than the result, and right
        self._wrong: set[Option] = set()  # that were the only change of a wrong candidate

    @property
    def right(self) -> Candidate:
        """The best candidate, or the last one whose numbers were right if that one waits."""
        return self._search.best if self._right is None else self._right

    @property
    def owed_s(self) -> float:
        """Seconds of the check that waits, which the search has to leave to it."""
        return self._search.plan.check_s if self._waiting else 0.0

    @property
    def is_due(self) -> bool:
        """True if the search has spent so much on what waits that it should be checked."""
        search = self._search
        invested_s = search.plan.spent_s - self._since_s
        return bool(self._waiting) and invested_s >= search.plan.check_s

    def is_base(self, candidate: Candidate) -> bool:
        """Return True if candidates may build on this one: it is right, or waits for its check."""
        return self._search.proposable(candidate) or candidate in self._waiting

    def is_suspect(self, candidate: Candidate) -> bool:
        """Return True if a candidate has an option that was wrong, which the best one has not."""
        options = changed_options(candidate.point, self._search.best.point)
        return not self._wrong.isdisjoint(options)

    def accept(self, candidate: Candidate, incumbent: Candidate) -> bool:
        """Return True if the candidate may replace the incumbent, which it is better than."""
        search = self._search
        if self.is_suspect(candidate):
            return False
        if self._can_wait(candidate) and self.is_base(incumbent):
            if not self._waiting:
                self._right, self._since_s = incumbent, search.plan.spent_s
            self._waiting.append(candidate)
            return True
        if not search.check(candidate) and candidate.numerics and incumbent.is_right:
            self._refuse(candidate, incumbent)
        if search.proposable(candidate):
            self.forget()
        return search.proposable(candidate)

    def _can_wait(self, candidate: Candidate) -> bool:
        """Return True if only its numbers may keep a candidate from being the result.

        False if checking it now is cheaper than the risk of a build in vain.
        """
        goal, cost_s = self._search.goal, self._search.cost(candidate.point)
        if self._search.plan.check_s < RISK * cost_s:
            return False
        is_small = math.isinf(goal.memory_limit) or candidate.peak_bytes <= goal.memory_limit
        return candidate.numerics is None and is_small and math.isinf(goal.max_error)

    def forget(self) -> None:
        """Let no candidate wait: another one, which is right, has become the best."""
        self._waiting, self._right = [], None

    def confirm(self) -> bool:
        """Check the best candidate if it waits; return False if the search goes back instead."""
        search, waiting, base = self._search, self._waiting, self.right
        self.forget()
        if not waiting or self._is_right(waiting[-1]):
            return True
        search.best = base
        for candidate in waiting:
            if not self._has_time:
                break
            if not self._is_right(candidate):
                self._refuse(candidate, search.best)
                self._look_for_wrong_option(candidate)
                break
            search.best = candidate
        if self._has_time:  # what was better than this one in a race beside a wrong candidate
            search.settle(search.candidates)
        else:
            self.lacked_time = True
        return False

    @property
    def _has_time(self) -> bool:
        return self._search.most_left_s > self._search.plan.check_s

    def _is_right(self, candidate: Candidate) -> bool:
        search = self._search
        if candidate.numerics is None and search.build(candidate) is None:
            search.check(candidate)
        return search.proposable(candidate)

    def _look_for_wrong_option(self, candidate: Candidate) -> None:
        """Check the changes of a wrong candidate that raced alone, if it has several."""
        search = self._search
        options = changed_options(candidate.point, search.best.point)
        if len(options) < 2 or not search.start.is_right:
            return
        alone = [c for c in search.candidates if difference(c.point, search.start.point) in options]
        for other in alone:
            is_open = other.state == RACED and other.numerics is None and self._has_time
            if is_open and not self._is_right(other):
                self._refuse(other, search.start)

    def _refuse(self, candidate: Candidate, reference: Candidate) -> None:
        search = self._search
        reason = search.objection(candidate) or candidate.reason or "it failed"
        search.knowledge.refuse(candidate, reference, reason.split(":")[0])
        option = difference(candidate.point, reference.point)
        self._wrong |= set() if option is None else {option}
