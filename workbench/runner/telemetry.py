"""Samples the device in threads of its own: NVML for a GPU, psutil where there is none.

Fast readings (1 to 10 us a call on an H200) come 20 times a second. GPM metrics, where offered, are
averages over the time since the previous sample. Slow ones (energy 4 ms, PCIe 21 ms a call) have a
thread of their own, once in two seconds, so that they delay nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Protocol

import psutil
import pynvml
import torch

from sessions.model import TELEMETRY_COLUMNS
from workbench import protocol
from workbench.runner.contention import CpuOthers, GpuOthers
from workbench.runner.wire import Wire

PERIOD_S = 0.05
GPM_PERIOD_S = 0.1  # the driver averages over at least this long
SLOW_PERIOD_S = 2.0
BATCH = 2

Sample = dict[str, float]


class Sampler(Protocol):
    """Reads one device; columns it leaves out are recorded as NaN."""

    device: str
    others: GpuOthers | CpuOthers

    def fast(self) -> Sample:
        """What is cheap to read."""
        ...

    def slow(self) -> Sample:
        """What takes milliseconds to read; empty where there is nothing of the kind."""
        ...


class HostSampler:
    """CPU busy percent of the machine, resident memory of the runner, clock."""

    device = "cpu"

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.others: GpuOthers | CpuOthers = CpuOthers()
        psutil.cpu_percent()  # the first call only starts the interval

    def fast(self) -> Sample:
        """Busy % since the last call, resident bytes, and what others use."""
        sample = {
            "busy": psutil.cpu_percent(),
            "memory_used": float(self._process.memory_info().rss),
        }
        with contextlib.suppress(OSError, AttributeError, NotImplementedError):
            if frequency := psutil.cpu_freq():
                sample["sm_clock"] = frequency.current
        return sample | _others(self.others)

    def slow(self) -> Sample:
        """Nothing is slow to read here."""
        return {}


class NvmlSampler:
    """One GPU through NVML, found by the UUID that torch gives (indices may differ)."""

    def __init__(self, device: torch.device) -> None:
        index = device.index or 0
        self.device = f"gpu{index}"
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(index).uuid
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        self._gpm = _Gpm.offered(self._handle)
        self.others: GpuOthers | CpuOthers = GpuOthers(self._handle)
        self._readings: dict[str, Callable[[], float]] = {
            "busy": lambda: pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu,
            "memory_used": lambda: pynvml.nvmlDeviceGetMemoryInfo(self._handle).used,
            "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
            "sm_clock": lambda: pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM),
            "temperature": lambda: pynvml.nvmlDeviceGetTemperature(
                self._handle, pynvml.NVML_TEMPERATURE_GPU
            ),
            "throttle": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle),
        }
        self._slow_readings: dict[str, Callable[[], float]] = {
            "energy_j": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000,
            "pcie_tx_mb_s": lambda: (
                pynvml.nvmlDeviceGetPcieThroughput(self._handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
                / 1000
            ),
            "pcie_rx_mb_s": lambda: (
                pynvml.nvmlDeviceGetPcieThroughput(self._handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
                / 1000
            ),
        }

    def fast(self) -> Sample:
        """Busy, memory, power, clock, temperature, throttle reasons; GPM metrics when due."""
        sample = _read(self._readings) | _others(self.others)
        if self._gpm is not None:
            sample |= self._gpm.read()
        return sample

    def slow(self) -> Sample:
        """Energy and PCIe throughput."""
        return _read(self._slow_readings)


class _Gpm:
    """Activity metrics of Hopper and later, averaged between two samples."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._metrics = {
            "sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
            "sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
            "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
        }
        self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        pynvml.nvmlGpmSampleGet(handle, self._samples[0])
        self._calls = 0

    @classmethod
    def offered(cls, handle: Any) -> _Gpm | None:
        """The reader, or None where the GPU or its driver offers no such metrics."""
        try:
            if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return None
            return cls(handle)
        except (pynvml.NVMLError, AttributeError):
            return None

    def read(self) -> Sample:
        """The averages since the last reading, at every second call; otherwise nothing."""
        self._calls += 1
        if self._calls % round(GPM_PERIOD_S / PERIOD_S):
            return {}
        before, after = self._samples
        try:
            pynvml.nvmlGpmSampleGet(self._handle, after)
            request = pynvml.c_nvmlGpmMetricsGet_t()
            request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = len(self._metrics)
            request.sample1, request.sample2 = before, after
            for place, metric in enumerate(self._metrics.values()):
                request.metrics[place].metricId = metric
            pynvml.nvmlGpmMetricsGet(request)
        except pynvml.NVMLError:
            return {}
        self._samples = [after, before]
        return {
            name: request.metrics[place].value
            for place, name in enumerate(self._metrics)
            if request.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS
        }


def _read(readings: dict[str, Callable[[], float]]) -> Sample:
    sample = {}
    for name, reading in list(readings.items()):
        try:
            sample[name] = float(reading())
        except pynvml.NVMLError:
            del readings[name]  # not offered here: do not ask again
    return sample


def _others(others: GpuOthers | CpuOthers) -> Sample:
    share = others.read()
    return {} if share is None else {"others": share}


class Telemetry:
    """Runs a sampler's two lanes and sends what they read; ``seen`` gets every fast sample."""

    def __init__(self, wire: Wire, sampler: Sampler, seen: Callable[[Sample], None]) -> None:
        self._wire = wire
        self._sampler = sampler
        self._seen = seen
        self._slow_sample: Sample = {}
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._told_of, args=(lane, what), name=f"telemetry-{name}", daemon=True
            )
            for name, lane, what in (
                ("fast", self._fast_lane, "clocks, utilization and memory of the device"),
                ("slow", self._slow_lane, "energy and PCIe throughput"),
            )
        ]

    def start(self) -> None:
        """Begin to sample."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped.set()

    def _told_of(self, lane: Callable[[], None], what: str) -> None:
        """Run a lane; that it died is told, because all that it reads is missing from then on."""
        try:
            lane()
        except Exception as error:  # noqa: BLE001 - whatever it was, the thread is over
            if not self._stopped.is_set():
                text = f"{what} are not recorded any more: {type(error).__name__}: {error}"
                self._wire.send(protocol.Note(kind="warning", text=text))

    def _fast_lane(self) -> None:
        rows: list[tuple[float, Sample]] = []
        while not self._stopped.wait(PERIOD_S):
            sample = self._sampler.fast()
            self._seen(sample)
            late, self._slow_sample = self._slow_sample, {}
            rows.append((self._wire.seconds(), sample | late))
            if len(rows) >= BATCH:
                self._send(rows)
                rows = []

    def _slow_lane(self) -> None:
        while not self._stopped.wait(SLOW_PERIOD_S):
            self._slow_sample = self._sampler.slow()

    def _send(self, rows: list[tuple[float, Sample]]) -> None:
        columns: dict[str, list[float | None]] = {"t_s": [t_s for t_s, _ in rows]}
        for name in TELEMETRY_COLUMNS:
            if any(name in sample for _, sample in rows):
                columns[name] = [sample.get(name) for _, sample in rows]
        message = protocol.TelemetrySamples(device=self._sampler.device, columns=columns)
        self._wire.send(message)


def make_sampler(device: torch.device) -> Sampler:
    """NVML on a GPU whose driver answers, otherwise the host."""
    if device.type == "cuda":
        with contextlib.suppress(pynvml.NVMLError):
            return NvmlSampler(device)
    return HostSampler()
