"""Captures of CUDA graphs: their graphs use no memory that others may free."""

from __future__ import annotations

import contextlib
import functools
from unittest import mock

import pytest
import torch

from models.execution import cuda_graph
from models.execution.cuda_graph import CaptureError, capturing, on_capture_stream

LENGTH = 1 << 16  # so long a sum is divided among blocks, which need a workspace


@pytest.fixture
def events(monkeypatch):
    """Return what happens during an imitated capture."""
    events = []

    @contextlib.contextmanager
    def imitation(graph, **_):
        events.append("begin")
        try:
            yield
        finally:
            events.append("end")

    monkeypatch.setattr(cuda_graph, "_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "before")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: events.append(stream))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "graph", imitation)
    monkeypatch.setattr(torch.cuda, "default_generators", [mock.Mock(spec=torch.Generator)])
    for name in ("clearCublasWorkspaces", "endAllocateToPool", "releasePool"):
        record = functools.partial(
            lambda event, *arguments: events.append((event, *arguments)), name
        )
        monkeypatch.setattr(torch._C, f"_cuda_{name}", record, raising=False)
    return events


CLEAR = ("clearCublasWorkspaces",)


def test_a_capture_begins_and_ends_without_cached_workspaces(events):
    with capturing(mock.Mock()):
        events.append("step")
    assert events == [CLEAR, "begin", "step", "end", CLEAR]


@pytest.mark.parametrize("owns", [False, True])
def test_a_failed_capture_ends_in_the_allocator_and_on_the_stream(owns, events):
    graph = mock.Mock()
    if not owns:  # a graph that was not completed has no pool, and releases none
        graph.pool.side_effect = RuntimeError("without a preceding successful capture")
    with pytest.raises(CaptureError), capturing(graph):
        raise RuntimeError("operation not permitted when stream is capturing")
    released = [] if owns else [("releasePool", 0, (0, 7))]
    assert events[4:] == ["before", ("endAllocateToPool", 0, (0, 7)), *released]


@pytest.mark.gpu
def test_memory_is_returned_to_the_device_after_a_failed_capture():
    before, free = torch.cuda.current_stream(), torch.cuda.mem_get_info()[0]
    size = free // 10
    cached = [torch.empty(size // 2, dtype=torch.uint8, device="cuda") for _ in range(2)]
    del cached
    with pytest.raises(CaptureError), capturing(torch.cuda.CUDAGraph()):
        torch.ones(size, dtype=torch.uint8, device="cuda").sum().item()
    assert torch.cuda.current_stream() == before
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] > free - size // 2, "the pool or the cache is not released"
    cached = [torch.empty(free // 20, dtype=torch.uint8, device="cuda") for _ in range(16)]
    del cached  # four fifths of the memory, in parts that are too small for what follows
    torch.empty(free // 2, dtype=torch.uint8, device="cuda")


@pytest.mark.gpu
def test_a_replay_overwrites_nothing_after_cached_workspaces_were_freed():
    left = torch.randn(64, LENGTH, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(LENGTH, 64, device="cuda", dtype=torch.bfloat16)
    with on_capture_stream():
        expected = left @ right
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        product = left @ right
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()  # as Inductor does before it captures
    assert torch.cuda.memory_allocated() == before, "the graph uses a workspace that was freed"
    with on_capture_stream():
        canaries = [torch.full((32 << 20,), 7, dtype=torch.uint8, device="cuda") for _ in range(4)]
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(product, expected)
    assert all(bool((canary == 7).all()) for canary in canaries)
