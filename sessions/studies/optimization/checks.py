"""Schedule of a search's checks, which compare the results of candidates with a reference.

A check may take as long as hundreds of steps, and most of the best candidates are replaced soon. So
the check of a new best candidate is postponed. It runs when the search has spent as long on later
candidates as the check takes, or when the search ends. If the results are wrong, the search returns
to the last candidate with right results, and does not try the wrong option again.

A candidate is never proposed before its check. A check is not postponed if the candidate before is
not right, or if the check is much shorter than the next build.
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

RISK = 0.1  # assumed fraction of best candidates whose results are wrong


class Search(Protocol):
    """Attributes and methods of a search that its checks need."""

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
        """Seconds that remain for a race that is running."""

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
    """Best candidates of a search whose checks are postponed, in the order of their races."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._waiting: list[Candidate] = []
        self._right: Candidate | None = None  # the best candidate before the first waiting one
        self._since_s = 0.0  # seconds of the search when the first waiting one became the best
        self.lacked_time = False  # True if a candidate that may be better was not checked
        self._wrong: set[Option] = set()  # options that made the results of a candidate wrong

    @property
    def right(self) -> Candidate:
        """The best candidate; while it waits, the last best candidate with right results."""
        return self._search.best if self._right is None else self._right

    @property
    def owed_s(self) -> float:
        """Seconds that the search must reserve for the postponed check."""
        return self._search.plan.check_s if self._waiting else 0.0

    @property
    def is_due(self) -> bool:
        """True if the search has spent as long on waiting candidates as a check takes."""
        search = self._search
        invested_s = search.plan.spent_s - self._since_s
        return bool(self._waiting) and invested_s >= search.plan.check_s

    def is_base(self, candidate: Candidate) -> bool:
        """Return True if the search can continue from a candidate: it is right, or waits."""
        return self._search.proposable(candidate) or candidate in self._waiting

    def is_suspect(self, candidate: Candidate) -> bool:
        """Return True if a candidate has a wrong option that the best candidate does not have."""
        options = changed_options(candidate.point, self._search.best.point)
        return not self._wrong.isdisjoint(options)

    def accept(self, candidate: Candidate, incumbent: Candidate) -> bool:
        """Return True if a candidate that was better in a race may replace the incumbent."""
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
        """Return True if the check of a candidate can be postponed.

        Return False if the check costs less than the risk that the next build is useless.
        """
        goal, cost_s = self._search.goal, self._search.cost(candidate.point)
        if self._search.plan.check_s < RISK * cost_s:
            return False
        is_small = math.isinf(goal.memory_limit) or candidate.peak_bytes <= goal.memory_limit
        return candidate.numerics is None and is_small and math.isinf(goal.max_error)

    def forget(self) -> None:
        """Drop all waiting candidates, because a candidate with right results is the best."""
        self._waiting, self._right = [], None

    def confirm(self) -> bool:
        """Check the best candidate if it waits; return False if the search returns to another."""
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
        if self._has_time:  # a wrong incumbent may have hidden that another candidate is better
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
        """Find the wrong option of a candidate with several: check those that also raced alone."""
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
