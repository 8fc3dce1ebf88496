"""The memory of CUDA graphs is reported, whoever captured them; the allocator is played."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from workbench.runner.building.graph_pools import resident_bytes
from workbench.runner.instruments.memory import GpuMemory
from workbench.runner.toggles import all_toggles

MIB = 1 << 20
OWN, INDUCTORS, ANOTHERS = (0, 1), (0, 2), (0, 3)


def segment(pool, total, allocated):
    return {
        "segment_pool_id": pool,
        "total_size": total * MIB,
        "allocated_size": allocated * MIB,
    }


class PlayedArm:
    """An arm as far as its graphs go."""

    def __init__(self, compile="off", graph=None):
        self.step = SimpleNamespace(graph=graph)
        traits = all_toggles()["compile"].traits.get(compile, ())
        self.situation = SimpleNamespace(
            has=lambda trait: trait in traits, device=torch.device("cuda:0")
        )


@pytest.fixture
def snapshots(monkeypatch):
    """Return a list of the calls of the snapshot."""
    calls = []
    segments = [
        segment((0, 0), 500, 100),
        segment(OWN, 40, 10),
        segment(INDUCTORS, 20, 2),
        segment(INDUCTORS, 64, 0),
        segment(ANOTHERS, 7, 0),
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: calls.append(1) or segments)
    manager = SimpleNamespace(cuda_graphs_thread_pool=INDUCTORS)
    trees = SimpleNamespace(get_manager=lambda index, create_if_none_exists: manager)
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    return calls


def captured():
    return PlayedArm(graph=SimpleNamespace(pool=lambda: OWN))


def test_an_arm_is_told_its_own_pools_less_what_tensors_hold_in_them(snapshots):
    assert resident_bytes(captured()) == 30 * MIB
    for mode in ("reduce-overhead", "max-autotune"):
        assert resident_bytes(PlayedArm(mode)) == (18 + 64) * MIB


def test_no_snapshot_is_taken_for_an_arm_without_graphs(snapshots):
    for mode in ("off", "default", "max-autotune-no-cudagraphs"):
        assert resident_bytes(PlayedArm(mode)) == 0
    assert not snapshots


def test_before_inductor_has_captured_there_is_nothing(snapshots, monkeypatch):
    nobody = SimpleNamespace(get_manager=lambda index, create_if_none_exists: None)
    for trees in (nobody, None):
        monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
        assert resident_bytes(PlayedArm("reduce-overhead")) == 0


@pytest.fixture
def memory(monkeypatch, snapshots):
    counters = {"current": 100, "peak": 300}
    stats = {"allocated_bytes": {"all": counters}, "reserved_bytes": {"all": {"current": 900}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda device: counters.update(peak=200)
    )
    return GpuMemory(torch.device("cuda:0"), resident_bytes)


def test_the_peak_is_the_allocators_and_the_pools_counted_once_a_phase(memory, snapshots):
    arm = PlayedArm("reduce-overhead")
    memory.track(arm)
    assert not snapshots  # any thread may begin a phase: only that of the steps counts
    assert [memory.sample().peak for _ in range(5)] == [200 + 82 * MIB] * 5
    assert len(snapshots) == 1
    memory.track(arm)
    memory.sample()
    assert len(snapshots) == 1
    memory.new_phase()
    memory.sample()
    assert len(snapshots) == 2


def test_each_arm_has_a_peak_and_pools_of_its_own(memory):
    assert memory.sample().peak == 300
    graphed, plain = captured(), PlayedArm()
    for arm, pools in ((graphed, 30 * MIB), (plain, 0), (graphed, 30 * MIB), (None, 0)):
        memory.track(arm)
        assert memory.sample()[:4] == (100, 900, 200 + pools, 0)


def test_an_arm_that_was_freed_is_not_kept_for_its_pools(memory):
    arm = captured()
    memory.track(arm)
    del arm
    assert memory.sample().peak == 200
