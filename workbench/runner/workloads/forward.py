"""Inference over whole inputs: one forward pass without gradients."""

from __future__ import annotations

import torch

from workbench.runner.workloads._workload import Bench, Compute, Step, Workload


def _compute(bench: Bench) -> Compute:
    model = bench.model

    def compute(*inputs: torch.Tensor) -> torch.Tensor:
        return model(*inputs)

    return compute


def _step(bench: Bench, compute: Compute) -> Step:
    batches = bench.batches

    def step() -> torch.Tensor:
        with torch.no_grad():
            return compute(*batches.inputs)

    return step


WORKLOAD = Workload(
    name="forward",
    title="Forward (inference)",
    help=__doc__,
    compute=_compute,
    step=_step,
)
