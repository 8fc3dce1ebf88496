"""Time what is done with sessions of a million steps: run this file as a script.

Prints one row for each operation: wall time and this process's CPU time (median of the rounds), and
what it must stay under. The exit status is 1 if one of them does not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from sessions.model import Configuration, Phase, Segment, Session
from sessions.storage import hdf5
from sessions.tables import Column, Table, segments_table
from sessions.verdicts.comparison import compare
from sessions.verdicts.statistics import rolling, step_ms

COMPARED = 10


def session(steps: int, seed: int) -> Session:
    """Return steps of about 10 ms with right-skewed noise, and allocations that vary a little."""
    rng = np.random.default_rng(seed)
    wall_ms = (10 + rng.gamma(2, 0.05, steps)).astype("f4")
    columns = {
        "t_s": np.cumsum(wall_ms.astype("f8")) / 1e3,
        "gpu_ms": (wall_ms - 0.2 + rng.normal(0, 0.01, steps)).astype("f4"),
        "wall_ms": wall_ms,
        "allocated": 1.5e9 + 512.0 * rng.integers(0, 3, steps),
        "reserved": np.full(steps, 2e9),
        "peak": np.full(steps, 1.9e9),
        "phase": np.full(steps, Phase.STEADY, "u1"),
        "block": np.zeros(steps, "i4"),
    }
    configuration = Configuration(family="hydra", preset="tiny", seed=seed)
    segment = Segment(0, configuration, "steady", steps=columns)
    return Session(title=f"session {seed}", segments=[segment])


def open_to_first_columns(path: Path) -> None:
    """Read what a chart of step time needs."""
    steps = hdf5.load(path).segments[0].steps
    for name in ("t_s", "gpu_ms", "wall_ms", "phase"):
        steps[name]


def without_seal(path: Path, target: Path) -> None:
    """Write the same content as another program would."""
    with h5py.File(path) as old, h5py.File(target, "w", libver="v110") as new:
        for name, value in old.attrs.items():
            if name != "sealed":
                new.attrs[name] = value
        for name in old:
            old.copy(name, new)


def timed(action: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median wall and CPU seconds."""
    walls, processors = [], []
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        action()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return statistics.median(walls), statistics.median(processors)


def main() -> int:
    """Run all of it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.h5" for number in range(COMPARED)]
        first = session(options.steps, 0)
        unsealed = Path(folder) / "unsealed.h5"
        for number, path in enumerate(paths):
            hdf5.save(session(options.steps, number), path)
        without_seal(paths[0], unsealed)
        series = step_ms(first.segments[0])
        actions: list[tuple[str, Callable[[], object], float | None]] = [
            ("save", lambda: hdf5.save(first, paths[0]), 1.0),
            ("open, no column read", lambda: hdf5.load(paths[0]), 0.5),
            ("open to first columns", lambda: open_to_first_columns(paths[0]), 1.0),
            ("open, file of another program", lambda: hdf5.load(unsealed), None),
            ("change the title", lambda: hdf5.update_notes(paths[0], title="new"), None),
            ("segments table", lambda: segments_table(first), None),
            ("rolling median and percentiles", lambda: rolling(series, 501), None),
            (
                f"open and compare {COMPARED}",
                lambda: compare([hdf5.load(path) for path in paths]),
                5.0,
            ),
        ]
        results = [(name, *timed(action, options.rounds), limit) for name, action, limit in actions]
        size_mb = paths[0].stat().st_size / 1e6
    columns = [Column("operation"), Column("wall", "s"), Column("CPU", "s"), Column("limit", "s")]
    title = f"Sessions of {options.steps:,} steps ({size_mb:.1f} MB a file)"
    sys.stdout.write(Table(title, columns, results).to_markdown())
    return int(any(limit is not None and wall >= limit for _, wall, _, limit in results))


if __name__ == "__main__":
    sys.exit(main())
