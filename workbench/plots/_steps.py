"""Shared by the plots of steps: tracks, rolling percentiles, tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from sessions.model import Phase, Segment
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.markers import Markers
from workbench.charts.layers.phases import Phases
from workbench.charts.plot import Run
from workbench.charts.series.tracks import Grid, Rolling, Track
from workbench.charts.style import Style
from workbench.charts.time_axis import Positions
from workbench.plots._gaps import Gaps
from workbench.plots._pairing import Pairing
from workbench.plots._segments import Segments, alternating


def time_column(run: Run, segment: Segment) -> str:
    """Return the column of a segment's step times: GPU events if there are any.

    The rule of ``sessions.verdicts.statistics.clock``, asked again only when the rows have doubled.
    """
    gpu_ms = segment.steps["gpu_ms"]
    return run.keep(
        (segment.index, "clock", len(gpu_ms).bit_length()),
        lambda: "gpu_ms" if np.isfinite(gpu_ms).any() else "wall_ms",
    )


def columns_of(run: Run, column: str) -> Callable[[], list[Track]]:
    """Return a column's tracks of all chosen segments; ``step_ms`` means ``time_column``."""

    def track(segment: Segment) -> Track:
        name = time_column(run, segment) if column == "step_ms" else column
        grid = run.keep((segment.index, "grid"), Grid)
        places = run.keep((segment.index, "places"), lambda: Positions(run.axis))
        return run.keep(
            (segment.index, name),
            lambda: Track(segment.steps, "t_s", name, grid=grid, places=places),
        )

    return lambda: [track(segment) for segment in run.chosen()]


def rolling_of(run: Run, which: str, x: str = "t_s") -> Callable[[], list[Track]]:
    """Return the rolling ``p5``, ``median`` or ``p95`` of every chosen segment's step time."""

    def track(segment: Segment) -> Track:
        source = rolling(run, segment)
        grid = run.keep((id(source), x, "grid"), Grid)
        on_axis = {"places": run.keep((id(source), "places"), lambda: Positions(run.axis))}
        return run.keep(
            (id(source), which, x),
            lambda: Track(
                source.columns, x, which, source.pull, grid, **(on_axis if x == "t_s" else {})
            ),
        )

    return lambda: [track(segment) for segment in run.chosen()]


def rolling(run: Run, segment: Segment) -> Rolling:
    """Return the rolling percentiles of a segment's step time, in milliseconds."""
    column = time_column(run, segment)
    return run.keep((segment.index, column, "rolling"), lambda: Rolling(segment, column))


def series(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that get a colour and a name of their own.

    A single run whose segments alternate becomes one run per segment, in the segment's colour.
    """
    if len(runs) != 1 or not alternating(runs[0]):
        return list(runs)
    (run,) = runs
    return [
        dataclasses.replace(
            run, label=run.titled(segment.title), color=segment.index, segments=(segment.index,)
        )
        for segment in run.chosen()
    ]


def key(runs: Sequence[Run]) -> object:
    """Return what ``series`` depends on besides numbers."""
    return [len(run.chosen()) if alternating(run) else 0 for run in runs]


def no_steps(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if a run has a step with a time."""
    for run in runs:
        for segment in run.chosen():
            if np.isfinite(segment.steps[time_column(run, segment)]).any():
                return None
    return "No step has been timed yet: run a model, or open a session that has steps."


def add_timeline(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Shade phases and pairs of blocks, mark segments and events, where one session is shown."""
    if len(runs) == 1:
        plot_item.add(Gaps(runs[0], style))
        plot_item.add(Phases(runs[0], style))
        plot_item.add(Pairing(runs[0], style))
        plot_item.add(Segments(runs[0], style))
        plot_item.add(Markers(runs[0], style))


def step_table(runs: Sequence[Run], columns: dict[str, str]) -> dict[str, Array]:
    """Return the rows of chosen segments: session, segment, label, time, phase, ``columns``.

    ``columns`` are step columns by the name they get.
    """
    parts: dict[str, list[Array]] = {
        name: [] for name in ("session", "segment", "label", "t_s", "phase", *columns)
    }
    titles = np.array([phase.title for phase in Phase])
    for run in runs:
        for segment in run.chosen():
            steps = segment.steps
            rows = len(steps["t_s"])
            parts["session"].append(np.full(rows, run.title, dtype=object))
            parts["segment"].append(np.full(rows, segment.index))
            parts["label"].append(np.full(rows, segment.label, dtype=object))
            parts["t_s"].append(np.array(steps["t_s"]))
            known = np.minimum(steps["phase"], len(titles) - 1)
            parts["phase"].append(titles[known].astype(object))
            for name, column in columns.items():
                source = time_column(run, segment) if column == "step_ms" else column
                parts[name].append(np.array(steps[source]))
    return {
        name: np.concatenate(arrays) if arrays else np.empty(0) for name, arrays in parts.items()
    }
