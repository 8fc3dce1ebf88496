"""A segment that became steady, so that its configuration can be paired with another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.runner.interfaces import Situation


@dataclass(eq=False)
class SteadySegment:
    """A segment that became steady: what it ran, its number, and how long a step took at last."""

    situation: Situation
    index: int
    step_ms: float = math.nan
