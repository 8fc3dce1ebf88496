"""A training step: loss (of language models, next-token loss), backward pass, AdamW."""

from __future__ import annotations

import torch

from workbench.runner.workloads._workload import Bench, Compute, Step, Workload


def _compute(bench: Bench) -> Compute:
    model = bench.model

    def compute(*batch: torch.Tensor) -> torch.Tensor:
        return model.loss(*batch)

    return compute


def _step(bench: Bench, compute: Compute) -> Step:
    trainer = bench.trainer
    assert trainer is not None
    batches = bench.batches

    def step() -> torch.Tensor:
        loss = compute(*batches.inputs, *batches.targets)
        trainer.update(loss)
        return loss.detach()

    return step


WORKLOAD = Workload(
    name="train",
    title="Training step",
    help=__doc__,
    trains=True,
    compute=_compute,
    step=_step,
)
