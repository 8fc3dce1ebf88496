"""Triton's cache of compiled kernels on disk: where it is, which errors it explains, clearing it.

An entry that was half written, or made by another driver or compiler, fails in every run until it
is removed. Only folders that are named as Triton names its entries are ever deleted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path

_ENTRY = re.compile(r"[A-Z2-7]{52}")  # a SHA-256 in base 32
# Messages of drivers and linkers about code that is damaged, or was made for another device.
_SAYS_SO = (
    "device kernel image is invalid",
    "no kernel image is available",
    "invalid ELF header",
    "wrong ELF class",
    "file too short",
)
_READING = ("/triton/runtime/cache.py", "/triton/compiler/compiler.py")
_UNREADABLE = (json.JSONDecodeError, UnicodeDecodeError, EOFError)


def folders() -> list[Path]:
    """Return the folders in which Triton keeps compiled kernels for this process."""
    named = os.environ.get("TRITON_CACHE_DIR")  # Inductor sets it to its own folder
    home = os.environ.get("TRITON_HOME") or Path.home()
    places = [Path(named)] if named else []
    return list(dict.fromkeys([*places, Path(home) / ".triton" / "cache"]))


def is_stale(errors: Iterator[BaseException]) -> bool:
    """Return True if a damaged or outdated entry of the cache explains one of the errors."""
    return any(map(_explains, errors))


def clear() -> tuple[int, int]:
    """Delete every entry of the cache; return how many there were, and their bytes."""
    entries = size = 0
    for folder in folders():
        for entry in folder.iterdir() if folder.is_dir() else ():
            if not entry.is_dir() or entry.is_symlink() or not _ENTRY.fullmatch(entry.name):
                continue
            size += sum(file.stat().st_size for file in entry.rglob("*") if file.is_file())
            shutil.rmtree(entry)
            entries += 1
    return entries, size


def _explains(error: BaseException) -> bool:
    text = str(error)
    if isinstance(error, _UNREADABLE):
        frames = traceback.extract_tb(error.__traceback__)
        return any(frame.filename.endswith(_READING) for frame in frames)
    if isinstance(error, ImportError | OSError):
        names = (text, str(getattr(error, "filename", "") or ""))
        inside = any(f"{folder}/" in name for folder in folders() for name in names)
        return inside and not isinstance(error, PermissionError)
    return type(error).__module__.startswith(("triton.", "builtins")) and any(
        words in text for words in _SAYS_SO
    )
