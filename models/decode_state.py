"""Decode state of a language model: tensors that its blocks carry from call to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from models import cache_file
from models.cache_file import SavedState
from models.errors import ConfigurationError


class State(Protocol):
    """Decode state of one block between calls."""

    def tensors(self) -> list[Tensor]:
        """Return all tensors, for counting bytes and resetting."""
        ...

    def carried(self) -> list[Tensor]:
        """Return those that cannot go back to a position: they summarise all tokens so far."""
        ...


@dataclass
class Cache:
    """Decode state of a model, for up to ``length`` positions.

    One state per block, and optionally one of the model itself.
    """

    batch: int
    length: int
    layers: list[State]
    common: State | None = None

    def states(self) -> list[State]:
        """Return the states of the blocks, and of the model."""
        return [*self.layers, self.common] if self.common is not None else self.layers

    def tensors(self) -> list[Tensor]:
        """Return all tensors; their addresses never change, which CUDA graphs need."""
        return [tensor for state in self.states() for tensor in state.tensors()]

    def bytes(self) -> int:
        """Return the bytes on the device."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def mark_static(self) -> None:
        """Tell torch.compile that the tensors' addresses never change.

        Otherwise it does not capture a step that writes to them in a CUDA graph. Some of them are
        views: then the viewed tensors are the inputs of the step.
        """
        for tensor in self.tensors():
            owner = tensor if tensor._base is None else tensor._base
            torch._dynamo.mark_static_address(owner)

    def reset(self) -> None:
        """Clear the state in place."""
        for tensor in self.tensors():
            tensor.zero_()

    def mark(self) -> list[Tensor]:
        """Return the copies with which ``go_back`` returns to the current position.

        They are in the host's memory: on the device they would count as memory of the step.
        """
        carried = [tensor for state in self.states() for tensor in state.carried()]
        marked = [torch.empty_like(x, device="cpu", pin_memory=x.is_cuda) for x in carried]
        for copy, tensor in zip(marked, carried, strict=True):
            copy.copy_(tensor)
        return marked

    def go_back(self, mark: Sequence[Tensor]) -> None:
        """Drop, in place, the tokens since ``mark``; the next are at the marked position."""
        carried = [tensor for state in self.states() for tensor in state.carried()]
        for tensor, before in zip(carried, mark, strict=True):
            tensor.copy_(before, non_blocking=True)

    def save(
        self, path: str | Path, position: int, beside: Mapping[str, Any] | None = None
    ) -> None:
        """Write the state to a file atomically; ``position`` tokens were processed.

        ``beside`` is stored with it: tensors, numbers and text. Waits for the device.
        """
        cache_file.write(path, self.batch, self.length, position, self.tensors(), beside)

    def load(self, saved: str | Path | SavedState) -> int:
        """Restore the state from a file, or one already read, in place; returns its position.

        The file holds no weights: it fits the model that made it, or one with equal weights. Raises
        ``ConfigurationError``, and changes nothing, if the file is no decode state or its batch,
        length, tensors or their types differ from this cache's.
        """
        if not isinstance(saved, SavedState):
            saved = cache_file.read(saved)
        saved.fill(self.batch, self.length, self.tensors())
        return saved.position


def check_tokens(
    tokens_BS: Tensor, max_sequence: int, cache: Cache | None, position: Tensor | None
) -> None:
    """Raise ``ConfigurationError`` for tokens that fit neither the model nor the cache.

    Raises ``ValueError`` for a position of another kind.
    """
    if tokens_BS.dim() != 2 or 0 in tokens_BS.shape:
        raise ConfigurationError(
            f"tokens must be [batch, sequence], both at least 1, but have shape "
            f"{tuple(tokens_BS.shape)}"
        )
    batch, length = tokens_BS.shape
    if length > max_sequence:
        raise ConfigurationError(
            f"a sequence of {length} tokens is longer than max_sequence = {max_sequence}"
        )
    if cache is None:
        if position is not None:
            raise ValueError("position says where tokens go in a cache; pass the cache too")
        return
    if position is not None and not isinstance(position, Tensor):
        raise ValueError(
            f"position must be an int64 tensor with one number, on the tokens' device (on the CPU "
            f"torch.tensor({position})), but is {type(position).__name__}"
        )
    if position is not None and (position.shape != () or position.dtype != torch.int64):
        raise ValueError(
            f"position must be an int64 tensor with shape (), but is {position.dtype} "
            f"{tuple(position.shape)}"
        )
    if batch != cache.batch or length > cache.length:
        raise ConfigurationError(
            f"tokens of shape ({batch}, {length}) do not fit a cache made for batch "
            f"{cache.batch} and length {cache.length}"
        )
