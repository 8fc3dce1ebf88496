"""The workloads, one file each."""

from __future__ import annotations

import functools

from workbench.runner._registry import gather
from workbench.runner.workloads._workload import Bench, Compute, Step, Workload

__all__ = ["Bench", "Compute", "Step", "Workload", "all_workloads"]


@functools.cache
def all_workloads() -> dict[str, Workload]:
    """Every workload by name."""
    return gather(__name__, "WORKLOAD", Workload)
