"""The clock that a block is told to have run at, beside what NVML reads meanwhile."""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from workbench.runner.clocks import ClockMeter

pytestmark = pytest.mark.gpu


def test_counted_cycles_agree_with_the_clocks_that_nvml_reads(capsys):
    device = torch.device("cuda", torch.cuda.current_device())
    told: list[str] = []
    meter = ClockMeter(device, told.append)
    x = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    meter.mark()
    for _ in range(200):
        x @ x
    torch.cuda.synchronize()
    first, readings = meter.mark(), []
    until = time.perf_counter() + 2
    while time.perf_counter() < until:
        for _ in range(20):
            x @ x
        readings.append(torch.cuda.clock_rate(device))
        torch.cuda.synchronize()
    counted, read = meter.mean_mhz(first, meter.mark()), statistics.fmean(readings)
    with capsys.disabled():
        print(
            f"counted {counted:.1f} MHz, read {read:.1f} MHz from {min(readings)} to {max(readings)}"
        )
    assert not told
    assert counted == pytest.approx(read, rel=0.03)
