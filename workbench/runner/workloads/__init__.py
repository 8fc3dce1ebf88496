"""The workloads, one file each."""

from __future__ import annotations

import functools

from workbench import plugins
from workbench.runner.workloads._workload import Bench, Compute, Step, Workload

__all__ = ["Bench", "Compute", "Step", "Workload", "all_workloads"]


@functools.cache
def all_workloads() -> dict[str, Workload]:
    """Return every workload by name."""
    return plugins.gather(__name__, "WORKLOAD", Workload, "workloads")
