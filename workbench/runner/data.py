"""Batches: seeded synthetic tokens, the bytes of a text file, or what a family draws itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models import Family
from workbench.runner.environment import host
from workbench.runner.failures import Mistake

if TYPE_CHECKING:
    from workbench.runner.build import Build

SYNTHETIC = "synthetic"
RING = 16  # batches kept on the device, in turn, so that no step waits for the host
_FEW_TOKENS = 16

Tensors = tuple[Tensor, ...]


class Batches:
    """A ring of batches on the device, and the tensors that every step reads.

    A model is called with ``inputs``, its loss with ``inputs`` and ``targets``. Their addresses
    never change, as CUDA graphs need; ``advance`` copies the next batch into them. ``few`` are
    inputs of one call, a short one of a model of language.
    """

    def __init__(
        self,
        inputs: Tensors,
        targets: Tensors,
        few: Tensors,
        buffers: Iterable[tuple[Tensor, Tensor]],
    ) -> None:
        self.inputs, self.targets, self.few = inputs, targets, few
        self._buffers = list(buffers)  # each with its ring: one more axis, the batches
        self.advances = 0

    @property
    def place(self) -> int:
        """Which batch of the ring is current."""
        return max(0, self.advances - 1) % RING

    def tensors(self) -> list[Tensor]:
        """All that is held on the device."""
        rings = [one for pair in self._buffers for one in pair]
        return [*self.inputs, *self.targets, *self.few, *rings]

    def part(self, place: int, parts: int) -> Batches:
        """The rows of one of so many equal parts, in the same buffers."""
        inputs, targets = (
            tuple(one.chunk(parts)[place] for one in all_) for all_ in (self.inputs, self.targets)
        )
        return Batches(inputs, targets, self.few, self._buffers)

    def rewind(self) -> None:
        """Let the first batch be the next."""
        self.advances = 0

    def go_to(self, count: int) -> None:
        """Be as after ``count`` advances."""
        self.advances = max(0, count - 1)
        self.advance()
        self.advances = count

    def advance(self) -> None:
        """Make the next batch current."""
        for buffer, ring in self._buffers:
            buffer.copy_(ring[self.advances % RING])
        self.advances += 1


def make_batches(
    source: str,
    *,
    family: Family,
    config: Any,
    batch: int,
    sequence: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Batches:
    """Batches for one configuration of a family.

    ``source`` is ``"synthetic"`` or the path of a file, whose bytes are the tokens; a family that
    draws its own batches has no other source. ``dtype`` is that of the weights, which drawn inputs
    that are no integers take too. Raises ``ValueError`` with one sentence where ``source`` cannot
    serve.
    """
    generator = torch.Generator().manual_seed(seed)
    if family.draw is None:
        ring = _tokens(source, config.vocabulary, batch, sequence, generator)
        return _language(ring.to(device))
    if source != SYNTHETIC:
        raise ValueError(
            f"data: {family.name} draws its own batches, whose inputs are no text, and cannot take "
            f"{source!r}; choose {SYNTHETIC!r}"
        )
    drawn = [family.draw(config, batch, sequence, generator) for _ in range(RING)]
    inputs = [_cast(ring, dtype) for ring in _rings(inputs for inputs, _ in drawn)]
    rings = [ring.to(device) for ring in (*inputs, *_rings(targets for _, targets in drawn))]
    buffers = [ring[0].clone() for ring in rings]
    current = tuple(buffers[: len(inputs)])
    few = current  # a model of one's own may take no other size
    return Batches(current, tuple(buffers[len(inputs) :]), few, zip(buffers, rings, strict=True))


def of_build(build: Build) -> Batches:
    """The batches that an arm's steps read; raises ``Mistake`` for a source that cannot serve."""
    situation = build.situation
    configuration = situation.configuration
    try:
        return make_batches(
            configuration.data,
            family=situation.family,
            config=situation.config,
            batch=int(configuration.settings["batch"]),
            sequence=int(configuration.settings["sequence"]),
            seed=configuration.seed,
            device=situation.device,
            dtype=build.weights_dtype,
        )
    except ValueError as error:
        raise Mistake(str(error)) from None


def _rings(batches: Iterable[Tensors]) -> list[Tensor]:
    return [torch.stack(parts) for parts in zip(*batches, strict=True)]


def _cast(ring: Tensor, dtype: torch.dtype) -> Tensor:
    return ring.to(dtype) if ring.is_floating_point() else ring


def _language(ring_RBS: Tensor) -> Batches:
    # Tokens and targets are (batch, sequence) views of one buffer, one token apart.
    buffer_BS = ring_RBS[0].clone()
    tokens_BS, targets_BS = buffer_BS[:, :-1], buffer_BS[:, 1:]
    few = (tokens_BS[:1, :_FEW_TOKENS],)
    return Batches((tokens_BS,), (targets_BS,), few, [(buffer_BS, ring_RBS)])


def _tokens(
    source: str, vocabulary: int, batch: int, sequence: int, generator: torch.Generator
) -> Tensor:
    shape = (RING, batch, sequence + 1)
    if source == SYNTHETIC:
        return torch.randint(vocabulary, shape, generator=generator)
    text = _file_bytes(source, vocabulary, sequence + 1)
    starts = torch.randint(len(text) - sequence, shape[:2], generator=generator)
    return text[starts[..., None] + torch.arange(sequence + 1)].to(torch.int64)


def _file_bytes(source: str, vocabulary: int, needed: int) -> Tensor:
    try:
        path = Path(source)
        if path.exists() and not path.is_file():  # a device may never end
            raise ValueError("it is not a regular file")
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError also for a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"data: cannot read {source!r} on {host()}: {reason}") from None
    if len(content) < needed:
        raise ValueError(
            f"data: {source!r} has {len(content)} bytes; a sequence needs {needed} of them"
        )
    text = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    largest = int(text.max())
    if largest >= vocabulary:
        raise ValueError(
            f"data: {source!r} has byte {largest}, but the model's vocabulary has {vocabulary} "
            "entries; choose a vocabulary of at least 256"
        )
    return text
