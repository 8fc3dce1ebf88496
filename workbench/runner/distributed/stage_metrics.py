"""Metrics that the blocks of a pipeline measure in a step: of all ranks and all micro-batches."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from models import LanguageModel


class StageMetrics:
    """The metrics of a model of which this rank has one stage.

    Each row becomes the mean over the micro-batches of what its block measured: the full batch's
    for a fraction or a mean, and that of its parts for other metrics.
    """

    def __init__(self, model: LanguageModel, micro_batches: int) -> None:
        self._metrics = list(model.metrics().values())
        chunks = [model.stage.passage(chunk) for chunk in range(max(1, len(model.stage.chunks)))]
        self._weights: list[Tensor] = []  # weights by chunk
        for passage in chunks if self._metrics else ():
            weights = []
            for name, rows in model.measured_rows(passage.blocks).items():
                weight = torch.zeros_like(model.metrics()[name])
                weight[rows] = 1 / micro_batches
                weights.append(weight.flatten())
            self._weights.append(torch.cat(weights))
        self._total: Tensor | None = None

    def reset(self) -> None:
        """Begin a step."""
        self._total = torch.zeros_like(self._weights[0]) if self._weights else None

    def add(self, chunk: int) -> None:
        """Add what the last micro-batch measured in a chunk."""
        if self._total is not None:
            packed = torch.cat([metric.flatten() for metric in self._metrics])
            self._total.addcmul_(packed, self._weights[chunk])

    def share(self, group: dist.ProcessGroup) -> None:
        """Give all stages the metrics of the step."""
        if self._total is None:
            return
        dist.all_reduce(self._total, group=group)
        parts = self._total.split([metric.numel() for metric in self._metrics])
        for metric, part in zip(self._metrics, parts, strict=True):
            metric.copy_(part.view_as(metric))
