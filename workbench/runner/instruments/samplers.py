"""Samplers of one device each: of a GPU by NVML, of the host by psutil."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import psutil
import pynvml

from sessions.model import ABSENT
from workbench.runner.instruments.contention import READ_S, RETRY_S, CpuOthers, GpuOthers
from workbench.runner.instruments.cpu_energy import CpuEnergy

if TYPE_CHECKING:
    import torch  # a process that watches a training script samples without it

PERIOD_S = 0.05
GPM_PERIOD_S = 0.1  # the driver averages over at least this long
SLOW_PERIOD_S = 2.0
OFTEN = f"every {PERIOD_S:g} s"
ACTIVITY = ("sm_active", "sm_occupancy", "tensor_active", "dram_active")
Sample = dict[str, float]


class Sampler(Protocol):
    """Reads one device; columns it leaves out are recorded as NaN."""

    device: str
    other_processes: GpuOthers | CpuOthers

    def fast(self) -> Sample:
        """Return the readings that are cheap."""
        ...

    def slow(self) -> Sample:
        """Return the readings that take milliseconds; empty if there are none."""
        ...

    def how(self) -> dict[str, str]:
        """Return how often each measure of utilization is sampled, or ``ABSENT`` and the reason."""
        ...


class HostSampler:
    """CPU busy percent of the machine, resident memory of a process (the runner), clock."""

    device = "cpu"

    def __init__(
        self,
        why_no_gpu: str = "a CPU has no such counter",
        process: psutil.Process | None = None,
    ) -> None:
        self._why_no_gpu = why_no_gpu
        self._why_no_clock = ""
        self._process = process or psutil.Process()
        self._energy = CpuEnergy()
        self.other_processes: GpuOthers | CpuOthers = CpuOthers(process)

    def fast(self) -> Sample:
        """Read busy % since this thread's last call, resident bytes, and what others use."""
        sample = {
            "busy": psutil.cpu_percent(),
            "memory_used": float(self._process.memory_info().rss),
        }
        mhz, self._why_no_clock = _cpu_mhz()
        if not self._why_no_clock:
            sample["sm_clock"] = mhz
        return sample | _contention(self.other_processes)

    def slow(self) -> Sample:
        """Return the energy of the CPU, where it can be read."""
        joules = self._energy.read()
        return {} if joules is None else {"energy_j": joules}

    def how(self) -> dict[str, str]:
        """Return the sampling of the host; the counters of a GPU are absent."""
        absent = dict.fromkeys(ACTIVITY, f"{ABSENT}{self._why_no_gpu}")
        clock = f"{ABSENT}{self._why_no_clock}" if self._why_no_clock else OFTEN
        why_not = self._energy.why_not
        energy = f"{ABSENT}{why_not}" if why_not else f"every {SLOW_PERIOD_S:g} s"
        often = {"busy": OFTEN, "others": f"every {READ_S:g} s", "sm_clock": clock}
        return often | absent | {"energy_j": energy}


