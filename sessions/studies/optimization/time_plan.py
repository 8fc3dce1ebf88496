"""The time of a search: spent time, the duration of a round, and the need of the verdicts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

from sessions.studies.optimization.space import Candidate
from sessions.verdicts import verdict

FINAL_SHARE = 0.3  # share of the budget for the verdicts
FINAL_ROUNDS = 3 * verdict.MIN_PAIRS  # rounds of start and result; a search reserves no more
# The verdict on the result gets up to this share if blocks are slow. A search without a verdict
# says little, and a search without races says nothing.
MOST_FINAL_SHARE = 0.5


class TimePlan:
    """Seconds of a search by activity, and those that blocks and checks should take."""

    def __init__(self, budget_s: float, now: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = {}  # by activity
        self.checks = 0
        self.check_s = 0.0  # seconds of the latest check; the first also computes shared results
        self._budget_s, self._now, self._began = budget_s, now, now()
        self._block_s = math.nan  # mean block of the latest round
        self._pace = 1.0  # seconds of the latest round in those that its blocks should take

    @property
    def spent_s(self) -> float:
        """Seconds since the search began."""
        return self._now() - self._began

    @property
    def left_s(self) -> float:
        """Seconds that are left of the budget."""
        return self._budget_s - self.spent_s

    @contextlib.contextmanager
    def timed(self, activity: str) -> Iterator[None]:
        """Count the seconds of an activity."""
        began = self._now()
        try:
            yield
        finally:
            self.seconds[activity] = self.seconds.get(activity, 0.0) + self._now() - began

    @contextlib.contextmanager
    def timed_check(self) -> Iterator[None]:
        """Learn from a check how long the next one takes."""
        began = self._now()
        with self.timed("check"):
            yield
        self.checks, self.check_s = self.checks + 1, self._now() - began

    @contextlib.contextmanager
    def timed_round(self, candidates: Sequence[Candidate]) -> Iterator[None]:
        """Learn from a round of these candidates how long blocks take."""
        began, planned_s = self._now(), sum(candidate.block_s for candidate in candidates)
        yield
        seconds = self._now() - began
        self._block_s = seconds / len(candidates)
        if planned_s > 0:  # never of NaN
            self._pace = seconds / planned_s

    def round_s(self, candidates: Sequence[Candidate]) -> float:
        """Return the seconds that a round of these candidates should take; 0 if not known."""
        planned_s = self._pace * sum(candidate.block_s for candidate in candidates)
        if math.isnan(planned_s):
            planned_s = len(candidates) * self._block_s
        return 0.0 if math.isnan(planned_s) else planned_s

    def verdict_s(self, arms: Sequence[Candidate], rounds: int = 0) -> float:
        """Return the seconds in which these arms get verdicts after so many rounds."""
        return max(verdict.MIN_PAIRS - rounds, 0) * self.round_s(arms)

    def final_s(self, arms: Sequence[Candidate]) -> float:
        """Return the seconds that a search reserves for verdicts, which include these arms."""
        share_s = min(FINAL_SHARE * self._budget_s, FINAL_ROUNDS * self.round_s(arms))
        return max(share_s, self.least_final_s(arms))

    def least_final_s(self, arms: Sequence[Candidate]) -> float:
        """Return the seconds for verdicts on these arms that no race may use."""
        needed_s = self.verdict_s(arms) + self.round_s(arms)  # some rounds take longer
        return min(MOST_FINAL_SHARE * self._budget_s, needed_s)
