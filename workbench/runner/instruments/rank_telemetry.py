"""Telemetry of the devices that the other ranks of a step use, beside the runner's own.

They are sampled as long as the ranks exist, even while a variant of one rank steps: an idle GPU is
information too. Without a GPU a rank is a process; only its resident memory is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import psutil
import pynvml
import torch

from workbench import protocol
from workbench.runner.instruments.contention import CpuOthers, GpuOthers
from workbench.runner.instruments.samplers import Sample, Sampler, nvml_sampler
from workbench.runner.instruments.telemetry import Telemetry
from workbench.runner.wire import Wire


class ProcessSampler:
    """Resident memory of another rank's process."""

    def __init__(self, rank: int, pid: int) -> None:
        self.device = f"cpu{rank}"
        self._process = psutil.Process(pid)
        self.other_processes: GpuOthers | CpuOthers = CpuOthers()

    def fast(self) -> Sample:
        """Read resident bytes; an ended process has no sample."""
        try:
            return {"memory_used": float(self._process.memory_info().rss)}
        except psutil.NoSuchProcess:
            return {}

    def slow(self) -> Sample:
        """Return nothing: a process has no slow readings."""
        return {}

    def how(self) -> dict[str, str]:
        """Return nothing: the runner's telemetry reports how the host's counters are sampled."""
        return {}


class Ranks(Protocol):
    """The part of a group of ranks that telemetry reads."""

    @property
    def pids(self) -> Mapping[int, int]:
        """The processes of the other ranks on this host, by rank."""


class RankTelemetry:
    """Samples the devices of the present group of ranks; ``update`` follows a change of variant.

    ``present`` returns that group; None if there is one rank.
    """

    def __init__(
        self, wire: Wire, device: torch.device, present: Callable[[], Ranks | None]
    ) -> None:
        self._wire, self._device, self._present = wire, device, present
        self._group: Ranks | None = None
        self._running: list[Telemetry] = []
        self._others: dict[str, tuple[float, str]] = {}  # by device: share of others, and who

    def update(self) -> None:
        """Sample the present ranks if they have changed."""
        group = self._present()
        if group is self._group:
            return
        self.stop()
        self._group = group
        if group is None:
            return
        for rank, pid in group.pids.items():
            try:
                self._begin(self._sampler(rank, pid))
            except (pynvml.NVMLError, psutil.Error) as error:
                text = f"the device of rank {rank} is not sampled: {error}"
                self._wire.send(protocol.Note(kind="warning", text=text))

    def stop(self) -> None:
        """Stop sampling."""
        for telemetry in self._running:
            telemetry.stop()
        self._running, self._others, self._group = [], {}, None

    def busiest_others(self) -> tuple[float, str]:
        """Return the highest % of a device that other processes use, and who; 0 where unknown."""
        return max(list(self._others.values()), default=(0.0, ""))

    def _begin(self, sampler: Sampler) -> None:
        def on_sample(sample: Sample) -> None:
            if "others" in sample:
                self._others[sampler.device] = sample["others"], sampler.other_processes.who

        telemetry = Telemetry(self._wire, sampler, on_sample, main=False)
        self._running.append(telemetry)
        telemetry.start()

    def _sampler(self, rank: int, pid: int) -> Sampler:
        """Rank n uses the nth of the GPUs that this process sees."""
        if self._device.type == "cuda":
            return nvml_sampler(rank)
        return ProcessSampler(rank, pid)
