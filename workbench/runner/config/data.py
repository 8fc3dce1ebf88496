"""Batches: seeded synthetic tokens, the bytes of a text file, or what a family draws itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models import Family
from workbench.runner.environment import host
from workbench.runner.failures import Mistake
from workbench.runner.structures import cast_floats, map_tensors, tensors
from workbench.runner.toggles import (
    Trait,
)

if TYPE_CHECKING:
    from workbench.runner.toggles import Situation

SYNTHETIC = "synthetic"
RING = 16  # batches kept on the device, in turn, so that no step waits for the host
_FEW_TOKENS = 16

Tensors = tuple[Any, ...]  # tensors, or structures of them


class Batches:
    """A ring of batches on the device, and the tensors that every step reads.

    A model is called with ``inputs``, its loss with ``inputs`` and ``targets``. Their addresses
    never change, as CUDA graphs need; ``advance`` copies the next batch into them. ``few`` are
    inputs of one call, a short one of a model of language.

    ``loose`` batches do not fit into such tensors: they differ in shape, or are sparse. Each of
    them stays as it is, and ``advance`` makes the next the current one.
    """

    def __init__(
        self,
        inputs: Tensors,
        targets: Tensors,
        few: Tensors,
        buffers: Iterable[tuple[Tensor, Tensor]],
        loose: Sequence[Tensors] = (),
        rows: int | None = None,
    ) -> None:
        self.inputs, self.targets, self.few = inputs, targets, few
        self._buffers = list(buffers)  # each with its ring: one more axis, the batches
        self.loose = loose
        self._rows = rows  # of every tensor that is to be divided; None: as many as it has
        self.advances = 0

    @property
    def index(self) -> int:
        """Which batch of the ring is current."""
        return max(0, self.advances - 1) % RING

    def tensors(self) -> list[Tensor]:
        """Return all dense tensors that lie on the device."""
        rings = [tensor for pair in self._buffers for tensor in pair]
        dense = tensors((self.inputs, self.targets, self.few, self.loose))
        return [*(tensor for tensor in dense if tensor.layout == torch.strided), *rings]

    def part(self, index: int, parts: int) -> Batches:
        """Return the rows of one of so many equal parts, in the same buffers.

        Raises ``Mistake`` for batches that cannot be divided by rows.
        """
        if parts == 1:
            return self
        current = tensors((self.inputs, self.targets))
        if self.loose or any(not x.ndim or len(x) != (self._rows or len(x)) for x in current):
            raise Mistake(
                f"own: batches cannot be divided among {parts} ranks unless every input is a dense "
                "tensor whose first axis is the batch, of one shape in all batches"
            )
        inputs, targets = (
            map_tensors(every, lambda x: x.chunk(parts)[index])
            for every in (self.inputs, self.targets)
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

    def following(self) -> tuple[Tensors, Tensors]:
        """Return copies of the inputs and targets of the next batch; the current one stays so."""
        count, inputs = self.advances, self.inputs
        before = [buffer.clone() for buffer, _ in self._buffers]  # a model may have changed them
        self.go_to(self.index + 2)
        batch: tuple[Tensors, Tensors] = map_tensors((self.inputs, self.targets), torch.clone)
        for (buffer, _), values in zip(self._buffers, before, strict=True):
            buffer.copy_(values)
        self.advances, self.inputs = count, inputs
        return batch

    def advance(self) -> None:
        """Make the next batch current."""
        for buffer, ring in self._buffers:
            buffer.copy_(ring[self.advances % RING])
        if self.loose:
            self.inputs = self.loose[self.advances % RING]
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
    """Return the batches for one configuration of a family.

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
    cast = [cast_floats(inputs, dtype) for inputs, _ in drawn]
    if not _can_be_stacked(cast):
        loose = [map_tensors(inputs, lambda x: x.to(device)) for inputs in cast]
        return Batches(loose[0], (), loose[0], [], loose)
    targets = [targets for _, targets in drawn]
    rings = [ring.to(device) for ring in (*_rings(cast), *_rings(targets))]
    buffers = [ring[0].clone() for ring in rings]
    unused = iter(buffers)
    current = map_tensors(cast[0], lambda _: next(unused))
    few = current  # a model of one's own may take no other size
    return Batches(current, tuple(unused), few, zip(buffers, rings, strict=True), rows=batch)


def batches_of(situation: Situation, dtype: torch.dtype) -> Batches:
    """Return the batches that an arm's steps read; raises ``Mistake`` for an unusable source."""
    configuration = situation.configuration
    try:
        batches = make_batches(
            configuration.data,
            family=situation.family,
            config=situation.config,
            batch=int(configuration.settings["batch"]),
            sequence=int(configuration.settings["sequence"]),
            seed=configuration.seed,
            device=situation.device,
            dtype=dtype,
        )
    except ValueError as error:
        raise Mistake(str(error)) from None
    if batches.loose and situation.has(Trait.CAPTURED):
        raise Mistake(
            "own: the batches of make_inputs differ in shape or are sparse, which a CUDA graph "
            "cannot replay; switch CUDA graphs off"
        )
    return batches


def _rings(batches: Sequence[Tensors]) -> list[Tensor]:
    return [torch.stack(parts) for parts in zip(*map(tensors, batches), strict=True)]


def _can_be_stacked(batches: Sequence[Tensors]) -> bool:
    """Return True if all hold dense tensors of the same shapes, and are alike in all else."""

    def kind(x: Tensor) -> tuple[Any, ...]:
        is_fake = hasattr(x, "fake_mode")  # of a step that is followed without numbers
        return Tensor if is_fake else type(x), x.layout, x.dtype, tuple(x.shape)

    first, kinds = map_tensors(batches[0], lambda _: None), list(map(kind, tensors(batches[0])))
    if any(what is not Tensor or layout != torch.strided for what, layout, *_ in kinds):
        return False
    try:
        return all(
            list(map(kind, tensors(batch))) == kinds and map_tensors(batch, lambda _: None) == first
            for batch in batches
        )
    except (RuntimeError, ValueError):  # what a batch holds cannot be compared
        return False


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
