"""Throughput: tokens or samples per second if the workload counts them, else steps per second.

The line is the rolling median over 41 steady steps, and the band runs from the 5th to the 95th
percentile. Both are computed from the step time: the median throughput is that of the median step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sessions.model import Segment
from workbench.charts import time_axis
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.curves import Band, Line, Look, Samples
from workbench.charts.plot import Plot, Run
from workbench.charts.series.sources import Inverse
from workbench.charts.series.tracks import Track
from workbench.charts.style import Style
from workbench.charts.units import SECONDS, STEPS_PER_SECOND, THROUGHPUTS
from workbench.plots._steps import (
    add_timeline,
    columns_of,
    key,
    no_steps,
    rolling_of,
    series,
    step_table,
)


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw samples, band and median of every run, or of every segment if they alternated."""
    counted = _counted(runs)
    unit = THROUGHPUTS.get(counted, STEPS_PER_SECOND)
    plot_item.describe((SECONDS, time_axis.TITLE), (unit, "Throughput"))
    add_timeline(plot_item, runs, style)
    shown_runs = series(runs)
    for run in shown_runs:
        name = "median of 41" if len(shown_runs) == 1 else run.title
        faint = Look("steps", style, unit, run.color, alpha=0.45)
        band = Look("5–95 %", style, unit, run.color, alpha=0.3)
        median = Look(name, style, unit, run.color, width=1.2)
        invert = _inverter(run, counted)
        samples = Samples(faint, invert(columns_of(run, "step_ms")), scales=False)
        spread = Band(band, invert(rolling_of(run, "p95")), invert(rolling_of(run, "p5")))
        samples.in_legend = spread.in_legend = len(shown_runs) == 1
        for layer in (samples, spread, Line(median, invert(rolling_of(run, "median")))):
            plot_item.add(layer)


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return every step's throughput."""
    columns = step_table(runs, {"step_ms": "step_ms"})
    counted = _counted(runs)
    factors = [
        np.full(len(segment.steps["t_s"]), _factor(segment, counted))
        for run in runs
        for segment in run.chosen()
    ]
    factor = np.concatenate(factors) if factors else np.empty(0)
    step_ms = columns.pop("step_ms").astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_second = np.where(step_ms > 0, factor / step_ms, np.nan)
    return {**columns, f"{counted}_per_s": per_second}


def _counted(runs: Sequence[Run]) -> str:
    """Return the unit of throughput that all runs share: tokens, samples, or else steps."""
    segments = [segment for run in runs for segment in run.chosen()]
    kinds = {segment.configuration.throughput_unit for segment in segments}
    is_known = all(_size(segment) > 0 for segment in segments)
    return kinds.pop() if len(kinds) == 1 and is_known else "steps"


def _size(segment: Segment) -> float:
    """Return the tokens or samples of a step; 0 if they are not known."""
    value = segment.ledger.get("tokens_per_step", 0)
    return float(value) if isinstance(value, int | float) else 0.0


def _factor(segment: Segment, counted: str) -> float:
    return 1000.0 * (1.0 if counted == "steps" else _size(segment))


def _inverter(
    run: Run, counted: str
) -> Callable[[Callable[[], list[Track]]], Callable[[], list[Inverse]]]:
    def invert(tracks: Callable[[], list[Track]]) -> Callable[[], list[Inverse]]:
        return lambda: [
            Inverse(track, _factor(segment, counted))
            for track, segment in zip(tracks(), run.chosen(), strict=True)
        ]

    return invert


PLOT = Plot(
    name="throughput",
    title="Throughput",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=no_steps,
    axis="time",
    key=key,
)
