"""The shared part of decoding and generation: a cache, and each sequence's position in it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from models import Cache, LanguageModel


class Decoder:
    """Tensors on the device that every step reads and writes, at addresses that never change.

    ``written`` are the new tokens of the first sequence, (2, new_tokens). Its rows alternate: one
    is of this round of steps, the other of the previous round. ``done`` counts a round's steps.
    """

    def __init__(
        self, model: LanguageModel, cache: Cache, prompt_BS: torch.Tensor, new_tokens: int
    ) -> None:
        self.model, self.cache = model, cache
        self.prompt_BS, self.new_tokens = prompt_BS, new_tokens
        self.prompt_length = prompt_BS.shape[1]
        self.token_B1 = prompt_BS[:, -1:].clone()  # input of the next step
        self.done, self._start = (prompt_BS.new_zeros(()) for _ in range(2))
        self.written = prompt_BS.new_zeros((2, new_tokens))

    @functools.cached_property
    def uniform_NB1(self) -> torch.Tensor:
        """A number from 0 to 1 for each new token of a round, where tokens are drawn."""
        shape = (self.new_tokens, len(self.prompt_BS), 1)
        return torch.zeros(shape, dtype=torch.float32, device=self.prompt_BS.device)

    @property
    def position(self) -> torch.Tensor:
        """Return the position of the next token."""
        return self.done + self.prompt_length

    def computing(self) -> Callable[..., torch.Tensor]:
        """Return a function of tokens (B, S) that gives the logits after the last, (B, 1, V).

        It takes the position of the first token too, unless the sequences begin anew.
        """
        model, cache = self.model, self.cache

        def compute(tokens_BS: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
            return model(tokens_BS, cache=cache, position=position, last_only=True)

        return compute

    @property
    def progress(self) -> dict[str, torch.Tensor]:
        """Return the state of a round in progress, beside the cache."""
        return {
            "token": self.token_B1,
            "done": self.done,
            "start": self._start,
            "written": self.written,
            "uniform": self.uniform_NB1,
        }

    def begin(self, number: int) -> None:
        """Begin round ``number``, without anything written yet."""
        self.done.zero_()
        self._start.fill_(number % 2 * self.new_tokens)

    def write(self, token_B: torch.Tensor, position: torch.Tensor | int) -> None:
        """Store the new tokens as the next step's input, and the first sequence's for readers."""
        self.token_B1.copy_(token_B[:, None])
        index = (self._start + position)[None]
        self.written.view(-1).index_copy_(0, index, token_B[:1])
