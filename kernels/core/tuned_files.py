"""Files of tuned tiles: one for each kernel, by GPU and versions of torch and Triton.

They are in the user's cache folder, on Linux ``$XDG_CACHE_HOME/workbench/tiles`` (``~/.cache`` if
that is not set). The name of a
file contains a hash of the kernel's source, so that a changed kernel is tuned again. A file is
replaced atomically, by one process at a time, which adds to what others have written. A file that
cannot be read counts as empty, and the reason is logged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch
from filelock import FileLock

from kernels.core.triton_helpers import triton

FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timed:
    """Fastest tile, with the median times of it and of the heuristic's tile in microseconds."""

    tile: tuple[int, ...]
    us: float
    heuristic_us: float


def folder() -> Path:
    """Return the folder for all GPUs; one that does not exist for a user without a home."""
    try:
        path = platformdirs.user_cache_path("workbench", appauthor=False) / "tiles"
    except RuntimeError:  # of later versions of platformdirs; earlier ones keep the "~"
        return Path("/nonexistent/.cache/workbench/tiles")
    return Path("/nonexistent", *path.parts[1:]) if path.parts[0] == "~" else path


def path(gpu: str, name: str, kernels: tuple[Any, ...]) -> Path:
    """Return the file of the kernels that are tuned together under ``name``."""
    versions = f"torch-{torch.__version__}-triton-{triton.__version__}"
    where = re.sub(r"[^\w.+]+", "-", f"{gpu}-{versions}")
    return folder() / where / f"{name}-{_source(kernels)}.json"


def _source(kernels: tuple[Any, ...]) -> str:
    """Hash the source of jitted functions and of all functions that they call."""
    keys = "".join(kernel.cache_key for kernel in kernels)
    return hashlib.sha256(keys.encode()).hexdigest()[:16]


def load(file: Path) -> dict[str, Timed]:
    """Read the tiles of a file by key; return none, and log the reason, if it is unreadable."""
    try:
        return _decode(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        _log.warning("%s is ignored, and what it held is tuned again: %s", file, reason)
        return {}


def add(file: Path, key: str, timed: Timed) -> str:
    """Add one tile to the file; return why that is impossible, in a clause, or ""."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            tiles = load(file) | {key: timed}
            _write(file, tiles)
    except OSError as error:
        why = f"{file.parent} cannot be written ({error.strerror})"
        return f"{why}; set XDG_CACHE_HOME to a folder that can be, or it is tuned again next time"
    return ""


def _decode(content: bytes) -> dict[str, Timed]:
    document = json.loads(content)
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']!r}, expected {FORMAT}")
    return {
        key: Timed(
            tuple(int(size) for size in entry["tile"]),
            float(entry["us"]),
            float(entry["heuristic_us"]),
        )
        for key, entry in document["tiles"].items()
    }


def _write(file: Path, tiles: dict[str, Timed]) -> None:
    document = {"format": FORMAT, "tiles": {key: asdict(timed) for key, timed in tiles.items()}}
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.write_text(json.dumps(document, indent=1))
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
