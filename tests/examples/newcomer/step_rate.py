"""Steps a second over time: the inverse of the rolling median of the step time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.curves import Line, Look
from workbench.charts.plot import Plot, Run
from workbench.charts.series.sources import Inverse
from workbench.charts.style import Style
from workbench.charts.units import SECONDS, Unit
from workbench.plots._steps import add_timeline, key, no_steps, rolling_of, step_table

HERTZ = Unit("Hz")


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw one line for each run."""
    plot_item.describe((SECONDS, "Time since the session began"), (HERTZ, "Step rate"))
    add_timeline(plot_item, runs, style)
    for run in runs:
        look = Look(run.title, style, HERTZ, run.color)
        plot_item.add(Line(look, _rates(run)))


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return the rate of every step."""
    columns = step_table(runs, {"step_ms": "step_ms"})
    step_ms = np.asarray(columns.pop("step_ms"), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {**columns, "steps_per_s": np.where(step_ms > 0, 1000.0 / step_ms, np.nan)}


def _rates(run: Run) -> Callable[[], list[Inverse]]:
    medians = rolling_of(run, "median")
    return lambda: [Inverse(track, 1000.0) for track in medians()]


PLOT = Plot(
    name="step_rate",
    title="Step rate",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=no_steps,
    axis="time",
    key=key,
)
