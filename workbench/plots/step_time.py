"""Time of every step: samples, rolling median, and the band from the 5th to the 95th percentile.

Median and band use the last 41 steady steps of a segment; the band begins with the twentieth step,
because 5 % of fewer steps are less than one. The axis follows the band; the corner shows how far
single samples are above it. Segments that alternate, as in a comparison, have different colours. If
a run returned to its baseline for a moment, both blocks are shaded ("pairing").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.charts import time_axis
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.curves import Band, Line, Look, Samples
from workbench.charts.plot import Plot, Run
from workbench.charts.series.tracks import Rolling
from workbench.charts.style import Style
from workbench.charts.units import MILLISECONDS, SECONDS
from workbench.plots._steps import (
    add_timeline,
    columns_of,
    key,
    no_steps,
    rolling_of,
    series,
    step_table,
    time_column,
)


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw samples, band and median of every run, or of every segment if they alternated."""
    plot_item.describe((SECONDS, time_axis.TITLE), (MILLISECONDS, "Step time"))
    add_timeline(plot_item, runs, style)
    shown_runs = series(runs)
    for run in shown_runs:
        name = "median of 41" if len(shown_runs) == 1 else run.title
        faint = Look("steps", style, MILLISECONDS, run.color, alpha=0.45)
        band = Look("5–95 %", style, MILLISECONDS, run.color, alpha=0.3)
        median = Look(name, style, MILLISECONDS, run.color, width=1.2)
        samples = Samples(faint, columns_of(run, "step_ms"), scales=False)
        spread = Band(band, rolling_of(run, "p5"), rolling_of(run, "p95"))
        samples.in_legend = spread.in_legend = len(shown_runs) == 1
        for layer in (samples, spread, Line(median, rolling_of(run, "median"))):
            plot_item.add(layer)


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return every step's time, and the rolling percentiles at every steady step."""
    columns = step_table(runs, {"step_ms": "step_ms"})
    rolled = np.full((3, len(columns["t_s"])), np.nan)
    row = 0
    for run in runs:
        for segment in run.chosen():
            rolling = Rolling(segment, time_column(run, segment), thin=False)
            rolling.pull()
            places = rolling.columns["row"] + row
            for index, which in enumerate(("p5", "median", "p95")):
                rolled[index, places] = rolling.columns[which]
            row += len(segment.steps["t_s"])
    return {
        **columns,
        "rolling_p5_ms": rolled[0],
        "rolling_median_ms": rolled[1],
        "rolling_p95_ms": rolled[2],
    }


PLOT = Plot(
    name="step_time",
    title="Step time",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=no_steps,
    axis="time",
    key=key,
)
