"""The decode state of a model as a file: what a cache holds, and how much of it is filled.

One dictionary in torch's own format, read without running code from it. It is written beside its
place and renamed, so that a file is whole or absent.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models._mistake import ConfigurationError

KIND, VERSION = "decode state", 1


def write(
    path: str | Path,
    batch: int,
    length: int,
    position: int,
    tensors: Sequence[Tensor],
    beside: Mapping[str, Any] | None = None,
) -> None:
    """Save ``tensors`` and what they are of; raises ``ConfigurationError`` for a wrong position.

    Raises ``OSError`` where it cannot be written; then what was at ``path`` is still there.

    ``beside``: tensors, numbers and text that go with them.
    """
    if not 0 <= position <= length:
        raise ConfigurationError(
            f"save: position {position} is not within the cache's 0 to {length} positions"
        )
    path = Path(path)
    content = {
        "kind": KIND,
        "version": VERSION,
        "batch": batch,
        "length": length,
        "position": position,
        "tensors": [tensor.detach().cpu() for tensor in tensors],
        "beside": dict(beside or {}),
    }
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        with part.open("wb") as stream:  # of which torch would give no reason
            torch.save(content, stream)
        part.replace(path)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # the archive could not be ended after that
            raise error.__context__ from None
        raise
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class SavedState:
    """What a file holds, on the CPU."""

    path: str
    batch: int
    length: int
    position: int
    tensors: list[Tensor]
    beside: dict[str, Any]

    def fill(self, batch: int, length: int, tensors: Sequence[Tensor]) -> None:
        """Copy it into ``tensors``, in place; raises ``ConfigurationError`` before it does."""
        if (self.batch, self.length) != (batch, length):
            raise ConfigurationError(
                f"load: {self.path!r} holds a state for batch {self.batch} and "
                f"{self.length} positions, but this cache is for batch {batch} and {length}"
            )
        if len(self.tensors) != len(tensors):
            raise ConfigurationError(
                f"load: {self.path!r} holds {len(self.tensors)} tensors, but this cache has "
                f"{len(tensors)}: another model made it"
            )
        for index, (one, other) in enumerate(zip(self.tensors, tensors, strict=True)):
            if one.shape != other.shape or one.dtype != other.dtype:
                raise ConfigurationError(
                    f"load: tensor {index} of {self.path!r} is {one.dtype} {tuple(one.shape)}, but "
                    f"this cache's is {other.dtype} {tuple(other.shape)}: another model or "
                    "precision made it"
                )
        for one, other in zip(self.tensors, tensors, strict=True):
            other.copy_(one)


def read(path: str | Path) -> SavedState:
    """What ``write`` saved; raises ``ConfigurationError`` for any other file."""
    content = _content(path)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise ConfigurationError(f"load: {str(path)!r} is not a saved decode state, or is damaged")
    if content.get("version") != VERSION:
        raise ConfigurationError(
            f"load: {str(path)!r} has version {content.get('version')}, but this program reads "
            f"version {VERSION}"
        )
    return SavedState(
        path=str(path),
        batch=content["batch"],
        length=content["length"],
        position=content["position"],
        tensors=content["tensors"],
        beside=content.get("beside", {}),
    )


def _content(path: str | Path) -> Any:
    """What the file holds; None if it is of another kind or its checksums are wrong."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is None:
                return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigurationError(f"load: cannot read {str(path)!r}: {error.strerror}") from None
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, ValueError, LookupError):
        pass
    return None
