"""What every run of one runner shares: the device, its instruments and what was built on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from sessions.model import Phase
from workbench import protocol
from workbench.runner.arm import Arms
from workbench.runner.memory import GpuMemory, HostMemory, make_memory
from workbench.runner.phases import PhaseTracker
from workbench.runner.telemetry import Sample, Telemetry, make_sampler
from workbench.runner.timing import GpuClock, HostClock, Lap, make_clock
from workbench.runner.watchdog import Watchdog
from workbench.runner.wire import Wire


@dataclass
class Rig:
    """The instruments around one device, all reporting to one wire."""

    wire: Wire
    device: torch.device
    arms: Arms = field(default_factory=Arms)
    segments: int = 0
    clock: HostClock | GpuClock = field(init=False)
    memory: GpuMemory | HostMemory = field(init=False)
    phases: PhaseTracker = field(init=False)
    watchdog: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self.clock = make_clock(self.device)
        self.memory = make_memory(self.device)
        self.phases = PhaseTracker(self._phase_changed)
        self.watchdog = Watchdog(self.wire)

    def start(self) -> None:
        """Start the threads that watch."""
        self.watchdog.start()
        Telemetry(self.wire, make_sampler(self.device), self._telemetry_seen).start()

    def synchronize(self) -> None:
        """Wait until the device has done all that was queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state(self, state: str, text: str = "") -> None:
        """Tell what the runner does now."""
        self.wire.send(protocol.State(state=state, text=text))

    def send_steps(self, laps: list[Lap]) -> None:
        """Send finished steps, with the memory as it is now."""
        memory = self.memory.sample()
        if not math.isnan(memory.reserved):
            self.phases.memory_reserved(memory.reserved)
        if not laps:
            return
        columns: dict[str, list[float | None]] = {
            "t_s": [self.wire.seconds(lap.start_ns) for lap in laps],
            "wall_ms": [lap.wall_ms for lap in laps],
            "phase": [int(lap.phase) for lap in laps],
            "allocated": [memory.allocated] * len(laps),
            "peak": [memory.peak] * len(laps),
        }
        if laps[0].gpu_ms is not None:
            columns["gpu_ms"] = [lap.gpu_ms for lap in laps]
            columns["reserved"] = [memory.reserved] * len(laps)
        self.wire.send(protocol.Steps(segment=self.segments - 1, columns=columns))

    def _phase_changed(self, phase: Phase) -> None:
        self.watchdog.begin(phase)
        self.memory.new_phase()
        if self.segments:
            self.wire.send(protocol.PhaseChanged(segment=self.segments - 1, phase=int(phase)))

    def _telemetry_seen(self, sample: Sample) -> None:
        if self.device.type == "cuda" and "sm_clock" in sample:
            self.phases.clock_mhz(sample["sm_clock"])
