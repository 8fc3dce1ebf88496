"""Files of tuned tiles and measured choices, by GPU and versions of torch and Triton.

They are in the user's cache folder, on Linux ``$XDG_CACHE_HOME/workbench/tiles`` (``~/.cache`` if
that is not set): one file for each kernel or operator. The name of a file contains a hash of the
source, so that a changed kernel is timed again. A file is replaced atomically, by one process at a
time, which adds to what others have written. A file that cannot be read counts as empty, and the
reason is logged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import platformdirs
import torch
from filelock import FileLock, Timeout

from kernels.core.triton_helpers import triton

FORMAT = 1
LOCK_S = 10.0  # a writer takes milliseconds; a lock may stay behind on a network drive
Entry = TypeVar("Entry")
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
    except RuntimeError:  # newer versions of platformdirs raise; older ones keep the "~"
        return Path("/nonexistent/.cache/workbench/tiles")
    return Path("/nonexistent", *path.parts[1:]) if path.parts[0] == "~" else path


def path(gpu: str, name: str, kernels: tuple[Any, ...]) -> Path:
    """Return the file of the kernels that are tuned together under ``name``."""
    return of_source(gpu, name, "".join(kernel.cache_key for kernel in kernels))


def of_source(gpu: str, name: str, source: str) -> Path:
    """Return the file of ``name`` for this text of its source."""
    versions = f"torch-{torch.__version__}-triton-{getattr(triton, '__version__', 'none')}"
    folder_name = re.sub(r"[^\w.+]+", "-", f"{gpu}-{versions}")
    return (
        folder() / folder_name / f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:16]}.json"
    )


def timed_tile(entry: dict[str, Any]) -> Timed:
    """Return a tile as a file holds it; raises an error if the entry is damaged."""
    tile = tuple(int(size) for size in entry["tile"])
    return Timed(tile, float(entry["us"]), float(entry["heuristic_us"]))


def load(file: Path) -> dict[str, Timed]:
    """Read the tiles of a file by key; return none, and log the reason, if it is unreadable."""
    return load_table(file, "tiles", timed_tile)


def load_table(
    file: Path, table: str, decode: Callable[[dict[str, Any]], Entry]
) -> dict[str, Entry]:
    """Read any table of a file like ``load``; ``decode`` raises an error if an entry is damaged."""
    try:
        document = json.loads(file.read_bytes())
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}, expected {FORMAT}")
        return {key: decode(entry) for key, entry in document[table].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        _log.warning("%s is ignored, and its entries will be timed again: %s", file, reason)
        return {}


def add(file: Path, key: str, timed: Timed) -> str:
    """Add one tile to the file; return why that is impossible, in a clause, or ""."""
    return add_entry(file, "tiles", key, timed, timed_tile)


def add_entry(
    file: Path, table: str, key: str, entry: Entry, decode: Callable[[dict[str, Any]], Entry]
) -> str:
    """Add an entry, a dataclass, to any table of a file like ``add``."""
    lock = file.with_suffix(".lock")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=LOCK_S):
            entries = load_table(file, table, decode) | {key: entry}
            written = {name: asdict(value) for name, value in entries.items()}  # type: ignore[call-overload]
            _write(file, {"format": FORMAT, table: written})
    except Timeout:
        why = f"another process has locked {lock} for {LOCK_S:g} s"
        return f"{why}; remove that file if no process uses it, or it is timed again next time"
    except (OSError, NotImplementedError) as error:  # the latter without locks, by filelock 3.16
        why = f"{file.parent} cannot be written ({getattr(error, 'strerror', None) or error})"
        return f"{why}; set XDG_CACHE_HOME to a writable folder, or it is timed again next time"
    return ""


def _write(file: Path, document: dict[str, Any]) -> None:
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.write_text(json.dumps(document, indent=1))
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
