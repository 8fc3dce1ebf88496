"""The clock of a GPU, and whether it moved: readings jump if power limits it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FEW = 4  # readings of a half; fewer do not show how far readings jump
JUMPS = 0.12  # assumed for so few: a little more than an H200's jumps at its power limit


def moved(readings: Sequence[float], tolerance: float) -> bool:
    """Return True if the later half differs from the earlier by more than the share ``tolerance``.

    The difference must also exceed twice the standard error of the halves' means, which jumps
    between readings explain.
    """
    half = len(readings) // 2
    if not half:
        return False
    earlier, later = readings[-2 * half : -half], readings[-half:]
    means = statistics.fmean(earlier), statistics.fmean(later)
    if min(means) <= 0:  # the clock was not read, or the GPU slept
        return max(means) > 0
    jumps = JUMPS
    if half >= FEW:
        spread = math.hypot(
            statistics.stdev(earlier) / means[0], statistics.stdev(later) / means[1]
        )
        jumps = 2 * spread / math.sqrt(half)
    return abs(math.log(means[1] / means[0])) > tolerance + jumps


class ClockMeter:
    """Mean SM clock of a stretch of time, by counters on the device; None if they cannot be read.

    ``warn`` is called once with the reason why they cannot be read.
    """

    def __init__(self, device: torch.device, warn: Callable[[str], None]) -> None:
        self._device, self._warn = device, warn
        self._broken = False

    def mark(self) -> Tensor | None:
        """Queue a reading behind all queued work, and return it without waiting."""
        from kernels.measure import sm_clock  # torch, which only those need who count cycles

        if self._broken:
            return None
        try:
            return sm_clock.read(self._device)
        except Exception as error:  # noqa: BLE001 - whatever Triton and its compiler raise
            self._broken = True
            self._warn(f"cycles cannot be counted: {str(error) or type(error).__name__}")
        return None

    def mean_mhz(self, first: Tensor | None, last: Tensor | None) -> float | None:
        """Return the time between two marks; waits for the second."""
        from kernels.measure import sm_clock

        return None if first is None or last is None else sm_clock.mean_mhz(first, last)
