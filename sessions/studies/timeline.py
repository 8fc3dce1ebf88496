"""The timeline of a profile: slices on tracks, modules as flames, idle gaps, statistics, search.

``of(study)`` reads the tables ``timeline``, ``labels`` and ``tracks`` that a profile stores
(``sessions.tracing.timeline``); an older profile has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sessions.columns import row_count
from sessions.model import Study
from sessions.numbers import LARGEST, Cell
from sessions.storage.study_schema import TIMELINE, has_timeline
from sessions.studies.breakdown import HOST_TRACK, LAUNCH_TRACK, STEP_TRACK, STREAM_TRACK
from sessions.tables import Column, Table

IDLE = "GPU idle"
HOST_MODULES = "Modules (CPU)"
LEAST_GAP_US = 2.0  # shorter gaps between kernels do not matter
_DEEPEST = 256  # slices in slices that a file may store
_MOST_DEPTH = 8  # rows of nested modules that are drawn
_MOST_ROWS = 200  # rows of the statistics of a range


@dataclass(frozen=True)
class Lane:
    """One line of slices, or of several nested rows; ``slices`` are rows of the timeline.

    A derived lane (modules, idle time) has its own texts and no rows of the timeline.
    """

    title: str
    kind: str  # kind of its track, "modules" or "idle"
    start: NDArray
    stop: NDArray
    depth: NDArray
    texts: Sequence[str]
    kinds: Sequence[str]
    modules: Sequence[str]
    slices: NDArray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def rows(self) -> int:
        """The number of nested rows."""
        return int(self.depth.max()) + 1 if len(self.depth) else 1


@dataclass(frozen=True)
class Statistic:
    """The work under one name in a range: times are clipped to the range, in microseconds."""

    name: str
    count: int
    total_us: float
    share: float  # share of the range

    @property
    def mean_us(self) -> float:
        """The mean time of a call."""
        return self.total_us / self.count if self.count else math.nan


class Timeline:
    """The slices of a profile in columns, by start."""

    def __init__(self, study: Study) -> None:
        table, labels, tracks = (study.tables[name] for name in TIMELINE)
        integers = {
            name: np.asarray(table[name], np.float64).astype(np.int64)
            for name in ("track", "depth", "name", "module", "launch")
        }
        self.labels = [str(text) for text in labels["text"]]
        self.kinds = [str(kind) for kind in labels["kind"]]
        self.tracks = [
            (str(title), str(kind))
            for title, kind in zip(tracks["title"], tracks["kind"], strict=True)
        ]
        self.track, self.depth = integers["track"], integers["depth"]
        self.name, self.module = integers["name"], integers["module"]
        self.launch = integers["launch"]
        self.start = np.asarray(table["t_us"], np.float64)
        self.stop = self.start + np.asarray(table["us"], np.float64)
        self.own_us = self._own_times()
        kinds = np.array([kind for _, kind in self.tracks], object)
        self._kind = kinds[self.track] if len(self.track) else np.empty(0, object)

    @property
    def end_us(self) -> float:
        """The end of the last slice."""
        return float(self.stop.max()) if len(self.stop) else 0.0

    @property
    def on_device(self) -> bool:
        """True if a GPU worked."""
        return any(kind == STREAM_TRACK for _, kind in self.tracks)

    def of_kind(self, kind: str) -> NDArray:
        """Return the rows on tracks of this kind."""
        return np.flatnonzero(self._kind == kind)

    def lanes(self) -> list[Lane]:
        """Return all lines from top to bottom: steps, host, GPU, each under its modules."""
        lanes = [self._lane(number) for number in self._numbers(STEP_TRACK)]
        lanes += self._flame(self._work_of_host(), HOST_MODULES if self.on_device else "Modules")
        lanes += [self._lane(number) for number in self._numbers(HOST_TRACK)]
        lanes += [self._lane(number) for number in self._numbers(LAUNCH_TRACK)]
        if self.on_device:
            lanes += self._flame(self.of_kind(STREAM_TRACK), "Modules")
            lanes += [self._lane(number) for number in self._numbers(STREAM_TRACK)]
            lanes += self._idle()
        return lanes

    def matching(self, text: str) -> NDArray:
        """Return for each row whether its name or its module contains the text."""
        folded = text.casefold()
        hits = np.array([folded in label.casefold() for label in self.labels], bool)
        return hits[self.name] | hits[self.module]

    def statistics(
        self, start_us: float, stop_us: float, matching: NDArray | None = None
    ) -> list[Statistic]:
        """Return the work in a range by name, the longest first.

        On a GPU, kernels count; on a CPU, the own time of operators. ``matching``: a mask of rows.
        """
        rows = self.of_kind(STREAM_TRACK) if self.on_device else self.of_kind(HOST_TRACK)
        if matching is not None:
            rows = rows[matching[rows]]
        rows = rows[(self.stop[rows] > start_us) & (self.start[rows] < stop_us)]
        width = stop_us - start_us
        if not len(rows) or width <= 0:
            return []
        inside = np.minimum(self.stop[rows], stop_us) - np.maximum(self.start[rows], start_us)
        full = self.stop[rows] - self.start[rows]
        part = np.divide(inside, full, out=np.ones_like(full), where=full > 0)
        us = part * self.own_us[rows]
        names = self.name[rows]
        counts = np.bincount(names, minlength=len(self.labels))
        totals = np.bincount(names, weights=us, minlength=len(self.labels))
        entries = [
            Statistic(self.labels[n], int(counts[n]), float(totals[n]), float(totals[n]) / width)
            for n in np.unique(names)
        ]
        return sorted(entries, key=lambda entry: -entry.total_us)

    def idle_us(self, start_us: float, stop_us: float) -> float:
        """Return how long the GPU had nothing to do in a range; NaN without a GPU."""
        if not self.on_device:
            return math.nan
        begins, ends = self._gaps()
        inside = np.minimum(ends, stop_us) - np.maximum(begins, start_us)
        return float(np.sum(np.maximum(inside, 0.0)))

    def _own_times(self) -> NDArray:
        """Return the time of each slice without the slices that are nested in it."""
        own_us = self.stop - self.start
        for track in np.unique(self.track):
            on_track = self.track == track
            for depth in range(1, int(self.depth[on_track].max(initial=0)) + 1):
                inner = np.flatnonzero(on_track & (self.depth == depth))
                outer = np.flatnonzero(on_track & (self.depth == depth - 1))
                parent = np.searchsorted(self.start[outer], self.start[inner], "right") - 1
                known = parent >= 0
                np.subtract.at(own_us, outer[parent[known]], (self.stop - self.start)[inner[known]])
        return np.maximum(own_us, 0.0)

    def _numbers(self, kind: str) -> list[int]:
        return [number for number, (_, entry) in enumerate(self.tracks) if entry == kind]

    def _lane(self, number: int) -> Lane:
        rows = np.flatnonzero(self.track == number)
        title, kind = self.tracks[number]
        return Lane(
            title,
            kind,
            self.start[rows],
            self.stop[rows],
            self.depth[rows],
            [self.labels[name] for name in self.name[rows]],
            [self.kinds[name] for name in self.name[rows]],
            [self.labels[module] for module in self.module[rows]],
            rows,
        )

    def _work_of_host(self) -> NDArray:
        """Return the outermost operators of the host."""
        rows = self.of_kind(HOST_TRACK)
        return rows[self.depth[rows] == 0]

    def _flame(self, rows: NDArray, title: str) -> list[Lane]:
        """Return the modules of consecutive work, nested as their paths are; none without any."""
        slices: list[tuple[float, float, int, str, str]] = []
        open_: list[tuple[str, float]] = []  # path and begin of the modules around the last work
        end = 0.0
        for row in rows[np.argsort(self.start[rows], kind="stable")]:
            paths = _paths(self.labels[self.module[row]])
            same, start = 0, float(self.start[row])
            while same < min(len(open_), len(paths)) and open_[same][0] == paths[same]:
                same += 1
            _close(slices, open_, same, min(end, start))  # streams may overlap
            open_ += [(path, start) for path in paths[len(open_) :]]
            end = max(end, float(self.stop[row]))
        _close(slices, open_, 0, end)
        if not slices:
            return []
        begins, ends, depths, texts, modules = zip(*slices, strict=True)
        columns = (np.array(begins), np.array(ends), np.array(depths))
        return [Lane(title, "modules", *columns, texts, [""] * len(texts), modules)]

    def _gaps(self) -> tuple[NDArray, NDArray]:
        """Return begin and end of the times between the first and the last kernel without any."""
        rows = self.of_kind(STREAM_TRACK)
        rows = rows[np.argsort(self.start[rows], kind="stable")]
        ends = np.maximum.accumulate(self.stop[rows])[:-1]
        begins = self.start[rows][1:]
        idle = begins - ends > LEAST_GAP_US
        return ends[idle], begins[idle]

    def _idle(self) -> list[Lane]:
        begins, ends = self._gaps()
        texts = [f"idle {stop - start:.1f} µs" for start, stop in zip(begins, ends, strict=True)]
        depth = np.zeros(len(begins), np.int64)
        blank = [""] * len(texts)
        return [Lane(IDLE, "idle", begins, ends, depth, texts, blank, blank)] if texts else []


def of(study: Study) -> Timeline | None:
    """Return the timeline of a profile, None if it stores none or a part of one."""
    return Timeline(study) if is_stored(study) else None


def is_stored(study: Study) -> bool:
    """Return True if a timeline is stored, and its slices have tracks, names and times."""
    if not has_timeline(study):
        return False
    slices, labels, tracks = (study.tables[name] for name in TIMELINE)
    rows, names = row_count(slices), row_count(labels)
    most = {"track": row_count(tracks), "depth": _DEEPEST + 1, "name": names,
            "module": names, "launch": rows + 1, "t_us": LARGEST, "us": LARGEST}  # fmt: skip
    return all(
        ((column >= 0) & (column < limit)).all()
        for column, limit in ((np.asarray(slices[name]), limit) for name, limit in most.items())
    )


def statistics_table(rows: Sequence[Statistic], heading: str) -> Table:
    """Return the statistics of a range as a table; ``heading`` is that of the names."""
    columns = [
        Column(heading),
        Column("Count"),
        Column("Total", "µs"),
        Column("Mean", "µs"),
        Column("Share", "%"),
    ]
    cells: list[list[Cell]] = [
        [entry.name, entry.count, entry.total_us, entry.mean_us, 100 * entry.share]
        for entry in rows[:_MOST_ROWS]
    ]
    return Table("Selected range", columns, cells)


def _paths(module: str) -> list[str]:
    """Return the paths of a module and of all modules around it, the outermost first."""
    if not module or module.startswith("("):
        return [module] if module else []
    parts = module.split(".")[:_MOST_DEPTH]
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))]


def _close(
    slices: list[tuple[float, float, int, str, str]],
    open_: list[tuple[str, float]],
    depth: int,
    end: float,
) -> None:
    """End all modules but the outermost ``depth``."""
    while len(open_) > depth:
        path, begin = open_.pop()
        name = path if path.startswith("(") else path.rpartition(".")[2]
        slices.append((begin, end, len(open_), name, path))
