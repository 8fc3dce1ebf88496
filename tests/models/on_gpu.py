"""Shared steps of the families' GPU tests: warm up, capture, watch."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from models import Family

Result = TypeVar("Result")


def tokens(batch: int, sequence: int, seed: int = 0) -> Tensor:
    """Draw random bytes, int64 (batch, sequence), the same for a seed on every device."""
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
    """Return a graph of ``work``, and the result that each replay overwrites."""
    warm(work)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work()
    return graph, result


def training(model: Any, tokens_BS: Tensor) -> Callable[[], Tensor]:
    """Return a step of the loss and its gradients, without an optimizer."""

    def work() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss: Tensor = model.loss(tokens_BS, tokens_BS)
        loss.backward()
        return loss.detach()

    return work


def assert_replay_is_eager(
    model: Any, length: int, rtol: float, atol: float, metric: str = ""
) -> None:
    """Assert that a captured step, replayed on other tokens, equals an eager one.

    This compares the loss, the gradients and the metric.
    """
    tokens_BS = tokens(2, length)
    work = training(model, tokens_BS)
    graph, loss = captured(work)
    tokens_BS.copy_(tokens(2, length, seed=1))
    graph.replay()
    parameters = list(model.parameters())
    replayed = [loss.clone(), *(parameter.grad.clone() for parameter in parameters)]
    measured = {name: value.clone() for name, value in model.metrics().items() if name == metric}
    for name in measured:
        model.metrics()[name].zero_()
    expected = [work(), *(parameter.grad for parameter in parameters)]
    for actual, other in zip(replayed, expected, strict=True):
        torch.testing.assert_close(actual, other, rtol=rtol, atol=atol)
    assert measured.keys() == {metric} - {""}
    for name, value in measured.items():
        torch.testing.assert_close(value, model.metrics()[name])


@torch.no_grad()
def decoded_by_one_graph(model: Any, tokens_BS: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits [B, V] at each position: one captured decode step's, and a full pass's."""
    batch, length = tokens_BS.shape
    whole_BSV = model(tokens_BS)
    cache = model.new_cache(batch, length)
    token_B1 = tokens_BS[:, :1].clone()
    position = torch.zeros((), dtype=torch.int64, device="cuda")
    graph, logits_B1V = captured(lambda: model(token_B1, cache=cache, position=position))
    cache.reset()
    for i in range(length):
        token_B1.copy_(tokens_BS[:, i : i + 1])
        position.fill_(i)
        graph.replay()
        yield logits_B1V[:, 0], whole_BSV[:, i]


@torch.no_grad()
def assert_compiled_decode_step_is_captured(model: Any, length: int) -> None:
    """Assert that Inductor captures the step, once the cache is marked static."""
    torch.compiler.reset()
    cache = model.new_cache(2, length)
    cache.mark_static()
    step = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    position = torch.zeros((), dtype=torch.int64, device="cuda")
    skips = torch._dynamo.utils.counters["inductor"]
    skips.clear()
    for i in range(4):
        position.fill_(i)
        step(tokens(2, 1), cache=cache, position=position)
    assert skips["cudagraph_skips"] == 0
    torch.compiler.reset()


def without_waiting(work: Callable[[], Result]) -> Result:
    """Run ``work``, once warm; raise where it waits for the GPU."""
    warm(work)
    torch.cuda.set_sync_debug_mode("error")
    try:
        return work()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def step_ms(family: Family, config: Any, batch: int, sequence: int, trains: bool) -> float:
    """Return the median GPU time of a step, replayed as a graph without the host's time."""
    give_back_memory()
    model: Any = family.materialise(config, "cuda", torch.bfloat16).train(trains)
    tokens_BS = tokens(batch, sequence)
    if trains:
        return replay_ms(training(model, tokens_BS))
    with torch.no_grad():
        return replay_ms(lambda: model(tokens_BS, last_only=True))


def replay_ms(work: Callable[[], object]) -> float:
    """Return the median GPU time of ``work`` in a graph, after half a second of ramping clocks."""
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
    batch: int,
    sequence: int,
    precision: str,
    checkpointing: str,
    draw: Callable[[], Sequence[Tensor]] | None = None,
) -> tuple[float, int]:
    """Return bytes: the footprint's total, and the peak over those before the model was made.

    ``draw`` gives a batch as ``loss`` takes it, by default of tokens; ``precision`` is "fp32",
    "amp" or "half" (weights in bfloat16).
    """
    dtype = torch.bfloat16 if precision == "half" else torch.float32
    give_back_memory()
    before = torch.cuda.memory_allocated()
    model = family.materialise(config, "cuda", dtype)
    model.set_checkpointing(checkpointing)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = draw() if draw is not None else (tokens(batch, sequence),) * 2
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
