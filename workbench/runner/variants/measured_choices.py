"""Measurement of the implementations that ``auto`` chooses from, before an arm's first step.

Nothing can be measured inside that step: it is watched by a counter of operators, compiled or
captured. Therefore its forward and backward pass run once before, without any of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

import kernels
from sessions.model import Phase
from workbench.runner.instruments.memory import free_memory
from workbench.runner.profiling import instrumented

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.variant import Arm


def preparations(build: Build) -> list[Callable[[Arm], None]]:
    """Return what an arm has to do before its first step; nothing if it need not measure."""
    situation = build.situation
    if not situation.on_gpu or build.layout.ranks > 1:
        return []
    operators = situation.family.operators
    names = frozenset(kernels.OPS)
    if operators is not None:
        names = operators(situation.config, situation.workload.name)
    if all(build.kernel_choices.get(name, "auto") != "auto" for name in names):
        return []

    def measure(arm: Arm) -> None:
        with build.phases.during(Phase.AUTOTUNE):
            arm.restart()
            try:
                instrumented.call(arm, backward=True)
            except torch.OutOfMemoryError:
                # Compiled it may fit. The operators' rules choose where nothing was measured.
                free_memory()

    return [measure]
