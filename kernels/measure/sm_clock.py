"""Cycle counters of a GPU's multiprocessors: two readings give their mean clock.

NVML reads a clock at one moment. Under a power limit it jumps: on an H200 from 1785 to 1965 MHz and
back between readings of 50 ms, while the time of a step stays within 0.3 %. The cycle counters
cover all of the time in between.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.core.triton_helpers import missing, sm_count, tl, triton


@triton.jit
def _sm_clock_kernel(out_ptr):
    """Store number, cycles and time in nanoseconds of the program's multiprocessor."""
    p_out = out_ptr + 3 * tl.program_id(0)
    cycles = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(p_out + 2, tl.extra.cuda.globaltimer())
    tl.store(p_out + 1, cycles)
    tl.store(p_out, tl.extra.cuda.smid().to(tl.int64))


def read(device: torch.device) -> Tensor | None:
    """Enqueue a reading on the stream of ``device``: [programs, 3], without waiting for it.

    None where Triton cannot run; the clock is then unknown.
    """
    if device.type != "cuda" or missing(device.type):
        return None
    with torch.cuda.device(device):
        programs = sm_count(device.index)
        noted = torch.empty(programs, 3, dtype=torch.int64, device=device)
        _sm_clock_kernel[(programs,)](noted, num_warps=1)
    return noted


def mean_mhz(first: Tensor, last: Tensor) -> float | None:
    """Return the median multiprocessor's clock between two readings; None if none is in both."""
    before = {number: (cycles, ns) for number, cycles, ns in first.tolist()}
    rates = [
        1000 * (cycles - before[number][0]) / (ns - before[number][1])
        for number, cycles, ns in last.tolist()
        if number in before and ns > before[number][1]
    ]
    return float(torch.tensor(rates).median()) if rates else None
