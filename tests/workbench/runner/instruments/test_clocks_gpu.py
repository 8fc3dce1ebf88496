"""The clock that a block is told to have run at, beside a count of cycles that is known."""

from __future__ import annotations

import pytest
import torch

from workbench.runner.instruments.clocks import ClockMeter

pytestmark = pytest.mark.gpu
CYCLES = 1_000_000_000


def test_counted_cycles_are_those_of_a_kernel_that_waits_for_so_many(capsys):
    device = torch.device("cuda", torch.cuda.current_device())
    sentences: list[str] = []
    meter = ClockMeter(device, sentences.append)
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    meter.mark()  # compiles
    torch.cuda._sleep(CYCLES // 10)
    first = meter.mark()
    began.record()
    torch.cuda._sleep(CYCLES)
    ended.record()
    counted = meter.mean_mhz(first, meter.mark())
    known = CYCLES / (1000 * began.elapsed_time(ended))
    with capsys.disabled():
        print(f"counted {counted:.1f} MHz, known to be {known:.1f} MHz")
    assert not sentences
    assert counted == pytest.approx(known, rel=0.005)
