"""Kernel timing on a GPU with cold caches, and ceilings from the same run."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels import hardware
from kernels.core.operator import Work

MOST_EVICTIONS = 16  # most evictions of the L2 before a call


@dataclass(frozen=True)
class Ceilings:
    """Rates that this GPU reaches: bytes/s of a large copy, FLOP/s of a large matrix product."""

    bytes_per_s: float
    flops_per_s: float
    dtype: str = ""  # dtype of the matrix product

    def floor_us(self, work: Work) -> float:
        """Return the least time that the work can take at these rates."""
        return 1e6 * max(work.bytes / self.bytes_per_s, work.flops / self.flops_per_s)


@functools.cache
def ceilings(device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Ceilings:
    """Measure the ceilings once per device and dtype, on random data."""
    name = str(dtype).removeprefix("torch.")
    return Ceilings(copy_rate(device), matrix_rate(device, dtype), name)


def copy_rate(device: str) -> float:
    """Measure bytes per second of a large copy, read and written."""
    few = torch.randn(1 << 20, device=device).to(torch.bfloat16)
    source = few.repeat(1 << (10 if torch.device(device).type == "cuda" else 4))
    target = torch.empty_like(source)
    return 2e6 * source.nbytes / gpu_us(lambda: target.copy_(source), repeats=10, device=device)


def matrix_rate(device: str, dtype: torch.dtype) -> float:
    """Measure FLOP/s of a large matrix product of random numbers.

    FP32 on a GPU as ``hardware.product_precision`` says at this moment.
    """
    side = 8192 if torch.device(device).type == "cuda" else 512
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2e6 * side**3 / gpu_us(lambda: a @ b, repeats=10, device=device)


@functools.cache
def _evictor(device: str) -> Tensor:
    size = max(512 << 20, 4 * hardware.of(device).l2_bytes)
    return torch.zeros(size // 4, dtype=torch.int32, device=device)


def forget_evictor() -> None:
    """Free the buffer that overwrites the L2, until it is needed again."""
    _evictor.cache_clear()


def gpu_us(call: Callable[[], Any], *, repeats: int = 30, device: str = "cuda") -> float:
    """Return the median of ``gpu_times_us``."""
    return statistics.median(gpu_times_us(call, repeats=repeats, device=device))


def gpu_times_us(
    call: Callable[[], Any], *, repeats: int = 30, device: str = "cuda"
) -> list[float]:
    """Measure microseconds of GPU time of single calls, with cold caches, by CUDA events.

    Before each call the complete L2 is overwritten, for as long as the host needs to launch the
    call, so that launching is not timed. On the CPU: wall time.
    """
    warm_up(call)
    return times_us(call, repeats, device, evictions_to_hide(call, device))


def warm_up(call: Callable[[], Any]) -> None:
    """Make a few calls that are not timed."""
    for _ in range(3):
        call()


def evictions_to_hide(call: Callable[[], Any], device: str) -> int:
    """Return how often to overwrite the L2 while the host launches ``call``.

    The GPU waits for launches that take longer than that, at most ``MOST_EVICTIONS`` (4 ms on an
    H200), and calls that wait for the GPU themselves are among these.
    """
    if torch.device(device).type == "cpu":
        return 1
    evictions = 1
    while evictions < MOST_EVICTIONS:
        torch.cuda.synchronize()
        _, _, is_hidden = _timed_call(call, _evictor(device), evictions)
        if is_hidden:
            break
        evictions *= 2
    return evictions


def times_us(call: Callable[[], Any], repeats: int, device: str, evictions: int = 1) -> list[float]:
    """Measure like ``gpu_times_us``, without a warm-up, after so many evictions of the L2.

    Calls for which the GPU may have waited, because something else delayed the host, are repeated,
    but not more than ``repeats`` times in all.
    """
    if torch.device(device).type == "cpu":
        return [_wall_us(call) for _ in range(repeats)]
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    spare = repeats
    while len(events) < repeats:
        begin, end, is_hidden = _timed_call(call, _evictor(device), evictions)
        if not is_hidden and spare:
            spare -= 1
            continue
        events.append((begin, end))
    torch.cuda.synchronize()
    return [1e3 * begin.elapsed_time(end) for begin, end in events]


def _timed_call(
    call: Callable[[], Any], evictor: Tensor, evictions: int
) -> tuple[torch.cuda.Event, torch.cuda.Event, bool]:
    """Call once between two events; the last result is True if no launch was timed.

    That is certain if the GPU has not reached the first event when everything is launched.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(evictions):
        evictor.bitwise_not_()
    begin.record()
    call()
    end.record()
    return begin, end, not begin.query()


def _wall_us(call: Callable[[], Any]) -> float:
    began = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began) / 1e3


def kernel_us(call: Callable[[], Any], *, repeats: int = 20, device: str = "cuda") -> float:
    """Measure mean microseconds in the kernels of one call, with cold caches, by CUPTI.

    The process stays slower for a while afterwards (a profiler's teardown is not complete): time
    first.
    """
    evictor = _evictor(device)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(repeats):
            evictor.bitwise_not_()
            call()
        torch.cuda.synchronize()
    total = sum(
        event.self_device_time_total
        for event in profile.key_averages()
        if "bitwise_not" not in event.key
    )
    return total / repeats
