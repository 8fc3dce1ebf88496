"""When a comparison builds both arms again, so that its interval covers differences of builds.

Two builds of one step lie at other addresses and differ by some tenths of a percent for as long as
they live. Which of them a run gets is chance, so a verdict about configurations needs several.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import weakref
from dataclasses import dataclass

import torch

from sessions.verdicts.verdict import LEAST_BUILDS
from sessions.verdicts.verdict_words import duration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.experiments.paired.blocks import Contender
from workbench.runner.instruments.memory import free_memory

ONE = 1  # the number of builds that switches rebuilding off; 0 leaves the choice to ``plan``
SHARE = 0.25  # largest share of the time for rebuilding if no number was chosen
TRIAL_SHARE = 0.5  # largest share of the budget for the first build if a second is tried
LEAST_PLANNED = LEAST_BUILDS + 1  # one more than an interval needs, because the last may not end
GROWTH = 1 / 8  # least share of the time so far for each build, so that hours do not need hundreds
PAIRS = 2  # fewest pairs of a build
# A random allocation before each build changes the addresses of the build.
STEP_BYTES = {"cuda": 2 << 20, "cpu": 64 << 10}
MOST_STEPS = 32


@dataclass(frozen=True)
class Plan:
    """The duration of one build at first; ``why`` says why there is only one, as a clause."""

    slice_s: float = math.inf
    growth: float = 0.0  # share of the time so far, as ``GROWTH``
    why: str = ""

    def seconds(self, spent_s: float) -> float:
        """Return how long to measure the next build, after ``spent_s`` for all builds so far."""
        return max(self.slice_s, self.growth * spent_s)

    @property
    def least(self) -> int:
        """Return how many builds a verdict needs."""
        return 1 if math.isinf(self.slice_s) else LEAST_BUILDS


def plan(count: int, budget_s: float, rebuild_s: float, pair_s: float, before: int = 0) -> Plan:
    """Divide the budget into builds.

    ``count``: how many were requested, 0 for as many as are cheap. ``rebuild_s``: seconds that
    building both arms and warming them up takes; ``pair_s``: seconds of a pair of blocks.
    ``before``: builds that were measured earlier.
    """
    if count == ONE:
        return Plan(why="one build was requested")
    if count:
        return Plan(max(budget_s / count - rebuild_s, 0.0))
    slice_s = max((1 / SHARE - 1) * rebuild_s, PAIRS * pair_s)
    if max(1, LEAST_PLANNED - before) * (slice_s + rebuild_s) > budget_s:
        duration_text = f"building both arms again takes about {duration(rebuild_s)}"
        return Plan(why=f"{duration_text}, too long for a budget of {duration(budget_s)}")
    return Plan(slice_s, GROWTH)


def is_worth_a_trial(contenders: list[Contender], count: int, budget_s: float) -> bool:
    """Return True if building both arms once more, to time it, costs little for the budget."""
    arms = [contender.variant for contender in contenders]
    if count == ONE or any(arm is None or not arm.startup_s or arm.divided for arm in arms):
        return False
    startup_s = sum(arm.startup_s for arm in arms if arm is not None)
    return count > ONE or startup_s <= TRIAL_SHARE * budget_s


def plan_for(contenders: list[Contender], count: int, budget_s: float, before: int = 0) -> Plan:
    """Divide the budget, given the build times of arms that are built and warm."""
    arms = [contender.variant for contender in contenders]
    if any(arm is None or not arm.startup_s for arm in arms):
        return Plan(why="the time that building takes is unknown")
    if any(arm is not None and arm.divided is not None for arm in arms):
        return Plan(why="arms on several ranks are built only once")
    rebuild_s = sum(rebuild_seconds(contender) for contender in contenders)
    pair_s = sum(contender.steps * contender.step_ms for contender in contenders) / 1000
    return plan(count, budget_s, rebuild_s, pair_s, before)


def rebuild_seconds(contender: Contender) -> float:
    """Return how long the last build and warm-up took, in seconds."""
    return contender.warm_up_s + (0.0 if contender.variant is None else contender.variant.startup_s)


def release(variants: VariantCache, contenders: list[Contender]) -> None:
    """Free the contenders' arms and release their memory."""
    models = []
    for contender in contenders:
        if contender.variant is not None:
            models.append(weakref.ref(contender.variant.model))
        contender.variant = None
        variants.forget(contender.situation, contender.copy)
    if any(model() is not None for model in models):  # compiled code holds its model in a cycle
        gc.collect()
    free_memory()


def allocate_random(device: torch.device, chance: random.Random) -> torch.Tensor | None:
    """Allocate a random amount of memory; return None if there is none to spare."""
    with contextlib.suppress(RuntimeError):  # torch.OutOfMemoryError is one; on the CPU it is not
        size = chance.randint(1, MOST_STEPS) * STEP_BYTES[device.type]
        return torch.empty(size, dtype=torch.uint8, device=device)
    return None
