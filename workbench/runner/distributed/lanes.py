"""Recording of each rank's time: all ranks profile the same steps, each its own part."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity

from sessions.tracing import trace
from sessions.tracing.lane import Lane, lane_of
from workbench.runner.distributed.collectives import all_gather_bytes

BEGIN, MARK, END = "begin", "mark", "end"


class RankLane(msgspec.Struct, frozen=True):
    """The lane of one rank, and the host that it is on."""

    rank: int
    host: str
    lane: Lane


class LaneRecorder:
    """Records this rank's steps from ``MARK`` to ``END``; a step before lets the profiler begin."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._profiler: torch.profiler.profile | None = None
        self._mark = contextlib.ExitStack()

    def record_phase(self, phase: str, steps: int) -> Lane | None:
        """Begin, mark or end the recording; return the lane of ``steps`` steps at its end."""
        on_gpu = self._device.type == "cuda"
        if phase == BEGIN:
            if on_gpu:  # otherwise CUPTI stays attached, and later steps are slower
                os.environ.setdefault("TEARDOWN_CUPTI", "1")
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
            self._profiler = torch.profiler.profile(activities=activities)
            self._profiler.__enter__()
            return None
        if on_gpu:
            torch.cuda.synchronize(self._device)
        if phase == MARK:
            self._mark.enter_context(record_function(trace.STEP))
            return None
        profiler, self._profiler = self._profiler, None
        assert profiler is not None
        self._mark.close()
        profiler.__exit__(None, None, None)
        with tempfile.TemporaryDirectory(prefix="workbench-lane-") as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            return lane_of(trace.read(path, self._device.type), steps)


def gather_lanes(
    lane: RankLane, device: torch.device, group: dist.ProcessGroup | None
) -> list[RankLane]:
    """Return the lanes of all ranks, in their order."""
    gathered = all_gather_bytes(msgspec.json.encode(lane), device, group)
    return [msgspec.json.decode(text, type=RankLane) for text in gathered]
