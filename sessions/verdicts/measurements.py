"""A measured segment, and the ratio of one to another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sessions.model import Configuration, Segment, Session
from sessions.verdicts.statistics import Summary
from sessions.verdicts.verdict import (
    REGION,
)

PAIRED, REPEATS, UNPAIRED = "paired", "repeats", "unpaired"


@dataclass(frozen=True)
class Measurement:
    """A segment that a ratio can be made of: its session, its clock and its typical step."""

    session: Session
    segment: Segment
    clock: str
    summary: Summary

    @property
    def configuration(self) -> Configuration:
        """Return what ran."""
        return self.segment.configuration

    @property
    def start(self) -> float:
        """Unix time at which the segment began."""
        return self.session.created + self.segment.start_s


@dataclass(frozen=True)
class SegmentRatio:
    """Step time of a segment over the baseline's: below 1 is faster.

    ``low`` and ``high`` bound the 95 % interval; both are None where the ratio is unpaired.
    ``verdict`` is FASTER, SLOWER, SAME or UNDECIDED; ``UNPAIRED`` where nothing can be claimed, and
    "different models" or "other work" where the ratio is no speed-up. ``note`` says what it rests
    on, or why there is none.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    source: str = UNPAIRED
    verdict: str = UNPAIRED
    note: str = ""
    region: float = REGION

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval, NaN where there is none."""
        if self.low is None or self.high is None:
            return math.nan, math.nan
        return self.low, self.high
