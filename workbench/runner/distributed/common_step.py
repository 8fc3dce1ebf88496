"""The step of a variant of several ranks, on each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from workbench.runner.interfaces import CapturedStep

if TYPE_CHECKING:
    from workbench.runner.batches import Batches
    from workbench.runner.workloads import Step


class CommonStep:
    """A step of all ranks. If they capture it, each rank captures its own part.

    ``step``: makes it on all ranks, with the batch after a number of advances. ``part``: this
    rank's part.
    """

    def __init__(self, step: Callable[..., Tensor], part: Step, batches: Batches) -> None:
        self._step, self._batches = step, batches
        self._captured = part if isinstance(part, CapturedStep) else None

    def __call__(self) -> Tensor:
        """Step with the current batch; return the mean of the ranks' losses."""
        return self._step(self._batches.advances)

    @property
    def graph(self) -> torch.cuda.CUDAGraph | None:
        """This rank's graph, after the capture."""
        return None if self._captured is None else self._captured.graph

    @property
    def replays(self) -> int:
        """The number of replays of the graph."""
        return 0 if self._captured is None else self._captured.replays

    @property
    def uncaptured(self) -> Step | None:
        """The same step without graphs, where it has them."""
        if self._captured is None:
            return None
        return lambda: self._step(self._batches.advances, captured=False)
