"""Where tuned tiles are kept: a file for each kernel, by GPU and versions of torch and Triton.

Under ``$XDG_CACHE_HOME/workbench/tiles`` (``~/.cache`` where that is not set). The name of a file
holds a hash of the kernel's source, so that a changed kernel is tuned again. A file is written
whole and renamed, by one process at a time, which adds to what others have written; one that cannot
be read counts as empty, and the reason is logged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kernels._triton import triton

FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timed:
    """A tile that was the fastest, and the medians of its time and of the heuristic's, us."""

    tile: tuple[int, ...]
    us: float
    heuristic_us: float


def folder() -> Path:
    """Where the files of all GPUs are kept: in no folder that there is, for a user without one."""
    try:
        home = Path.home()
    except RuntimeError:
        home = Path("/nonexistent")
    cache = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(cache) / "workbench" / "tiles"


def path(gpu: str, name: str, kernels: tuple[Any, ...]) -> Path:
    """The file of the kernels that are tuned together under ``name``."""
    versions = f"torch-{torch.__version__}-triton-{triton.__version__}"
    where = re.sub(r"[^\w.+]+", "-", f"{gpu}-{versions}")
    return folder() / where / f"{name}-{_source(kernels)}.json"


def _source(kernels: tuple[Any, ...]) -> str:
    """A hash of the source of jitted functions, and of all that they call."""
    keys = "".join(kernel.cache_key for kernel in kernels)
    return hashlib.sha256(keys.encode()).hexdigest()[:16]


def load(file: Path) -> dict[str, Timed]:
    """The tiles in a file by key; none, and the reason in the log, where it cannot be read."""
    try:
        return _decode(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        _log.warning("%s is ignored, and what it held is tuned again: %s", file, reason)
        return {}


def add(file: Path, key: str, timed: Timed) -> str:
    """Put one tile beside those that the file holds; why it cannot, in a clause, or nothing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _alone(file):
            whole = load(file) | {key: timed}
            _write(file, whole)
    except OSError as error:
        why = f"{file.parent} cannot be written ({error.strerror})"
        return f"{why}; set XDG_CACHE_HOME to a folder that can be, or it is tuned again next time"
    return ""


def _decode(content: bytes) -> dict[str, Timed]:
    whole = json.loads(content)
    if whole["format"] != FORMAT:
        raise ValueError(f"format {whole['format']!r}, expected {FORMAT}")
    return {
        key: Timed(
            tuple(int(size) for size in entry["tile"]),
            float(entry["us"]),
            float(entry["heuristic_us"]),
        )
        for key, entry in whole["tiles"].items()
    }


def _write(file: Path, tiles: dict[str, Timed]) -> None:
    whole = {"format": FORMAT, "tiles": {key: asdict(timed) for key, timed in tiles.items()}}
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.write_text(json.dumps(whole, indent=1))
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Keep other processes from adding to the file meanwhile."""
    import fcntl  # where Triton runs there is one

    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
