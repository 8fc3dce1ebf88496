"""Inference over whole sequences: one forward pass without gradients."""

from __future__ import annotations

import torch

from workbench.runner.workloads._workload import Bench, Compute, Step, Workload


def _compute(bench: Bench) -> Compute:
    model = bench.model

    def compute(tokens_BS: torch.Tensor) -> torch.Tensor:
        return model(tokens_BS)

    return compute


def _step(bench: Bench, compute: Compute) -> Step:
    tokens_BS = bench.batches.tokens

    def step() -> torch.Tensor:
        with torch.no_grad():
            return compute(tokens_BS)

    return step


WORKLOAD = Workload(
    name="forward",
    title="Forward (inference)",
    help=__doc__,
    compute=_compute,
    step=_step,
)
