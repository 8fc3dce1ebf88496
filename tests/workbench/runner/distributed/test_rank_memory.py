"""Memory of ranks: no reader of the peak loses it, and variants that are forgotten are freed."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
import torch
import torch.distributed as dist
from built import stepped
from rank_checks import CPU, configure, needs_cores

from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.instruments.memory import GpuMemory, PeakReader

GPU = torch.device("cuda", 0)
CACHED_BYTES = 1 << 19  # tables that belong to no variant; the weights of the model need 3 MB


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


def live_bytes() -> int:
    """Return the bytes of all tensors in this process."""
    gc.collect()
    storages = {}
    for tensor in (thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)):
        if tensor.device.type == "cpu" and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


@pytest.mark.sample(3)
@needs_cores
@pytest.mark.usefixtures("close_ranks")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "toggles",
    [
        {"data_parallel": "2"},
        {"data_parallel": "2", "gradient_compression": "powersgd"},
        {"data_parallel": "2", "sharding": "full"},
        {"context_parallel": "2"},
        {"tensor_parallel": "2"},
        {"pipeline_parallel": "2"},
    ],
    ids=str,
)
def test_a_forgotten_variant_leaves_no_weights_behind(toggles):
    before, arms = live_bytes(), VariantCache()
    stepped(configure(sequence=32), steps=2, arms=arms, **toggles)
    assert live_bytes() > before + CACHED_BYTES
    arms.forget_all()
    assert live_bytes() < before + CACHED_BYTES


@needs_cores
@pytest.mark.usefixtures("close_ranks")
@pytest.mark.parametrize("compression", ["off", "bf16"])
def test_a_step_waits_for_each_bucket_that_it_sent(compression, monkeypatch):
    """NCCL's group holds what it sent until somebody waits for it."""
    works, send = [], dist.all_reduce

    def recording(*args, **options):
        work = send(*args, **options)
        if work is not None:
            wait = Mock(side_effect=work.wait)
            works.append(SimpleNamespace(wait=wait, get_future=work.get_future))
            return works[-1]
        return None

    monkeypatch.setattr(dist, "all_reduce", recording)
    toggles = {"data_parallel": "2", "gradient_compression": compression}
    stepped(configure(sequence=32), steps=2, arms=VariantCache(), **toggles)
    assert works and all(work.wait.call_count == 1 for work in works)
