"""Prefill: fill an empty KV cache with a prompt, and compute the first token after it.

The prompt is processed at once or in pieces; each piece attends to the cache of earlier ones.
"""

from __future__ import annotations

import torch

from workbench.runner.workloads._workload import (
    BATCH,
    CHUNK,
    SEQUENCE,
    Bench,
    Compute,
    Step,
    Workload,
    filled_by_pieces,
)


def _compute(bench: Bench) -> Compute:
    model = bench.language_model
    (tokens_BS,) = bench.batches.inputs
    batch, length = tokens_BS.shape
    cache = bench.new_cache(batch, length)

    def compute(tokens_BS: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
        return model(tokens_BS, cache=cache, position=position, last_only=True)

    return compute


def _step(bench: Bench, compute: Compute) -> Step:
    def step() -> torch.Tensor:
        with torch.no_grad():
            return bench.prefill(compute).argmax(dim=-1)

    return step


WORKLOAD = Workload(
    name="prefill",
    title="Prefill",
    help=__doc__,
    fields=(BATCH, SEQUENCE, CHUNK),
    compute=_compute,
    step=_step,
    filled=filled_by_pieces,
)
