"""Token data: seeded synthetic tokens, or the bytes of a text file."""

from __future__ import annotations

from pathlib import Path

import torch

SYNTHETIC = "synthetic"
RING = 16  # batches kept on the device, in turn, so that no step waits for the host


class Batches:
    """A ring of batches on the device, and the fixed buffer that every step reads.

    ``tokens`` and ``targets`` are (batch, sequence) int64 views of one buffer, whose address never
    changes, as CUDA graphs need; ``advance`` copies the next batch into it.
    """

    def __init__(self, ring_RBS: torch.Tensor) -> None:
        self._ring = ring_RBS
        self._buffer = ring_RBS[0].clone()
        self._next = 0
        self.tokens = self._buffer[:, :-1]
        self.targets = self._buffer[:, 1:]

    def advance(self) -> None:
        """Make the next batch current."""
        self._buffer.copy_(self._ring[self._next])
        self._next = (self._next + 1) % len(self._ring)


def make_batches(
    source: str, *, vocab_size: int, batch: int, sequence: int, seed: int, device: torch.device
) -> Batches:
    """Batches of ``source``: ``"synthetic"`` or the path of a file, whose bytes are the tokens.

    Raises ``ValueError`` with one sentence where the file cannot serve.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (RING, batch, sequence + 1)
    if source == SYNTHETIC:
        ring = torch.randint(vocab_size, shape, generator=generator)
    else:
        text = _file_bytes(source, vocab_size, sequence + 1)
        starts = torch.randint(len(text) - sequence, shape[:2], generator=generator)
        ring = text[starts[..., None] + torch.arange(sequence + 1)].to(torch.int64)
    return Batches(ring.to(device))


def _file_bytes(source: str, vocab_size: int, needed: int) -> torch.Tensor:
    try:
        path = Path(source)
        if path.exists() and not path.is_file():  # a device may never end
            raise ValueError("it is not a regular file")
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError also for a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"data: cannot read {source!r}: {reason}") from None
    if len(content) < needed:
        raise ValueError(
            f"data: {source!r} has {len(content)} bytes; a sequence needs {needed} of them"
        )
    text = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    largest = int(text.max())
    if largest >= vocab_size:
        raise ValueError(
            f"data: {source!r} has byte {largest}, but the model's vocabulary has {vocab_size} "
            "entries; choose a vocabulary of at least 256"
        )
    return text
