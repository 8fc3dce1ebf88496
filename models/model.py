"""Base class of every model: the interface that the runner uses.

A model is called with its inputs and returns one tensor; ``loss`` takes the targets too. *Metrics*
are quantities that a model reports while it runs (routing load, ranks, gates): FP32 tensors on the
device that a step overwrites. Reading them from time to time makes no step wait. Under
``torch.func`` they do not change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.execution.checkpointing import CHECKPOINTING, recomputed
from models.initialisation import keep_dtypes
from models.layers.attention import RotaryCache


def transformed() -> bool:
    """Return True inside a ``torch.func`` transform, whose functions must not write elsewhere."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric of a family: a matrix of numbers, a row for each part that measures it."""

    name: str
    title: str
    unit: str  # "" for a fraction or a plain number
    help: str  # one sentence: meaning, and typical good values
    rows: str = "block"  # the meaning of a row
    columns: str = ""  # the meaning of a column ("expert", "head"); empty if there is only one


@dataclass(frozen=True)
class Promise:
    """Model's bound on how far the choices of its last call may have moved its outputs."""

    relative_error: float  # Euclidean
    text: str  # the choices, and their bound


class Model(nn.Module, ABC):
    """Model that the runner can step, share, checkpoint and read metrics from.

    A subclass defines ``forward(*inputs) -> Tensor`` and ``loss(*inputs, *targets) -> Tensor []``
    (FP32, differentiable), honours ``self.checkpointing`` if it has blocks, and counts in
    ``self.checkpointed_blocks`` how many the last call checkpointed.
    """

    repeats = True  # equal inputs give equal outputs; False if that must be tested

    def __init__(self) -> None:
        super().__init__()
        self.checkpointing = "none"
        self.checkpointed_blocks = 0
        self._metrics: dict[str, tuple[int, ...]] = {}

    @abstractmethod
    def loss(self, *batch: Tensor) -> Tensor:
        """Return the mean loss of a batch, inputs first, then targets: [], in FP32 at least."""

    def weights(self) -> dict[str, nn.Parameter]:
        """Return the parameters themselves by name, for ``Family.share``."""
        weights: dict[str, nn.Parameter] = self.state_dict(keep_vars=True)
        return weights

    def adapted(self) -> dict[str, Tensor]:
        """Return the live tensors that calls change and later calls use, by name; mostly none.

        Weights are not among them.
        """
        return {}

    def carried(self) -> dict[str, Tensor]:
        """Return those of ``adapted`` that no implementation chooses: a reference has them too."""
        return {}

    def calls_to_settle(self) -> int:
        """Return how many more calls may change the choices; waits for the device."""
        return 0

    def promise(self) -> Promise | None:
        """Return the bound for the last call's choices; None if the model makes none."""
        return None

    def set_checkpointing(self, mode: str) -> None:
        """Choose the blocks that save only their inputs and recompute in backward.

        "none"; "full": every block; "selective", "third", "fourth": every second, third or fourth
        block, which divides the saving and the recomputation; "operators": every block, which also
        saves the outputs of its matrix products and its attention. Raises ``ValueError`` for
        another mode.
        """
        if mode not in CHECKPOINTING:
            allowed = tuple(CHECKPOINTING)
            raise ValueError(f"set_checkpointing: unknown mode {mode!r}; allowed: {allowed}")
        self.checkpointing = mode

    def choose_checkpointed(self, n_blocks: int) -> list[bool]:
        """Return which of ``n_blocks`` this call checkpoints: none without gradients."""
        stride = CHECKPOINTING[self.checkpointing] if torch.is_grad_enabled() else 0
        chosen = [stride > 0 and index % stride == 0 for index in range(n_blocks)]
        self.checkpointed_blocks = sum(chosen)
        return chosen

    def recomputed(self, block: Callable[..., Any], *inputs: Any) -> Any:
        """Run ``block``, checkpointed as ``set_checkpointing`` chose."""
        return recomputed(self.checkpointing, block, *inputs)

    def share_rope_cache(self, shared: bool) -> None:
        """Share one rotary table among all layers, or give each its own; the results are the same.

        Tables that differ in head width, length or base are never merged.
        """
        first: dict[tuple[int, int, float], RotaryCache] = {}
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if not isinstance(child, RotaryCache):
                    continue
                key = (child.head_dim, child.max_sequence, child.theta)
                if not shared:
                    with child.cos_SR.device:
                        setattr(module, name, RotaryCache(*key))
                else:
                    setattr(module, name, first.setdefault(key, child))

    def rope_cache_bytes(self) -> int:
        """Return the bytes of all rotary tables, a shared one counted once."""
        tables = [module for module in self.modules() if isinstance(module, RotaryCache)]
        return sum(table.cos_SR.nbytes + table.sin_SR.nbytes for table in tables)

    def declare_metrics(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Allocate metrics, zeros at first: shape (rows, columns) by name."""
        self._metrics |= shapes
        self.rebuild_buffers(torch.empty(0).device)

    def rebuild_buffers(self, device: torch.device) -> None:
        """Allocate the metrics on ``device``: not weights, and always FP32."""
        for name, shape in self._metrics.items():
            values = torch.zeros(shape, dtype=torch.float32, device=device)
            self.register_buffer(f"metric_{name}", values, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Model:
        """Cast the weights, and not the metrics."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        keep_dtypes(self, before)
        return self

    def record(self, name: str, row: int, values: Tensor) -> None:
        """Overwrite one row of a metric; nothing waits for the device."""
        if not transformed():
            getattr(self, f"metric_{name}")[row].copy_(values.detach())

    def metrics(self) -> dict[str, Tensor]:
        """Return every declared metric: the live tensor (rows, columns), FP32."""
        return {name: getattr(self, f"metric_{name}") for name in self._metrics}
