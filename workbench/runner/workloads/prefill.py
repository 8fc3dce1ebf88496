"""Prefill: a prompt through the model into an empty KV cache, and the first token after it."""

from __future__ import annotations

import torch

from workbench.runner.workloads._workload import Bench, Compute, Step, Workload


def _compute(bench: Bench) -> Compute:
    model = bench.language_model
    (tokens_BS,) = bench.batches.inputs
    batch, length = tokens_BS.shape
    cache = model.new_cache(batch, length)

    def compute(tokens_BS: torch.Tensor) -> torch.Tensor:
        return model(tokens_BS, cache=cache, last_only=True)

    return compute


def _step(bench: Bench, compute: Compute) -> Step:
    (tokens_BS,) = bench.batches.inputs

    def step() -> torch.Tensor:
        with torch.no_grad():
            return compute(tokens_BS).argmax(dim=-1)

    return step


WORKLOAD = Workload(
    name="prefill",
    title="Prefill",
    help=__doc__,
    compute=_compute,
    step=_step,
)
