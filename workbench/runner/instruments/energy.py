"""The energy counter of a GPU, where the driver has one (Volta and later)."""

from __future__ import annotations

import math

import pynvml
import torch


class EnergyCounter:
    """Reads the joules that a device has used; ``why_not`` says why it cannot.

    A reading takes about 4 ms. The driver updates the counter every 20 to 100 ms, so that a short
    block scatters by that much.
    """

    def __init__(self, device: torch.device) -> None:
        self.why_not = ""
        if device.type != "cuda":
            self.why_not = "the CPU has no energy counter that can be read here"
            return
        try:
            pynvml.nvmlInit()
            uuid = torch.cuda.get_device_properties(device).uuid
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except pynvml.NVMLError as error:
            self.why_not = f"the driver reports no energy ({error})"

    def joules(self) -> float:
        """Return the joules since the driver was loaded; NaN without a counter."""
        if self.why_not:
            return math.nan
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000
        except pynvml.NVMLError:
            return math.nan
