"""What the blocks of a pipeline measure in a step: on all ranks, and of all micro-batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from models import LanguageModel
from workbench.runner.ranks.region import sum_over_ranks


class Measures:
    """The metrics of a model of which this rank has one stage.

    Each row becomes the mean over the micro-batches of what its block measured: the whole batch's
    of a share or a mean, and of other measures that of its parts.
    """

    def __init__(self, model: LanguageModel, micro_batches: int) -> None:
        self._metrics = list(model.metrics().values())
        weights = []
        for name, rows in model.measured_rows().items():
            weight = torch.zeros_like(model.metrics()[name])
            weight[rows] = 1 / micro_batches
            weights.append(weight.flatten())
        self._weights = torch.cat(weights) if weights else None

    @contextlib.contextmanager
    def over_ranks(self) -> Iterator[Callable[[], None]]:
        """Gives what is to be called after each micro-batch; all ranks have the metrics then."""
        if self._weights is None:
            yield _nothing
            return
        total = torch.zeros_like(self._weights)

        def passed() -> None:
            total.addcmul_(self._packed(), self._weights)

        yield passed
        parts = sum_over_ranks(total).split([each.numel() for each in self._metrics])
        for metric, part in zip(self._metrics, parts, strict=True):
            metric.copy_(part.view_as(metric))

    def _packed(self) -> Tensor:
        return torch.cat([each.flatten() for each in self._metrics])


def _nothing() -> None:
    """There is nothing to measure."""
