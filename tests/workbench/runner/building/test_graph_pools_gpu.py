"""The reported memory of graphs, beside what the device itself says is in use."""

from __future__ import annotations

import gc

import msgspec
import pytest
import torch
from built import stepped

from workbench.runner.building.graph_pools import resident_bytes
from workbench.runner.instruments.memory import GpuMemory

pytestmark = pytest.mark.gpu

MIB = 1 << 20
DEVICE = torch.device("cuda", 0)


def in_use() -> int:
    """Bytes of the device that are not free, when nothing is cached that others could have."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(DEVICE)
    return total - free


@pytest.mark.parametrize(
    "toggles",
    [
        {"cuda_graphs": "on", "adamw": "fused"},
        {"compile": "reduce-overhead"},
        # Minutes of tuning, for graphs of the same kind.
        pytest.param(
            {"compile": "max-autotune"}, marks=[pytest.mark.slow, pytest.mark.timeout(600)]
        ),
    ],
    ids=lambda toggles: "-".join(toggles.values()),
)
def test_the_peak_of_steady_steps_is_what_the_device_lacks(small, toggles):
    torch.compiler.reset()
    wide = msgspec.structs.replace(
        small, model={}, preset="tiny", settings={"batch": 64, "sequence": 512}
    )
    plain = stepped(wide, "train", device="cuda", steps=3)  # contexts, handles, workspaces
    del plain
    before, held_before = in_use(), torch.cuda.memory_allocated(DEVICE)
    arm = stepped(wide, "train", device="cuda", steps=5, **toggles)
    memory = GpuMemory(DEVICE, resident_bytes)
    memory.track(arm)
    used = in_use() - before
    with arm.entered():
        for _ in range(3):
            arm.step()
        torch.cuda.synchronize()
    pools, sample = resident_bytes(arm), memory.sample()
    peak = sample.peak - held_before
    print(f"{toggles}: pools {pools / MIB:.0f}, told {peak / MIB:.0f}, in use {used / MIB:.0f} MiB")
    assert pools > 64 * MIB
    # Of the device's word: segments come in steps of 2 MiB and more, compiled kernels lie there.
    assert peak == pytest.approx(used, rel=0.15, abs=64 * MIB)
    assert peak - pools < 0.7 * used