class NvmlSampler:
    """One GPU through NVML, by the index and the UUID that torch gives (NVML's index may differ).

    ``group``: the process group that uses it; that of this process if None.
    """

    def __init__(self, index: int, uuid: str, group: int | None = None) -> None:
        self.device = f"gpu{index}"
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        self._gpm, self._no_gpm = _Gpm.offered(self._handle)
        self.other_processes: GpuOthers | CpuOthers = GpuOthers(self._handle, group)
        self._readings = _Readings(
            {
                "busy": lambda: pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu,
                "memory_used": lambda: pynvml.nvmlDeviceGetMemoryInfo(self._handle).used,
                "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
                "sm_clock": lambda: pynvml.nvmlDeviceGetClockInfo(
                    self._handle, pynvml.NVML_CLOCK_SM
                ),
                "temperature": lambda: pynvml.nvmlDeviceGetTemperature(
                    self._handle, pynvml.NVML_TEMPERATURE_GPU
                ),
                "throttle": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle),
            }
        )
        self._slow_readings = _Readings(
            {
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
        )

    def fast(self) -> Sample:
        """Read busy, memory, power, clock, temperature, throttle reasons; GPM metrics when due."""
        sample = self._readings.read() | _contention(self.other_processes)
        if self._gpm is not None:
            sample |= self._gpm.read()
        return sample

    def slow(self) -> Sample:
        """Read energy and PCIe throughput."""
        return self._slow_readings.read()

    def how(self) -> dict[str, str]:
        """Return how each is read: busy is the driver's mean of 1/6 to 1 s, GPM's between reads."""
        why_not = dict(self._readings.why_not)
        why_not |= dict.fromkeys(ACTIVITY, self._no_gpm) if self._gpm is None else self._gpm.why_not
        if self.other_processes.why_not:
            why_not["others"] = self.other_processes.why_not
        often = dict.fromkeys(("busy", "sm_clock", "power_w", "temperature"), OFTEN)
        often["others"] = f"every {READ_S:g} s"
        often |= dict.fromkeys(ACTIVITY, f"mean of {GPM_PERIOD_S:g} s")
        return {
            name: f"{ABSENT}{why_not[name]}" if name in why_not else period
            for name, period in often.items()
        }


def nvml_sampler(index: int) -> NvmlSampler:
    """Return the sampler of one of torch's GPUs."""
    import torch

    return NvmlSampler(index, str(torch.cuda.get_device_properties(index).uuid))


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
        self.why_not: dict[str, str] = {}  # reasons by metric that the last reading lacked
        self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        pynvml.nvmlGpmSampleGet(handle, self._samples[0])
        self._calls = 0

    @classmethod
    def offered(cls, handle: Any) -> tuple[_Gpm | None, str]:
        """Return the reader, or None and the reason why there is none."""
        try:
            if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return None, "this GPU has no GPM metrics, which need Hopper or later"
            return cls(handle), ""
        except pynvml.NVMLError as error:
            return None, f"NVML: {error}"
        except AttributeError:
            return None, "the installed nvidia-ml-py does not support GPM metrics"

    def read(self) -> Sample:
        """Return the averages since the last reading, at every second call; otherwise nothing."""
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
            for index, metric in enumerate(self._metrics.values()):
                request.metrics[index].metricId = metric
            pynvml.nvmlGpmMetricsGet(request)
        except pynvml.NVMLError as error:
            self.why_not = dict.fromkeys(self._metrics, f"NVML: {error}")
            return {}
        self._samples = [after, before]
        read = dict(zip(self._metrics, request.metrics, strict=False))
        self.why_not = {
            name: f"NVML: {pynvml.NVMLError(metric.nvmlReturn)}"
            for name, metric in read.items()
            if metric.nvmlReturn != pynvml.NVML_SUCCESS
        }
        return {name: metric.value for name, metric in read.items() if name not in self.why_not}


class _Readings:
    """NVML calls by column; a call that fails is repeated only after a while."""

    def __init__(self, calls: dict[str, Callable[[], float]]) -> None:
        self._calls = calls
        self._again_s: dict[str, float] = {}
        self.why_not: dict[str, str] = {}  # reasons by metric that failed

    def read(self) -> Sample:
        """Return the available readings."""
        sample, now_s = {}, time.monotonic()
        for name, call in self._calls.items():
            if self._again_s.get(name, 0.0) > now_s:
                continue
            try:
                sample[name] = float(call())
                self.why_not.pop(name, None)
            except pynvml.NVMLError as error:
                self._again_s[name] = now_s + RETRY_S
                self.why_not[name] = f"NVML: {error}"
        return sample


def _cpu_mhz() -> tuple[float, str]:
    """Return the mean clock of the CPU's cores, and why it is unknown; empty if it is known."""
    if not hasattr(psutil, "cpu_freq"):  # psutil lacks it on platforms without this reading
        return math.nan, "psutil cannot read a CPU's clock on this platform"
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError) as error:
        return math.nan, f"psutil cannot read the CPU's clock: {str(error) or type(error).__name__}"
    if frequency is None or not frequency.current > 0:
        return math.nan, "this CPU reports no clock to psutil, like many virtual machines"
    return float(frequency.current), ""


def sensors(device: torch.device) -> dict[str, str]:
    """Return how often each sensor is sampled, or ``ABSENT`` and why, by one reading."""
    sampler = make_sampler(device)
    sampler.fast()
    return sampler.how()


def _contention(other_processes: GpuOthers | CpuOthers) -> Sample:
    share = other_processes.read()
    return {} if share is None else {"others": share}


def make_sampler(device: torch.device) -> Sampler:
    """Return the NVML sampler on a GPU whose driver answers, otherwise the host's."""
    if device.type == "cuda":
        try:
            return nvml_sampler(device.index or 0)
        except pynvml.NVMLError as error:
            return HostSampler(f"NVML: {error}")
    return HostSampler()
