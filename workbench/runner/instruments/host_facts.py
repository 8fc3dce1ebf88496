"""Facts of this machine that need no torch: host, operating system, CPU, memory, our commit."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from pathlib import Path

import psutil


def host_facts() -> dict[str, str]:
    """Return what a measurement may depend on, as text by name."""
    facts = {
        "host": host(),
        "python": platform.python_version(),
        "os": platform.platform(),
        "cpu": cpu_name(),
        "cpu_cores": str(len(os.sched_getaffinity(0))),
        "memory_bytes": str(psutil.virtual_memory().total),
    }
    if commit := _commit():
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


def _commit() -> str:
    """Return the commit of the workbench's own checkout, with a + if it has changes."""
    here = Path(__file__).parent
    if not (here.parents[1] / ".git").exists():
        return ""
    try:
        git = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
        return subprocess.run(git, capture_output=True, text=True, timeout=2).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
