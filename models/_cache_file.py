"""The decode state of a model as a file: what a cache holds, and how much of it is filled.

One dictionary in torch's own format, read without running code from it. It is written beside its
place and renamed, so that a file is whole or absent.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models._mistake import ConfigurationError

KIND, VERSION = "decode state", 1


def write(
    path: str | Path, batch: int, length: int, position: int, tensors: Sequence[Tensor]
) -> None:
    """Save ``tensors`` and what they are of; raises ``ConfigurationError`` for a wrong position."""
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
    }
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        torch.save(content, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(path: str | Path, batch: int, length: int, tensors: Sequence[Tensor]) -> int:
    """Fill ``tensors`` in place and return the position; see ``Cache.load``."""
    content = _content(path)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise ConfigurationError(f"load: {str(path)!r} is not a saved decode state, or is damaged")
    if content.get("version") != VERSION:
        raise ConfigurationError(
            f"load: {str(path)!r} has version {content.get('version')}, but this program reads "
            f"version {VERSION}"
        )
    saved = content["tensors"]
    if (content["batch"], content["length"]) != (batch, length):
        raise ConfigurationError(
            f"load: {str(path)!r} holds a state for batch {content['batch']} and "
            f"{content['length']} positions, but this cache is for batch {batch} and {length}"
        )
    if len(saved) != len(tensors):
        raise ConfigurationError(
            f"load: {str(path)!r} holds {len(saved)} tensors, but this cache has {len(tensors)}: "
            "another model made it"
        )
    for index, (one, other) in enumerate(zip(saved, tensors, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise ConfigurationError(
                f"load: tensor {index} of {str(path)!r} is {one.dtype} {tuple(one.shape)}, but "
                f"this cache's is {other.dtype} {tuple(other.shape)}: another model or precision "
                "made it"
            )
    for one, other in zip(saved, tensors, strict=True):
        other.copy_(one)
    return int(content["position"])


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
