"""The frame of every causal language model here: embedding, blocks, norm, head, loss, decode state.

A family supplies the blocks; everything the runner calls is defined once, in ``LanguageModel``.

Shapes: B batch, S sequence, N = B S tokens, E model width, V vocabulary (rows of the embedding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from models._attention import RotaryCache
from models._layers import Embedding, Linear, RMSNorm
from models._mistake import ConfigurationError

CHECKPOINTING = ("none", "full", "selective")


class State(Protocol):
    """What one block keeps between calls while decoding."""

    def tensors(self) -> list[Tensor]:
        """All that is held, for counting bytes and resetting."""
        ...


@dataclass
class Cache:
    """The decode state of a whole model: one state a block, for up to ``length`` positions."""

    batch: int
    length: int
    layers: list[State]

    def tensors(self) -> list[Tensor]:
        """Every tensor held; their addresses never change, which CUDA graphs need."""
        return [tensor for layer in self.layers for tensor in layer.tensors()]

    def bytes(self) -> int:
        """Bytes held on the device."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def mark_static(self) -> None:
        """Tell torch.compile that the tensors stay where they are.

        Only then does it capture a step that writes to them into a CUDA graph.
        """
        for tensor in self.tensors():
            torch._dynamo.mark_static_address(tensor)

    def reset(self) -> None:
        """Forget everything, in place."""
        for tensor in self.tensors():
            tensor.zero_()


class LanguageModel(nn.Module):
    """A causal language model over the blocks that a family supplies.

    A block is a module with ``forward(x_BSE, state, position) -> x_BSE`` and
    ``new_state(batch, length, device, dtype) -> State``.
    """

    def __init__(
        self,
        *,
        rows: int,
        dim: int,
        blocks: Sequence[nn.Module],
        max_sequence: int,
        norm_eps: float,
        tie_embeddings: bool,
    ) -> None:
        super().__init__()
        self.max_sequence = max_sequence
        self.embedding = Embedding(rows, dim)
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(dim, norm_eps)
        self.head = None if tie_embeddings else Linear(dim, rows)
        self.checkpointing = "none"
        self.checkpointed_blocks = 0

    def forward(
        self,
        tokens_BS: Tensor,
        cache: Cache | None = None,
        position: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits of the next token after each one: (B, S) int64 -> (B, S, V).

        With ``cache``, the tokens are also remembered. ``position`` (int64, [], on the device) is
        that of the first token, and the tokens see what the cache holds before it; None means that
        the cache is empty (a prefill from the start, which needs no masking). A position past the
        end of the cache is the caller's mistake and cannot be seen here without a host
        synchronization. ``last_only`` gives (B, 1, V): only what a prefill needs.
        """
        self._check_length(tokens_BS, cache, position)
        x_BSE = self._run_blocks(self.embedding(tokens_BS), cache, position)
        if last_only:
            x_BSE = x_BSE[:, -1:]
        weight_VE = self.embedding.weight if self.head is None else self.head.weight
        return functional.linear(self.norm(x_BSE), weight_VE)

    def loss(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Mean cross-entropy of ``targets_BS`` in nats, [], computed in FP32 (FP64 for FP64)."""
        logits_NV = self(tokens_BS).flatten(0, 1)
        wide = torch.promote_types(logits_NV.dtype, torch.float32)
        return functional.cross_entropy(logits_NV.to(wide), targets_BS.flatten())

    def new_cache(self, batch: int, length: int, dtype: torch.dtype | None = None) -> Cache:
        """An empty decode state on the model's device for ``length`` positions.

        ``dtype`` None takes what the layers will compute: autocast's dtype where it is on,
        otherwise the weights'. Raises ``ConfigurationError`` for a length above ``max_sequence``.
        """
        if not 1 <= length <= self.max_sequence:
            raise ConfigurationError(
                f"new_cache: length {length} is not within 1 to max_sequence = {self.max_sequence}"
            )
        weight = self.embedding.weight
        if dtype is None:
            autocast = torch.is_autocast_enabled(weight.device.type)
            dtype = torch.get_autocast_dtype(weight.device.type) if autocast else weight.dtype
        states: list[Any] = [
            block.new_state(batch, length, weight.device, dtype) for block in self.blocks
        ]
        return Cache(batch, length, states)

    def weights(self) -> dict[str, nn.Parameter]:
        """The parameters themselves by name, for ``Family.share``."""
        weights: dict[str, nn.Parameter] = self.state_dict(keep_vars=True)
        return weights

    def set_checkpointing(self, mode: str) -> None:
        """Which blocks keep their inputs only and compute again in backward.

        "none"; "full": every block; "selective": every second one, which halves the saving and
        the recomputation, and unlike a policy per operator means the same for eager, compiled and
        captured steps. Raises ``ValueError`` for another mode.
        """
        if mode not in CHECKPOINTING:
            raise ValueError(f"set_checkpointing: unknown mode {mode!r}; allowed: {CHECKPOINTING}")
        self.checkpointing = mode

    def share_rope_cache(self, shared: bool) -> None:
        """Let all layers hold one rotary table, or each one of its own; the results are the same.

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
        """Bytes of all rotary tables, a shared one counted once."""
        tables = [module for module in self.modules() if isinstance(module, RotaryCache)]
        return sum(table.cos_SR.nbytes + table.sin_SR.nbytes for table in tables)

    def _run_blocks(self, x_BSE: Tensor, cache: Cache | None, position: Tensor | None) -> Tensor:
        stride = {"none": 0, "full": 1, "selective": 2}[self.checkpointing]
        if cache is not None or not torch.is_grad_enabled():
            stride = 0
        self.checkpointed_blocks = 0 if stride == 0 else len(range(0, len(self.blocks), stride))
        for index, block in enumerate(self.blocks):
            if stride and index % stride == 0:
                # There is no dropout, and saving the generator's state would end graph capture.
                x_BSE = checkpoint(block, x_BSE, use_reentrant=False, preserve_rng_state=False)
            else:
                state = None if cache is None else cache.layers[index]
                x_BSE = block(x_BSE, state, position)
        return x_BSE

    def _check_length(
        self, tokens_BS: Tensor, cache: Cache | None, position: Tensor | None
    ) -> None:
        batch, length = tokens_BS.shape
        if length > self.max_sequence:
            raise ConfigurationError(
                f"a sequence of {length} tokens is longer than max_sequence = {self.max_sequence}"
            )
        if cache is None:
            if position is not None:
                raise ValueError("position says where tokens go in a cache; pass the cache too")
            return
        if position is not None and (position.shape != () or position.dtype != torch.int64):
            raise ValueError(
                f"position must be one int64 on the device, but is {position.dtype} "
                f"{tuple(position.shape)}"
            )
        if batch != cache.batch or length > cache.length:
            raise ConfigurationError(
                f"tokens of shape ({batch}, {length}) do not fit a cache made for batch "
                f"{cache.batch} and {cache.length} positions"
            )
