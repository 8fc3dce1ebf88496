"""The process of a script from outside: its memory, its group, and why it has no steps."""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path

import psutil

from workbench.runner.instruments.samplers import HostSampler, Sample


class ScriptHost(HostSampler):
    """The host and the memory of a script's process, which may end at any moment."""

    def fast(self) -> Sample:
        """Return the readings; nothing once the process has ended."""
        with contextlib.suppress(psutil.Error):
            return super().fast()
        return {}


def why_no_steps(imported_torch: bool, explicit: bool) -> str:
    """Return the sentence about a script without a measured step."""
    if explicit:
        return (
            "no steps were measured: the loop of `workbench.watch`, or of the callback's trainer, "
            "completed no iteration. An iteration that ends with `break` is no step"
        )
    if imported_torch:
        return (
            "no steps were measured: no optimizer of torch was called twice. Write "
            "`for batch in workbench.watch(loader)` to measure the iterations of a loop"
        )
    return (
        "no steps were measured: no Python process of the command imported torch. Steps cannot be "
        "measured under `python -I`, `-E` and `-S`"
    )


def group_of(process: psutil.Process) -> int | None:
    """Return the process's group; None if it has ended."""
    with contextlib.suppress(OSError):
        return os.getpgid(process.pid)
    return None


def resident_bytes(process: psutil.Process) -> list[float] | None:
    """Return resident bytes now, NaN, and the highest so far; None if the process has ended.

    A process that has ended stays for a moment, without memory.
    """
    try:
        resident = float(process.memory_info().rss)
        status = Path(f"/proc/{process.pid}/status").read_bytes()
    except (psutil.Error, OSError):
        return None
    peak = re.search(rb"^VmHWM:\s+(\d+) kB", status, re.M)
    if not resident:
        return None
    return [resident, math.nan, 1024.0 * int(peak[1]) if peak else resident]
