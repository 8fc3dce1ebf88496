"""Facts of this machine that need no torch: host, operating system, CPU, memory, our commit."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

import psutil

from workbench.runner.revision import workbench_commit


def host_facts() -> dict[str, str]:
    """Return what a measurement may depend on, as text by name."""
    facts = {
        "host": host(),
        "python": platform.python_version(),
        "os": platform.platform(),
        "cpu": cpu_name(),
        "cpu_cores": str(usable_cores()),
        "memory_bytes": str(psutil.virtual_memory().total),
    }
    if commit := workbench_commit():
        facts["commit"] = commit
    return facts


def host() -> str:
    """Return the name of this machine, where the runner reads and writes files."""
    return platform.node()


def cpu_name() -> str:
    """Return the model of the CPU."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return how many CPU cores this process may use; all if the system does not report it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
