"""The device of a search: it builds and measures candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sessions.model import Numerics
from sessions.studies.optimization.space import Built, Candidate, Failure, Measurement, Point


class Bench(Protocol):
    """Builds and measures candidates: a device, or a simulation of one."""

    def now(self) -> float:
        """Return the seconds of a clock."""

    def usable(self, point: Point) -> tuple[Point | None, str]:
        """Return the point, changed if its options need others, and why; None if it is unusable.

        If two options exclude each other, either may be replaced.
        """

    def saved_waits(self, point: Point, best: Candidate) -> float:
        """Return the log ratio of step times to ``best`` of a point that avoids its waits.

        NaN if it does not avoid them, or if they cannot be measured. ``best`` has been measured.
        """

    def predict(self, point: Point) -> float:
        """Return the predicted log ratio of step time to the start's; NaN if there is none."""

    def compiles(self, point: Point) -> bool:
        """Return True if building the point compiles its step, which takes long."""

    def build(self, candidate: Candidate) -> Built | Failure:
        """Build and warm up a candidate, unless it is ready."""

    def release(self, candidate: Candidate) -> None:
        """Let other candidates use the memory of a candidate."""

    def round(self, candidates: Sequence[Candidate]) -> dict[int, Measurement | Failure]:
        """Run a block of every candidate in random order; a void block has no entry."""

    def rebuild(self, candidates: Sequence[Candidate]) -> None:
        """Build candidates again at other addresses; a failure appears in the next block."""

    def check(self, candidate: Candidate) -> Numerics | Failure:
        """Compare the numbers of a candidate with a reference."""
