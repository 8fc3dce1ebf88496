"""Metrics that the model reports about itself (routing load, rank, gate), over time.

One line for each column of the metric (mean of its rows), or for each row (mean of its columns). If
there are more than eight, eight evenly spaced ones are shown. The map of the same name shows every
number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sessions.columns import Columns
from sessions.model import MetricSeries
from workbench.charts import time_axis
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.curves import Line, Look
from workbench.charts.plot import Plot, Run
from workbench.charts.series.tracks import Grid, Track
from workbench.charts.style import Style
from workbench.charts.time_axis import Positions
from workbench.charts.units import SECONDS
from workbench.plots._metrics import (
    Number,
    choices,
    chosen,
    key,
    latest,
    no_metrics,
    part,
    series_of,
    table,
)
from workbench.plots._steps import add_timeline

_MOST = 8  # lines


class _Averages:
    """A metric averaged over its columns (``lines`` "rows") or its rows, as columns by number."""

    def __init__(self, series: MetricSeries, lines: str) -> None:
        self._series = series
        self._axis = 2 if lines == "rows" else 1
        count = series.shape[0 if lines == "rows" else 1]
        self.columns = Columns({"t_s": "f8"} | {str(number): "f4" for number in range(count)})
        self.grid = Grid()

    def pull(self) -> None:
        """Add the new readings of the series."""
        row_count = self.columns.rows
        source = self._series.table
        if row_count and not isinstance(source, Columns):
            return  # read from a file, which does not grow
        t_s = source["t_s"]
        if len(t_s) > row_count:
            means = _mean(source["values"][row_count : len(t_s)], self._axis)
            batch = {str(number): means[:, number] for number in range(means.shape[1])}
            self.columns.append({"t_s": t_s[row_count:], **batch})


def draw(
    plot_item: Canvas,
    runs: Sequence[Run],
    style: Style,
    *,
    metric: str = "",
    lines: str = "columns",
) -> None:
    """Draw up to eight lines for each run."""
    name = chosen(runs, metric)
    series = latest(runs, name)
    lines = _resolved(lines, series)
    unit = Number(series.unit)
    plot_item.describe((SECONDS, time_axis.TITLE), (unit, series.title))
    add_timeline(plot_item, runs, style)
    count, averaged = series.shape if lines == "rows" else series.shape[::-1]
    noun, other = (series.row, series.column) if lines == "rows" else (series.column, series.row)
    numbers = np.unique(np.linspace(0, count - 1, min(count, _MOST)).round().astype(int)).tolist()
    notes = [plot_item.header.subtitle, series.title]
    notes += [f"{len(numbers)} of {count}"] * (count > len(numbers))
    notes += [f"mean over {averaged} {other or 'values'}s"] * (averaged > 1)
    plot_item.header.subtitle = ", ".join(filter(None, notes))
    color = 0
    for run in runs:
        session = f"{run.title} " if len(runs) > 1 else ""
        for number in numbers:
            label = series.title if count == 1 else part(noun, number, "row")
            appearance = Look(session + label, style, unit, color, dash=color)
            plot_item.add(Line(appearance, _tracks(run, name, lines, number)))
            color += 1


def _resolved(lines: str, series: MetricSeries) -> str:
    """Return "rows" or "columns": the requested one unless the metric has only one of it."""
    rows, columns = series.shape
    return "columns" if columns > 1 and (rows == 1 or lines == "columns") else "rows"


def _tracks(run: Run, name: str, lines: str, number: int) -> Callable[[], list[Track]]:
    def averages(segment: int, series: MetricSeries) -> _Averages:
        return run.keep((segment, name, lines), lambda: _Averages(series, lines))

    def track(segment: int, series: MetricSeries) -> Track:
        source = averages(segment, series)
        places = run.keep((segment, name, "places"), lambda: Positions(run.axis))
        return run.keep(
            (segment, name, lines, number),
            lambda: Track(source.columns, "t_s", str(number), source.pull, source.grid, places),
        )

    return lambda: [
        track(segment.index, series)
        for segment, series in series_of(run, name)
        if number < series.shape[0 if lines == "rows" else 1]
    ]


def _mean(values: Array, axis: int) -> Array:
    """Return the mean of the finite numbers; NaN if there is none."""
    known = np.isfinite(values)
    total = np.where(known, values, 0).sum(axis, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return (total / known.sum(axis)).astype(np.float32)


PLOT = Plot(
    name="model_metrics",
    title="Model metrics",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=no_metrics,
    axis="time",
    options={"lines": ("columns", "rows")},
    choices_in=choices,
    key=key,
)
