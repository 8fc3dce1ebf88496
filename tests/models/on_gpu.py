"""What the tests of every family do with a step on the GPU: warm it up, capture it, watch it."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from models import Family

Result = TypeVar("Result")


def tokens(batch: int, sequence: int, seed: int = 0) -> Tensor:
    """Random bytes, int64 (batch, sequence), the same for a seed on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, sequence), generator=generator).cuda()


def warm(work: Callable[[], object]) -> None:
    """Run outside of the default stream until everything is tuned and allocated."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def captured(work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of ``work``, and the result that each replay overwrites."""
    warm(work)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work()
    return graph, result


def without_waiting(work: Callable[[], Result]) -> Result:
    """Run ``work``, once warm; raises where it waits for the GPU."""
    warm(work)
    torch.cuda.set_sync_debug_mode("error")
    try:
        return work()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def step_ms(family: Family, config: Any, batch: int, sequence: int, trains: bool) -> float:
    """Median GPU time of a step, replayed as a graph so that the host's time is not measured."""
    give_back_memory()
    model: Any = family.materialise(config, "cuda", torch.bfloat16).train(trains)
    tokens_BS = tokens(batch, sequence)

    def work() -> Tensor:
        if not trains:
            with torch.no_grad():
                logits: Tensor = model(tokens_BS, last_only=True)
                return logits
        model.zero_grad(set_to_none=True)
        loss: Tensor = model.loss(tokens_BS, tokens_BS)
        loss.backward()
        return loss.detach()

    return replay_ms(work)


def replay_ms(work: Callable[[], object]) -> float:
    """Median GPU time of ``work`` in a graph, after half a second in which the clocks come up."""
    graph, _ = captured(work)
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.5:
        graph.replay()
        torch.cuda.synchronize()
    times = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def give_back_memory() -> None:
    """Free what an earlier test left in cycles, which would be freed in the middle of this one."""
    gc.collect()
    torch.cuda.empty_cache()


def estimated_and_measured(
    family: Family,
    config: Any,
    draw: Callable[[], tuple[Tensor, ...]],
    batch: int,
    sequence: int,
    precision: str,
    checkpointing: str,
) -> tuple[float, int]:
    """Bytes: the footprint's total, and the peak over those before the model was made.

    ``draw`` gives a batch as ``loss`` takes it; ``precision`` is "fp32", "amp" or "half" (weights
    in bfloat16).
    """
    dtype = torch.bfloat16 if precision == "half" else torch.float32
    give_back_memory()
    before = torch.cuda.memory_allocated()
    model = family.materialise(config, "cuda", dtype)
    model.set_checkpointing(checkpointing)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = draw()
    for _ in range(2):  # the first step makes the optimizer's moments
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp"):
            loss = model.loss(*inputs)
        loss.backward()
        optimizer.step()
    measured = torch.cuda.max_memory_allocated() - before
    estimate = family.footprint(
        config,
        workload="train",
        batch=batch,
        sequence=sequence,
        precision=precision,
        checkpointing=checkpointing,
    )
    return estimate.total, measured
