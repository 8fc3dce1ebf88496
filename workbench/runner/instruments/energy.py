"""The energy counter of a device: a GPU's by its driver, a CPU's packages by RAPL."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pynvml
import torch

from workbench.runner.instruments.cpu_energy import CpuEnergy

POLL_S = 0.01  # between two readings of a meter
LAG_S = 0.1  # delay of a driver's counter: until then it includes earlier work
LEAST_CHANGES = 4


class EnergyCounter:
    """Reader of the joules of a step's devices; ``why_not`` is the reason if it has no counter.

    Each of several ``ranks`` has its own GPU; all CPU packages are counted together. A reading
    takes about 4 ms. The driver updates the counter every 20 to 100 ms, so that a short block
    scatters by that much.
    """

    def __init__(self, device: torch.device, ranks: int = 1) -> None:
        self.why_not = ""
        self.lag_s = 2 * LAG_S  # delay and one update: then a reading includes no earlier work
        self._packages: CpuEnergy | None = None
        self._handles: list[Any] = []
        if device.type != "cuda":
            self.lag_s = 0.0  # updated every millisecond
            self._packages = CpuEnergy()
            self._packages.read()
            self.why_not = self._packages.why_not
            return
        try:
            pynvml.nvmlInit()
            for gpu in [device] if ranks == 1 else range(ranks):
                uuid = torch.cuda.get_device_properties(gpu).uuid
                self._handles.append(pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode()))
                pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handles[-1])
        except pynvml.NVMLError as error:
            self.why_not = f"the driver reports no energy ({error})"

    def joules(self) -> float:
        """Return the joules since the driver was loaded; NaN without a counter."""
        if self.why_not:
            return math.nan
        if self._packages is not None:
            joules = self._packages.read()
            return math.nan if joules is None else joules
        try:
            return sum(map(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handles)) / 1000
        except pynvml.NVMLError:
            return math.nan


class PowerMeter:
    """Reads a counter in a separate thread while a block runs.

    A counter does not change between two updates of the driver. The mean power is that between the
    first and the last change, each at the time of its reading.
    """

    def __init__(self, counter: EnergyCounter) -> None:
        self._counter = counter
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="power meter", daemon=True)
        self.changes: list[tuple[float, float]] = []  # seconds since the beginning, joules

    def __enter__(self) -> PowerMeter:
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        """End the readings."""
        self._ended.set()
        self._thread.join()

    def watts(self) -> float:
        """Return the mean power after ``LAG_S``; NaN if the counter changed too seldom."""
        changes = [(second, joules) for second, joules in self.changes if second >= LAG_S]
        if len(changes) < LEAST_CHANGES:
            return math.nan
        (first_s, first_j), (last_s, last_j) = changes[0], changes[-1]
        return (last_j - first_j) / (last_s - first_s) if last_j > first_j else math.nan

    def _read(self) -> None:
        began, before = time.perf_counter(), self._counter.joules()
        while not self._ended.wait(POLL_S):
            joules = self._counter.joules()
            if joules != before:
                self.changes.append((time.perf_counter() - began, joules))
                before = joules
