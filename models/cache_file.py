"""Decode state of a model as a file: the tensors of a cache, and how much of it is filled.

One dictionary in torch's own format, read without running code from it. It is written next to its
destination and renamed, so that a file is complete or absent.
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

from models.errors import ConfigurationError

KIND, VERSION = "decode state", 1


def write(
    path: str | Path,
    batch: int,
    length: int,
    position: int,
    tensors: Sequence[Tensor],
    beside: Mapping[str, Any] | None = None,
) -> None:
    """Save ``tensors`` and their sizes; raises ``ConfigurationError`` for a wrong position.

    Raises ``OSError`` if it cannot be written; the previous file at ``path`` is then still there.
    ``beside``: tensors, numbers and text that are stored with them.
    """
    if not 0 <= position <= length:
        raise ConfigurationError(
            f"save: position {position} is outside of 0 to {length}, the positions of the cache"
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
        with part.open("wb") as stream:  # torch would give no reason for a failure
            torch.save(content, stream)
        part.replace(path)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # the archive could not be closed after that
            raise error.__context__ from None
        raise
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class SavedState:
    """Content of a file, on the CPU."""

    path: str
    batch: int
    length: int
    position: int
    tensors: list[Tensor]
    beside: dict[str, Any]

    def fill(self, batch: int, length: int, tensors: Sequence[Tensor]) -> None:
        """Copy into ``tensors``, in place; raises ``ConfigurationError`` before it changes any."""
        if (self.batch, self.length) != (batch, length):
            raise ConfigurationError(
                f"load: {self.path!r} holds a state for batch {self.batch} and length "
                f"{self.length}, but this cache is for batch {batch} and length {length}"
            )
        if len(self.tensors) != len(tensors):
            raise ConfigurationError(
                f"load: {self.path!r} has {len(self.tensors)} as its number of tensors, but this "
                f"cache has {len(tensors)}: it is from another model"
            )
        for index, (saved, current) in enumerate(zip(self.tensors, tensors, strict=True)):
            if saved.shape != current.shape or saved.dtype != current.dtype:
                raise ConfigurationError(
                    f"load: tensor {index} of {self.path!r} is {saved.dtype} {tuple(saved.shape)}, "
                    f"but this cache's is {current.dtype} {tuple(current.shape)}: it is from "
                    "another model or precision"
                )
        for saved, current in zip(self.tensors, tensors, strict=True):
            current.copy_(saved)


def read(path: str | Path) -> SavedState:
    """Read a file of ``write``; raises ``ConfigurationError`` for any other file."""
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
    """Return the file's content; None if it is of another kind or its checksums are wrong."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is None:
                return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigurationError(f"load: cannot read {str(path)!r}: {error.strerror}") from None
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, ValueError, LookupError):
        pass
    return None
