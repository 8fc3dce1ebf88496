"""The rate at which the real runner calls identical arms different, in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runner_driver import Driver
from scipy import stats

from sessions.model import Configuration, PairedComparison
from workbench import protocol

ALLOWED = 0.05  # of identical pairs that may be called different


@dataclass(frozen=True)
class Rate:
    """A rate of comparisons, with the exact (Clopper-Pearson) 95 % interval."""

    hits: int
    count: int
    low: float
    high: float

    @classmethod
    def of(cls, hits: int, count: int) -> Rate:
        if not count:
            return cls(0, 0, 0.0, 1.0)
        ends = stats.binomtest(hits, count).proportion_ci(0.95, "exact")
        return cls(hits, count, float(ends.low), float(ends.high))

    @property
    def too_high(self) -> bool:
        """Return True if chance alone does not explain more than what is allowed."""
        return self.low > ALLOWED

    def __str__(self) -> str:
        share = 100 * self.hits / max(1, self.count)
        ends = f"95 % interval {100 * self.low:.1f} % to {100 * self.high:.1f} %"
        return f"{self.hits} of {self.count} ({share:.1f} %, {ends})"


def compare(
    driver: Driver,
    both: Configuration,
    count: int,
    budget_s: float,
    report: Callable[[int, PairedComparison], None] = lambda number, comparison: None,
    build_count: int = 0,
    seed: int = 0,
) -> list[PairedComparison]:
    """Compare a configuration with itself so often, in one runner; raises if one fails."""
    made = []
    for number in range(count):
        command = protocol.Compare(
            base=both, other=both, budget_s=budget_s, seed=seed + number, build_count=build_count
        )
        driver.send(command)
        finished = driver.finish()
        if finished.reason != "done":
            raise AssertionError(f"comparison {number}: {finished.reason}; {driver.describe()}")
        comparison = driver.session.comparisons[-1]
        assert comparison.facts["identical"] and comparison.facts["final"]
        made.append(comparison)
        report(number, comparison)
    return made


def summary(made: Sequence[PairedComparison]) -> dict[str, Any]:
    """Return the counts, and what they say in words."""
    counts = {verdict: sum(comparison.verdict == verdict for comparison in made)
              for verdict in ("FASTER", "SLOWER", "SAME", "UNDECIDED")}  # fmt: skip
    different = Rate.of(counts["FASTER"] + counts["SLOWER"], len(made))
    known = [comparison for comparison in made if math.isfinite(comparison.low)]
    missed = Rate.of(
        sum(not comparison.low <= 1 <= comparison.high for comparison in known), len(known)
    )
    if different.too_high:
        bound = f"more than the {100 * ALLOWED:g} % that are allowed"
    elif different.high <= ALLOWED:
        bound = f"shown to be at most the {100 * ALLOWED:g} % that are allowed"
    else:
        bound = (
            f"in keeping with the {100 * ALLOWED:g} % that are allowed, which more comparisons "
            "could narrow"
        )
    return {
        "counts": counts,
        "called_different": asdict(different),
        "interval_without_1": asdict(missed),
        "too_high": different.too_high,
        "pairs": sum(comparison.facts["pairs"] for comparison in made),
        "words": f"Identical arms were called different in {different}: {bound}. "
        f"The interval left out a ratio of 1 in {missed}.",
    }
