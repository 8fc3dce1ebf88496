"""Batches: seeded synthetic tokens, the bytes of a text file, or what a family draws itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models import Family
from workbench.runner.batches import RING, SYNTHETIC, Batches, Tensors, leaf_copy
from workbench.runner.environment import host
from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.loading import LoadedBatches, Loading, TextWindows
from workbench.runner.structures import cast_floats, map_tensors, tensors

_FEW_TOKENS = 16


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
    loading: Loading | None = None,
) -> Batches:
    """Return the batches for one configuration of a family.

    ``source`` is ``"synthetic"`` or the path of a file, whose bytes are the tokens; a family that
    draws its own batches has no other source. ``dtype`` is that of the weights, which drawn inputs
    that are no integers take too. With ``loading`` each step reads its batch from the file. Raises
    ``ValueError`` with one sentence where ``source`` cannot serve.
    """
    generator = torch.Generator().manual_seed(seed)
    if family.draw is None:
        shape = (RING, batch, sequence + 1)
        if source == SYNTHETIC:
            return _language(
                torch.randint(config.vocabulary, shape, generator=generator).to(device)
            )
        text = _file_bytes(source, config.vocabulary, sequence + 1)
        starts = torch.randint(len(text) - sequence, shape[:2], generator=generator)
        ring = text[starts[..., None] + torch.arange(sequence + 1)].to(torch.int64)
        if loading is None:
            return _language(ring.to(device))
        windows = TextWindows(Path(source), starts, sequence + 1, config.vocabulary)
        return _language(ring[:1].to(device), LoadedBatches(windows, RING, loading))
    if source != SYNTHETIC:
        raise ValueError(
            f"data: {family.name} generates its own inputs, which are not text, so it cannot read "
            f"{source!r}; choose {SYNTHETIC!r}"
        )
    draw = family.draw
    drawn = [draw(config, batch, sequence, generator) for _ in range(RING)]
    cast = [cast_floats(inputs, dtype) for inputs, _ in drawn]
    if not _can_be_stacked(cast):
        loose = [map_tensors(inputs, lambda x: x.to(device)) for inputs in cast]
        first = map_tensors(loose[0], leaf_copy)
        return Batches(first, (), first, [], loose)
    targets = [targets for _, targets in drawn]
    rings = [ring.to(device) for ring in (*_rings(cast), *_rings(targets))]
    buffers = [ring[0].clone() for ring in rings]
    for buffer, example in zip(buffers, tensors((cast[0], targets[0])), strict=True):
        buffer.requires_grad_(example.requires_grad)
    unused = iter(buffers)
    current = map_tensors(cast[0], lambda _: next(unused))
    few = current  # the user's own model may support no other size
    return Batches(
        current,
        tuple(unused),
        few,
        zip(buffers, rings, strict=True),
        rows=batch,
        draw_larger=lambda: draw(config, batch + 1, sequence, torch.Generator().manual_seed(seed)),
    )


def batches_of(situation: Situation, dtype: torch.dtype, loading: Loading | None = None) -> Batches:
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
            loading=loading,
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
    return [_stack(parts) for parts in zip(*map(tensors, batches), strict=True)]


def _stack(parts: Sequence[Tensor]) -> Tensor:
    """Stack tensors in the memory layout of the first tensor, for example channels last."""
    like = torch.empty_like(parts[0])
    ring = like.new_empty_strided((len(parts), *like.shape), (like.numel(), *like.stride()))
    for row, part in zip(ring, parts, strict=True):
        row.copy_(part.detach())
    return ring


def _can_be_stacked(batches: Sequence[Tensors]) -> bool:
    """Return True if all batches hold dense tensors of the same shapes and are otherwise equal."""

    def kind(x: Tensor) -> tuple[Any, ...]:
        is_fake = hasattr(x, "fake_mode")
        return Tensor if is_fake else type(x), x.layout, x.dtype, tuple(x.shape)

    first, kinds = map_tensors(batches[0], lambda _: None), list(map(kind, tensors(batches[0])))
    if any(
        tensor_type is not Tensor or layout != torch.strided for tensor_type, layout, *_ in kinds
    ):
        return False
    try:
        return all(
            list(map(kind, tensors(batch))) == kinds and map_tensors(batch, lambda _: None) == first
            for batch in batches
        )
    except (RuntimeError, ValueError):  # objects in a batch cannot be compared
        return False


def _language(ring_RBS: Tensor, loaded: LoadedBatches | None = None) -> Batches:
    # Tokens and targets are (batch, sequence) views of one buffer, one token apart.
    buffer_BS = ring_RBS[0].clone()
    tokens_BS, targets_BS = buffer_BS[:, :-1], buffer_BS[:, 1:]
    few = (tokens_BS[:1, :_FEW_TOKENS],)
    return Batches((tokens_BS,), (targets_BS,), few, [(buffer_BS, loaded or ring_RBS)])


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
            f"data: a sequence needs {needed} bytes, but the size of {source!r} is {len(content)}"
        )
    text = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    largest = int(text.max())
    if largest >= vocabulary:
        raise ValueError(
            f"data: {source!r} has byte {largest}, but the model's vocabulary has {vocabulary} "
            "entries; choose a vocabulary of at least 256"
        )
    return text
