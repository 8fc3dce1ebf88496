"""Use of the device by other processes: on the GPU through NVML, on the CPU through psutil.

A process that only holds memory does not disturb; the share of the device's time that others use
counts. The driver averages it over 1/6 s to 1 s, so it lags by as much.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import psutil
import pynvml

READ_S = 0.25  # between two readings
RETRY_S = 10.0  # pause after a reading that failed
COST_SHARE = 0.005  # share of the time: slow readings are taken less often
BUSY = 5.0  # % of the device's time from which on other processes count as active
CPU_BUSY = 25.0  # higher on the CPU, where some process always runs
QUIET_S = 5.0  # absence after which returning processes are reported again
VOID = "another process used the GPU"

# CPU seconds of each process, and of its ended children.
Tree = dict[psutil.Process, tuple[float, float]]


class GpuOthers:
    """Use of one GPU by processes outside of the process group ``group``."""

    def __init__(self, handle: Any, group: int | None = None) -> None:
        self._handle = handle
        self._group = os.getpgrp() if group is None else group  # the runner leads one of its own
        self._seen_us = 0  # the newest sample of the driver that was read
        self._due_s = 0.0
        self.why_not = ""  # the last reading failed
        self._share: float | None = None
        self.who = ""  # the busiest of them, by name and number

    def read(self) -> float | None:
        """Return % of the multiprocessors' time used by others; None if the driver reports none.

        Between two readings the last one is returned.
        """
        began_s = time.perf_counter()
        if began_s >= self._due_s:
            least_s = READ_S
            try:
                self._share, self.why_not = self._read(), ""
            except pynvml.NVMLError as error:
                self._share, self.why_not, least_s = None, f"NVML: {error}", RETRY_S
            took_s = time.perf_counter() - began_s
            self._due_s = began_s + max(least_s, took_s / COST_SHARE)
        return self._share

    def _read(self) -> float | None:
        running = {
            process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        }
        own_pids = {pid for pid in running if _is_in(self._group, pid)}
        if not own_pids and len(running) > 1:
            return None  # process ids of another namespace: ours is unknown
        own_pids = own_pids or running
        used: dict[int, int] = {}
        for sample in self._samples():
            self._seen_us = max(self._seen_us, sample.timeStamp)
            if sample.pid not in own_pids and sample.smUtil <= 100:
                used[sample.pid] = max(used.get(sample.pid, 0), sample.smUtil)
        if used:
            self.who = _name(max(used, key=lambda pid: used[pid]))
        return float(min(100, sum(used.values())))

    def _samples(self) -> list[Any]:
        try:
            samples: list[Any] = pynvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_us)
        except pynvml.NVMLError as error:
            # Nothing new since: the driver answers so, or with success and no sample.
            if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):
                return []
            raise
        return samples


class CpuOthers:
    """Use of the machine's CPU time by other processes.

    This process (or the given one) and all that it started are excluded: compile workers, ranks,
    data loaders.
    """

    who = "other processes"
    why_not = ""

    def __init__(self, process: psutil.Process | None = None) -> None:
        self._process = process or psutil.Process()
        self._last = self._counters()
        self._due_s = time.perf_counter() + READ_S
        self._share: float | None = None

    def read(self) -> float | None:
        """Return others' % of all cores' time at the last reading; None before the second.

        A reading costs its own CPU time. On a busy machine it takes much longer, because it waits
        for the interpreter at each of hundreds of files.
        """
        began_s = time.perf_counter()
        if began_s >= self._due_s:
            began_cpu_s = time.thread_time()
            before, self._last = self._last, self._counters()
            total, idle = self._last[0] - before[0], self._last[1] - before[1]
            if total > 0:
                others_s = total - idle - _cpu_seconds_between(before[2], self._last[2])
                self._share = 100 * min(1.0, max(0.0, others_s / total))
            took_s = time.thread_time() - began_cpu_s
            self._due_s = began_s + max(READ_S, took_s / COST_SHARE)
        return self._share

    def _counters(self) -> tuple[float, float, Tree]:
        """Return seconds of all cores, passed and idle, and those of each own process."""
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        seconds_by_process: Tree = {}
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):  # it has ended
            children = self._process.children(recursive=True)
        for process in (self._process, *children):
            with contextlib.suppress(psutil.Error):
                user, system, *of_children = process.cpu_times()[:4]
                seconds_by_process[process] = user + system, sum(of_children)
        return sum(times[:8]), idle, seconds_by_process


def _cpu_seconds_between(before: Tree, after: Tree) -> float:
    """Return seconds of CPU that the processes of a tree spent between two readings of it.

    A parent that waits for an ended child is credited with all seconds of the child. The seconds
    that the earlier reading counted are subtracted, unless no process of the tree waited.
    """
    new = (0.0, 0.0)
    alive_s = sum(used_s - before.get(process, new)[0] for process, (used_s, _) in after.items())
    credited = sum(ended - before.get(process, new)[1] for process, (_, ended) in after.items())
    counted = sum(sum(times) for process, times in before.items() if process not in after)
    return alive_s + max(0.0, credited - counted)


class Alarm:
    """Warning, once each time, that other processes begin to use the GPU."""

    def __init__(self) -> None:
        self._last_s = -QUIET_S

    def warning(self, share: float | None, who: str, now_s: float) -> str:
        """Return a sentence if they have just begun, otherwise an empty text."""
        if share is None or share < BUSY:
            return ""
        quiet_s, self._last_s = now_s - self._last_s, now_s
        return f"{VOID}: {who}, {share:.0f} % of it" if quiet_s >= QUIET_S else ""


def _is_in(group: int, pid: int) -> bool:
    """Return True if the process belongs to the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid) == group
    return False


def _name(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{psutil.Process(pid).name()} (process {pid})"
    return f"process {pid}"
