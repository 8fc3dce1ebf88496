"""Reader of the recordings of a script's processes, while they write them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from workbench.instrument.recording import NEWEST_SUFFIX, STEP, STOPPED, SUFFIX

Entry = dict[str, Any]
LONGEST_READ = 1 << 22  # bytes of one file at once


class Reader:
    """The recordings in a folder; that of the first process that steps is the script's.

    Ranks above 0 never are. ``imported_torch``: some process did. ``explicit``: some process marks
    its steps.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._rests: dict[Path, bytes] = {}
        self._waiting: dict[Path, list[Entry]] = {}  # entries of processes that have not stepped
        self._main: Path | None = None
        self._first_ns: dict[Path, int] = {}  # when a process began its first step
        self._last_ns = 0  # when the last step that was read ended
        self._ranks: set[Path] = set()  # files of ranks above 0
        self.imported_torch = self.explicit = False

    @property
    def left_out(self) -> int:
        """Number of processes whose steps are left out."""
        return len(self._first_ns.keys() - {self._main})

    def read(self) -> list[Entry]:
        """Return the new entries of the script's process, in order, until the recording stopped."""
        new: list[Entry] = []
        entries_of = {
            path: self._new_entries(path) for path in sorted(self._folder.glob(f"*{SUFFIX}"))
        }
        for path, entries in entries_of.items():
            self.imported_torch |= any("torch" in entry for entry in entries)
            self.explicit |= any("explicit" in entry for entry in entries)
            if any(entry.get("rank", "0") not in ("", "0") for entry in entries):
                self._ranks.add(path)
            for row in (row for entry in entries for row in entry.get("rows", [])):
                self._first_ns.setdefault(path, row[1] if row[0] == "compile" else row[0])
        if self._main is None:
            stepped = self._first_ns.keys() - self._ranks
            self._main = min(stepped, key=self._first_ns.__getitem__, default=None)
        for path, entries in entries_of.items():
            if path == self._main:
                new += self._waiting.pop(path, []) + entries
            elif self._main is None and path not in self._ranks:
                self._waiting.setdefault(path, []).extend(entries)
        for row in (row for entry in new for row in entry.get("rows", [])):
            if row[0] != "compile":
                self._last_ns = max(self._last_ns, row[1])
        return self._until_stopped(new)

    def read_newest(self) -> list[Entry]:
        """Return the last steps of a process that was ended before it wrote them to its file.

        Their time on the GPU is unknown.
        """
        if self._main is None:
            return []
        with contextlib.suppress(OSError):
            content = self._main.with_suffix(NEWEST_SUFFIX).read_bytes()
            content = content[: len(content) // STEP.size * STEP.size]
            steps = sorted(step for step in STEP.iter_unpack(content) if step[1] > self._last_ns)
            return self._until_stopped([{"rows": [[*step, None] for step in steps]}])
        return []

    def _until_stopped(self, entries: list[Entry]) -> list[Entry]:
        """Return entries without what was recorded after the recording had stopped."""
        stop_ns = number_in(self._folder / STOPPED)  # read after the entries, which may be later
        return entries if stop_ns is None else [_before(entry, stop_ns) for entry in entries]

    def _new_entries(self, path: Path) -> list[Entry]:
        """Return the lines that were finished since the last call."""
        offset = self._offsets.get(path, 0)
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(offset)
            read = file.read(LONGEST_READ)
            self._offsets[path] = offset + len(read)
            *lines, self._rests[path] = (self._rests.get(path, b"") + read).split(b"\n")
            return [entry for line in lines if isinstance(entry := _decoded(line), dict)]
        return []


def number_in(path: Path) -> int | None:
    """Return the number that a file of the recording holds; None if there is no such file."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _before(entry: Entry, stop_ns: int) -> Entry:
    """Return an entry without the steps, compiles and values that ended after ``stop_ns``."""
    if entry.get("at_ns", 0) > stop_ns:
        return {}
    if "rows" not in entry:
        return entry
    rows = [row for row in entry["rows"] if row[2 if row[0] == "compile" else 1] <= stop_ns]
    return {**entry, "rows": rows}


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # a process was killed in the middle of it
        return None
