"""The descriptor of a workload: its settings, and one step of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

import torch

from models import Cache, LanguageModel, Model, pieces
from sessions.model import Scalar
from workbench.protocol import Field, WorkloadInfo
from workbench.runner.batches import Batches
from workbench.runner.decoding.decoder import Decoder
from workbench.runner.decoding.rounds import Rounds

Compute = Callable[..., torch.Tensor]
Step = Callable[[], torch.Tensor]


class Updates(Protocol):
    """The part of a training step after its loss."""

    def update(self, loss: torch.Tensor) -> None:
        """Run the backward pass and the optimizer."""


@dataclass(frozen=True)
class Bench:
    """The inputs of a step. ``compute`` is the workload's own, wrapped (autocast, compile)."""

    model: Model
    batches: Batches
    settings: Mapping[str, Scalar]
    trainer: Updates | None  # None where nothing is trained
    seed: int = 0
    vocabulary: int = 0  # number of tokens; the model's head may have more rows
    compiled: bool = False  # True if torch.compile will see the computation

    @property
    def language_model(self) -> LanguageModel:
        """The model, of a workload that only families of language models have."""
        assert isinstance(self.model, LanguageModel)
        return self.model

    @functools.cached_property
    def prompt(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """The prompt in chunks, each with the position of its first token."""
        (prompt_BS,) = self.batches.inputs
        return pieces(prompt_BS, int(self.settings["chunk"]) or None)

    def prefill(self, compute: Compute) -> torch.Tensor:
        """Return the logits after the prompt, (B, 1, V), by ``compute(tokens, position)``."""
        for piece_BS, first in self.prompt:
            logits_B1V = compute(piece_BS, first) if first is not None else compute(piece_BS)
        return logits_B1V

    @functools.cached_property
    def decoder(self) -> Decoder:
        """The decode state that the parts of a workload share, in the dtype that computes."""
        (prompt_BS,) = self.batches.inputs
        new_tokens = int(self.settings["new_tokens"])
        cache = self.new_cache(len(prompt_BS), prompt_BS.shape[1] + new_tokens)
        return Decoder(self.language_model, cache, prompt_BS, new_tokens)

    def new_cache(self, batch: int, length: int) -> Cache:
        """Return an empty decode state; a compiler knows that its steps may write to it."""
        cache = self.language_model.new_cache(batch, length)
        if self.compiled:
            cache.mark_static()
        return cache


BATCH = Field(
    name="batch",
    title="Batch",
    help="Sequences per step.",
    default=4,
    minimum=1,
    maximum=65536,
)


def tokens_field(name: str, title: str, help: str) -> Field:
    """Return a field for a number of tokens of each sequence."""
    return Field(name=name, title=title, help=help, default=128, minimum=1, maximum=1048576)


CHUNK = Field(
    name="chunk",
    title="Prompt chunk",
    help=(
        "Tokens of the prompt that are processed at a time; 0 processes all at once. Smaller "
        "chunks need less memory: then only the cache limits the length of a prompt."
    ),
    default=0,
    minimum=0,
    maximum=1048576,
)


SEQUENCE = tokens_field("sequence", "Sequence", "Tokens per sequence.")
PROMPT = tokens_field("sequence", "Prompt", "Tokens in the cache before the first step.")


def _whole_sequences(settings: Mapping[str, Scalar]) -> int:
    """Return the tokens of a step on complete sequences."""
    return int(settings["batch"]) * int(settings["sequence"])


def one_token_each(settings: Mapping[str, Scalar]) -> int:
    """Return the tokens of a step that adds one token to each sequence."""
    return int(settings["batch"])


def prompt_and_new(settings: Mapping[str, Scalar]) -> int:
    """Return the longest position of a sequence that grows from a prompt."""
    return int(settings["sequence"]) + int(settings["new_tokens"])


def filled_while_decoding(settings: Mapping[str, Scalar]) -> float:
    """Return the mean share of a cache that a new token sees."""
    prompt, new = int(settings["sequence"]), int(settings["new_tokens"])
    return (prompt + (new + 1) / 2) / (prompt + new)


def filled_by_pieces(settings: Mapping[str, Scalar]) -> float:
    """Return the mean share of a cache that a piece of the prompt sees, after the first piece."""
    length, piece = int(settings["sequence"]), int(settings["chunk"])
    ends = [min(start + piece, length) for start in range(piece, length, piece or length)]
    return fmean(ends) / length if ends and piece else 1.0


def _sequence_length(settings: Mapping[str, Scalar]) -> int:
    """Return the longest position of such a step."""
    return int(settings["sequence"])


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of step.

    ``compute(bench)`` is the part that autocast and torch.compile act on. ``step(bench, compute)``
    makes the complete step of it, which a CUDA graph captures. ``tokens(settings)`` is the number
    of tokens that one step processes, and ``sequence(settings)`` the longest position of a model.
    ``filled(settings)`` is the part of a cache, 0 to 1, that tokens with a position see on average.
    ``rounds(bench, compute)`` returns the rounds of steps, and ``written_tokens(bench)`` the tokens
    that they write, as in ``Decoder.written``. The defaults are those of inference over complete
    sequences.
    """

    name: str
    title: str
    help: str
    compute: Callable[[Bench], Compute]
    step: Callable[[Bench, Compute], Step]
    trains: bool = False
    feeds: bool = True  # True if every step reads a new batch
    fields: tuple[Field, ...] = (BATCH, SEQUENCE)
    tokens: Callable[[Mapping[str, Scalar]], int] = _whole_sequences
    sequence: Callable[[Mapping[str, Scalar]], int] = _sequence_length
    filled: Callable[[Mapping[str, Scalar]], float] = lambda _: 1.0
    rounds: Callable[[Bench, Compute], Rounds] | None = None
    written_tokens: Callable[[Bench], torch.Tensor] | None = None

    @property
    def decodes(self) -> bool:
        """Return True if a step continues from a cache, with ``compute(tokens, position)``."""
        return self.rounds is not None

    def steps_to_settle(self, model: Model) -> int:
        """Return how many steps a model that adapts needs before its choices can stay."""
        adapts = self.name in ("forward", "train")  # the others have a cache
        return model.calls_to_settle() if adapts else 0

    def info(self) -> WorkloadInfo:
        """Return the workload's description for the window."""
        return WorkloadInfo(
            name=self.name, title=self.title, help=self.help.strip(), fields=list(self.fields)
        )
