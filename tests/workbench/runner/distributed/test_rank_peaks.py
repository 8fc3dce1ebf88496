"""Peaks of memory on each rank: whoever resets the counter, no reader loses its peak."""

from __future__ import annotations

import msgspec
import pytest
import torch
from built import stepped
from rank_checks import CPU, needs_cores

from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.instruments.memory import GpuMemory, PeakReader

GPU = torch.device("cuda", 0)


class Allocator:
    """The counters of an allocator."""

    def __init__(self) -> None:
        self.current = self.peak = 0

    def step(self, size: int) -> None:
        """Take memory and give it back."""
        self.peak = max(self.peak, self.current + size)

    def read(self, _: torch.device) -> int:
        """Return the peak."""
        return self.peak

    def reset(self, _: torch.device) -> None:
        """Let the peak be what is allocated now."""
        self.peak = self.current

    def stats(self, _: torch.device) -> dict[str, dict[str, dict[str, int]]]:
        """Return all counters."""
        counters = {"all": {"current": self.current, "peak": self.peak}}
        return {"allocated_bytes": counters, "reserved_bytes": counters}


@pytest.fixture
def allocator(monkeypatch) -> Allocator:
    """Return the allocator that torch reads."""
    allocator = Allocator()
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", allocator.read)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", allocator.reset)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", allocator.stats)
    return allocator


def test_a_reader_keeps_its_peak_when_others_begin_a_new_one(allocator):
    reader, memory = PeakReader(GPU), GpuMemory(GPU, lambda arm: 0)
    allocator.step(700)
    reader.restart()
    assert memory.sample().peak == 700
    allocator.current = 100
    allocator.step(500)
    memory.new_phase()
    assert (memory.sample().peak, memory.sample().before) == (100, 700)
    assert reader.highest() == 600
    allocator.step(50)
    assert (memory.sample().peak, reader.highest()) == (150, 600)
    assert reader.restart() == 600
    assert (memory.sample().peak, reader.highest()) == (150, 100)


@needs_cores
def test_the_peak_of_rank_0_survives_a_new_phase_after_its_last_step(small, allocator):
    small = msgspec.structs.replace(small, settings={"batch": 2, "sequence": 16})
    arm = stepped(small, arms=VariantCache(), data_parallel="2")
    assert arm.situation.device == CPU
    arm.divided._peak, memory = PeakReader(GPU), GpuMemory(GPU, lambda arm: 0)
    shared = arm.divided.others_bytes(arm)
    with arm.entered():
        arm.step()
        allocator.step(shared + 10**12)
        memory.new_phase()
    assert arm.divided.peaks[0] == 10**12
