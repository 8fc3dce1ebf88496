"""Captures of CUDA graphs: their graphs use no memory that others may free."""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest
import torch

from models.execution import cuda_graph
from models.execution.cuda_graph import CaptureError, capturing, on_capture_stream

LENGTH = 1 << 16  # so long a sum is divided among blocks, which need a workspace


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_begins_and_ends_without_cached_workspaces(fails, monkeypatch):
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
    monkeypatch.setattr(torch.cuda, "graph", imitation)
    monkeypatch.setattr(torch.cuda, "default_generators", [mock.Mock(spec=torch.Generator)])
    monkeypatch.setattr(
        torch._C, "_cuda_clearCublasWorkspaces", lambda: events.append("clear"), raising=False
    )
    outcome = pytest.raises(CaptureError) if fails else contextlib.nullcontext()
    with outcome, capturing(None):
        events.append("step")
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")
    assert events == ["clear", "begin", "step", "end", "clear"]


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
