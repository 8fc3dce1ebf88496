"""Measurement of the implementations that ``auto`` chooses from, before a variant's first step.

Nothing can be measured inside that step, because its operators are counted, and it may be compiled
or captured. Therefore its forward and backward pass run once before, without any of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

import kernels
from sessions.model import Phase
from workbench.runner.instruments.memory import free_memory
from workbench.runner.profiling import instrumented

if TYPE_CHECKING:
    from sessions.model import Scalar
    from workbench.runner.interfaces import MarkedVariant
    from workbench.runner.variants.build import Build, Preparation


def preparations(build: Build) -> list[Preparation]:
    """Return what a variant has to do before its first step; nothing if it need not measure."""
    situation = build.situation
    if not situation.on_gpu or build.layout.ranks > 1:
        return []
    operators = situation.family.operators
    names = frozenset(kernels.OPS)
    if operators is not None:
        names = operators(situation.config, situation.workload.name)
    if all(build.kernel_choices.get(name, "auto") != "auto" for name in names):
        return []

    def measure(variant: MarkedVariant) -> Mapping[str, Scalar]:
        with build.phases.during(Phase.AUTOTUNE):
            variant.restart()
            try:
                instrumented.call(variant, backward=True)
            except torch.OutOfMemoryError:
                # A compiled step may fit. Without measurements, the operators' rules choose.
                free_memory()
        return {}

    return [measure]
