"""The batches of a step: a ring of them on the device, and the tensors that every step reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.runner.failures import Mistake
from workbench.runner.loading import LoadedBatches
from workbench.runner.structures import map_tensors, tensors

SYNTHETIC = "synthetic"  # the source of batches that are drawn by a seed
RING = 16  # batches kept on the device, in turn, so that no step waits for the host

Tensors = tuple[Any, ...]  # tensors, or structures of them


class Batches:
    """A ring of batches on the device, and the tensors that every step reads.

    A model is called with ``inputs``, its loss with ``inputs`` and ``targets``. Their addresses
    never change, as CUDA graphs need; ``advance`` copies the next batch into them. ``few`` are
    inputs of one call, a short one of a model of language.

    A ring may also be read from a file, batch by batch (``LoadedBatches``).

    ``loose`` batches do not fit into such tensors: they differ in shape, or are sparse. Each of
    them stays as it is, and ``advance`` makes the next the current one.
    """

    def __init__(
        self,
        inputs: Tensors,
        targets: Tensors,
        few: Tensors,
        buffers: Iterable[tuple[Tensor, Tensor | LoadedBatches]],
        loose: Sequence[Tensors] = (),
        rows: int | None = None,
        draw_larger: Callable[[], Tensors] | None = None,
    ) -> None:
        self.inputs, self.targets, self.few = inputs, targets, few
        self._input_tensors = tensors(inputs)  # looked up once, and not in every step
        self._buffers = list(buffers)  # each with its ring: one more axis, the batches
        self._differentiable = [buffer for buffer, _ in self._buffers if buffer.requires_grad]
        self.loose = loose
        self._rows = rows  # batch size, the first dimension of a tensor to split; None: any size
        self._draw_larger = draw_larger  # returns the tensors of a batch with more rows
        self.advances = 0

    @property
    def index(self) -> int:
        """The index of the current batch in the ring."""
        return max(0, self.advances - 1) % RING

    @property
    def loaded(self) -> LoadedBatches | None:
        """The reader of the batches from a file; None if they lie on the device."""
        rings = [ring for _, ring in self._buffers if isinstance(ring, LoadedBatches)]
        return rings[0] if rings else None

    def tensors(self) -> list[Tensor]:
        """Return all dense tensors that lie on the device."""
        rings = [tensor for pair in self._buffers for tensor in pair if isinstance(tensor, Tensor)]
        dense = tensors((self.inputs, self.targets, self.few, self.loose))
        return [*(tensor for tensor in dense if tensor.layout == torch.strided), *rings]

    def part(self, index: int, parts: int) -> Batches:
        """Return the rows of part ``index`` of ``parts`` equal parts, in the same buffers.

        Raises ``Mistake`` for batches that cannot be split by rows.
        """
        if parts == 1:
            return self
        current = tensors((self.inputs, self.targets))
        has_rows = all(x.ndim and len(x) == (self._rows or len(x)) for x in current)
        if self.loose or not has_rows or not self._grows(current):
            raise Mistake(
                f"own: batches cannot be split across {parts} ranks: every input must be a dense "
                "tensor whose first dimension is the batch, with the same shape in all batches; "
                "let make_inputs return such tensors, and let the module transpose them"
            )

        def rows(x: Tensor) -> Tensor:  # a leaf, of whose history the buffer is no part
            return x.detach().chunk(parts)[index].requires_grad_(x.requires_grad)

        inputs, targets = (map_tensors(every, rows) for every in (self.inputs, self.targets))
        return Batches(inputs, targets, self.few, self._buffers)

    def _grows(self, current: Sequence[Tensor]) -> bool:
        """Return False if a tensor is as long in a larger batch: its first dimension is another."""
        if self._draw_larger is None:
            return True
        try:
            larger = tensors(self._draw_larger())
            return all(len(x) > len(y) for x, y in zip(larger, current, strict=True))
        except Exception:  # noqa: BLE001 - a user's function may have no other size
            return True

    def rewind(self) -> None:
        """Make the first batch the next one."""
        self.advances = 0

    def go_to(self, count: int) -> None:
        """Set the state that ``count`` advances lead to."""
        self.advances = max(0, count - 1)
        self.advance()
        self.advances = count

    def following(self) -> tuple[Tensors, Tensors]:
        """Return copies of the next batch's inputs and targets; the current batch stays."""
        count, inputs = self.advances, self.inputs
        before = [(buffer, buffer.detach().clone()[None]) for buffer, _ in self._buffers]
        self.go_to(self.index + 2)
        batch: tuple[Tensors, Tensors] = map_tensors((self.inputs, self.targets), torch.clone)
        self._fill(before, 0)  # a model may have changed them
        self.advances, self.inputs = count, inputs
        return batch

    def advance(self) -> None:
        """Make the next batch current."""
        index = self.advances % RING
        self._fill(self._buffers, index)
        for tensor in self._input_tensors:
            if tensor.requires_grad and tensor.is_leaf:
                tensor.grad = None
        if self.loose:
            self.inputs = map_tensors(self.loose[index], leaf_copy)
        self.advances += 1

    def _fill(self, buffers: Sequence[tuple[Tensor, Tensor | LoadedBatches]], index: int) -> None:
        """Overwrite buffers; a model may have written into them, or requested gradients."""
        for buffer, ring in buffers:
            if buffer.requires_grad:
                buffer.detach_().grad = None
            buffer.copy_(ring[index], non_blocking=True)
        for buffer in self._differentiable:
            buffer.requires_grad_()


def leaf_copy(tensor: Tensor) -> Tensor:
    """Return a copy without history, which a model may overwrite."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
