"""A training step: next-token loss, backward pass, AdamW."""

from __future__ import annotations

import torch

from workbench.runner.workloads._workload import Bench, Compute, Step, Workload


def _compute(bench: Bench) -> Compute:
    model = bench.model

    def compute(tokens_BS: torch.Tensor, targets_BS: torch.Tensor) -> torch.Tensor:
        return model.loss(tokens_BS, targets_BS)

    return compute


def _step(bench: Bench, compute: Compute) -> Step:
    trainer = bench.trainer
    assert trainer is not None
    tokens_BS, targets_BS = bench.batches.tokens, bench.batches.targets

    def step() -> torch.Tensor:
        loss = compute(tokens_BS, targets_BS)
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
