"""Memory between steps: the caching allocator's counters, or the resident set on the CPU.

Reading the allocator takes tens of microseconds, so it is sampled and not read at every step. No
sample sees memory that a step allocates and frees again. The allocator counts its own peak; the
kernel counts that of the resident set (Linux: ``VmHWM``, which ``clear_refs`` resets). Without such
a counter the peak of the resident set is that of the samples.
"""

from __future__ import annotations

import math
import re
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import psutil
import torch

from kernels import hardware
from workbench.runner.instruments.timing import now_ns

Stepping = TypeVar("Stepping")  # the owner of steps and of their memory


class Memory(NamedTuple):
    """Bytes now, and the highest allocated since the phase began; NaN where unknown.

    ``others_bytes``: the part of the allocated bytes that belongs to variants that do not step. The
    phase began at ``since_ns`` of ``perf_counter_ns``; ``before`` is the peak before it.
    """

    allocated: float
    reserved: float
    peak: float
    others_bytes: float = math.nan
    before: float = math.nan
    since_ns: int = 0

    def peak_of(self, start_ns: int) -> float:
        """Return the peak of the phase in which a step began."""
        return self.peak if start_ns >= self.since_ns else self.before

    def allocated_of(self, start_ns: int) -> float:
        """Return what that step allocated: at most the peak of its phase, which may be over."""
        return min(self.allocated, self.peak_of(start_ns))


class PeakReader:
    """The highest number of bytes allocated on a GPU since ``restart``.

    The allocator has one counter. Before a reader resets it, all other readers store its value.
    """

    _readers: ClassVar[weakref.WeakSet[PeakReader]] = weakref.WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0  # the highest that the counter showed before others reset it
        with self._lock:
            self._readers.add(self)

    def restart(self) -> int:
        """Begin a new peak and return the previous one; from any thread."""
        with self._lock:
            shown = torch.cuda.max_memory_allocated(self._device)
            for reader in self._readers:
                reader._before = max(reader._before, shown)
            previous, self._before = self._before, 0
            torch.cuda.reset_peak_memory_stats(self._device)
        return previous

    def highest(self, shown: int | None = None) -> int:
        """Return the peak; ``shown`` is the counter, if it was read already."""
        if shown is None:
            shown = torch.cuda.max_memory_allocated(self._device)
        return max(shown, self._before)


class GpuMemory(Generic[Stepping]):
    """Samples PyTorch's caching allocator; the memory of CUDA graphs is added to its peak.

    ``pool_bytes`` counts the memory of a variant's graphs that the allocator does not count,
    ``others_bytes`` the memory of all other variants.
    """

    def __init__(
        self,
        device: torch.device,
        pool_bytes: Callable[[Stepping], int],
        others_bytes: Callable[[Stepping], int] = lambda _: 0,
    ) -> None:
        self._device, self._peak = device, PeakReader(device)
        self._count_pools, self._count_others = pool_bytes, others_bytes
        self._others_bytes = 0
        self._variant: weakref.ref[Any] | None = None  # the one that steps, unless freed
        self._pool_bytes: int | None = None  # in its graphs; None: not counted yet
        self._before = math.nan
        self._since_ns = 0

    def sample(self) -> Memory:
        """Return the allocator's counters."""
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        if self._pool_bytes is None:
            variant = None if self._variant is None else self._variant()
            self._pool_bytes = 0 if variant is None else self._count_pools(variant)
            self._others_bytes = 0 if variant is None else self._count_others(variant)
        peak = self._peak.highest(allocated["peak"]) + self._pool_bytes
        memory = Memory(allocated["current"], reserved["current"], peak, self._others_bytes)
        return memory._replace(before=self._before, since_ns=self._since_ns)

    def track(self, variant: Stepping | None) -> None:
        """Start a new peak if another variant steps than before; None if none does."""
        if (self._variant and self._variant()) is not variant:
            self._variant = None if variant is None else weakref.ref(variant)
            self.new_phase()

    def new_phase(self) -> None:
        """Start a new peak; can be called from any thread."""
        peak = self._peak.restart() + (self._pool_bytes or 0)
        self._before, self._since_ns = float(peak), now_ns()
        self._pool_bytes = None


class HostMemory:
    """Samples the resident set of this process and its peak."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._peak = 0.0
        self._counts = False  # True if the kernel counts the peak of this phase
        self._before = math.nan
        self._since_ns = 0
        self._variant: weakref.ref[Any] | None = None

    def sample(self) -> Memory:
        """Return the resident set."""
        resident = float(self._process.memory_info().rss)
        self._peak = max(self._peak, resident, _highest_resident() if self._counts else 0.0)
        memory = Memory(resident, math.nan, self._peak)
        return memory._replace(before=self._before, since_ns=self._since_ns)

    def track(self, variant: object | None) -> None:
        """Start a new peak if another variant steps than before; None if none does."""
        if (self._variant and self._variant()) is not variant:
            self._variant = None if variant is None else weakref.ref(variant)
            self.new_phase()

    def new_phase(self) -> None:
        """Start a new peak; can be called from any thread."""
        self._before, self._since_ns = self.sample().peak, now_ns()
        self._peak, self._counts = 0.0, _forget_highest_resident()


def _highest_resident() -> float:
    """Return the highest bytes since the last reset; 0 if the kernel does not count them."""
    try:
        match = re.search(rb"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_bytes(), re.M)
    except OSError:
        return 0.0
    return 1024.0 * int(match[1]) if match else 0.0


def _forget_highest_resident() -> bool:
    """Reset the kernel's peak to the current resident set; return False if that is impossible."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def make_memory(
    device: torch.device,
    pool_bytes: Callable[[Stepping], int],
    others_bytes: Callable[[Stepping], int],
) -> GpuMemory[Stepping] | HostMemory:
    """Return the sampler for this device."""
    if device.type == "cuda":
        return GpuMemory(device, pool_bytes, others_bytes)
    return HostMemory()


def free_bytes(device: torch.device) -> int:
    """Return the bytes that a GPU's next tensors can have, or of the host if the CPU computes."""
    if device.type == "cuda":
        return hardware.budget_bytes(device, 1.0)
    return int(psutil.virtual_memory().available)


def free_memory() -> None:
    """Release the allocator's cached memory and cuBLAS's workspaces for the next build.

    Torch keeps a workspace (32 MiB on Hopper) for each thread that has multiplied. Captured graphs
    have their own.
    """
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
