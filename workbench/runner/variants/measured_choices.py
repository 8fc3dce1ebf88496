"""Measurement of the implementations that ``auto`` chooses from, before a step is built on them.

An eager step measures when it first calls an operator. While a step is compiled or captured nothing
can be measured, so that it is computed once before, as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import kernels
from sessions.model import Phase
from workbench.runner.profiling import instrumented

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.variant import Arm


def preparations(build: Build) -> list[Callable[[Arm], None]]:
    """Return what an arm has to do before its first step; nothing if it need not measure."""
    situation = build.situation
    graphs = situation.option("compile") != "off" or situation.option("cuda_graphs") == "on"
    alone = build.ranks == build.tensor_ranks == build.pipeline_ranks == 1
    if not (situation.on_gpu and graphs and alone):
        return []
    names = kernels.OPS if situation.family.operators is None else situation.family.operators(
        situation.config, situation.workload.name
    )  # fmt: skip
    if all(build.kernel_choices.get(name, "auto") != "auto" for name in names):
        return []

    def measure(arm: Arm) -> None:
        with build.phases.during(Phase.AUTOTUNE):
            arm.restart()
            instrumented.call(arm, backward=True)

    return [measure]
