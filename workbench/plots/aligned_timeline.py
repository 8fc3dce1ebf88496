"""Step times of several sessions from their first steady step on, by time or by step number.

By time, a faster session ends sooner. By step, equal step numbers have the same position, so that
warm-up, drift and periodic delays can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sessions.model import Segment
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.curves import Band, Line, Look
from workbench.charts.plot import Plot, Run
from workbench.charts.series.sources import Moved
from workbench.charts.series.tracks import Rolling
from workbench.charts.style import Style
from workbench.charts.units import MILLISECONDS, SECONDS, STEPS
from workbench.plots._steps import no_steps, rolling, rolling_of, time_column

_BANDS = 4  # more than these many bands over one another hide what they should show


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, align: str = "time") -> None:
    """Draw the rolling median of every run, with its band if there are few runs."""
    if align == "step":
        x_axis = (STEPS, "Steady steps since the first")
    else:
        x_axis = (SECONDS, "Time since the first steady step")
    plot_item.describe(x_axis, (MILLISECONDS, "Step time"))
    plot_item.pad_x = 0.01
    for run in runs:
        if len(runs) <= _BANDS:
            band = Look(f"{run.title} 5–95 %", style, MILLISECONDS, run.color, alpha=0.18)
            layer = Band(band, _aligned(run, "p5", align), _aligned(run, "p95", align))
            layer.in_legend = False
            plot_item.add(layer)
        appearance = Look(run.title, style, MILLISECONDS, run.color)
        plot_item.add(Line(appearance, _aligned(run, "median", align)))


def table(runs: Sequence[Run], *, align: str = "time") -> dict[str, Array]:
    """Return the rolling median, 5th and 95th percentile at every steady step's aligned x."""
    x_column = "steady_step" if align == "step" else "aligned_s"
    names = ("p5", "median", "p95")
    parts: dict[str, list[Array]] = {
        name: [np.empty(0)]
        for name in ("session", "segment", x_column, *(f"rolling_{name}_ms" for name in names))
    }
    for run in runs:
        medians = []
        for segment in run.chosen():
            exact = Rolling(segment, time_column(run, segment), thin=False)
            exact.pull()
            medians.append(exact)
        for segment, source, offset in zip(
            run.chosen(), medians, _offsets(run, medians, align), strict=True
        ):
            rows = source.columns.rows
            parts["session"].append(np.full(rows, run.title, dtype=object))
            parts["segment"].append(np.full(rows, segment.index))
            x = source.columns[_x(align)]
            parts[x_column].append((x if align == "step" else run.axis.positions(x)) + offset)
            for name in names:
                parts[f"rolling_{name}_ms"].append(np.array(source.columns[name]))
    return {name: np.concatenate(arrays[1:] or arrays) for name, arrays in parts.items()}


def _aligned(run: Run, which: str, align: str) -> Callable[[], list[Moved]]:
    tracks = rolling_of(run, which, _x(align))

    def aligned() -> list[Moved]:
        sources = [_pulled(run, segment) for segment in run.chosen()]
        return [
            Moved(track, offset)
            for track, offset in zip(tracks(), _offsets(run, sources, align), strict=True)
        ]

    return aligned


def _pulled(run: Run, segment: Segment) -> Rolling:
    source = rolling(run, segment)
    source.pull()
    return source


def _x(align: str) -> str:
    return "number" if align == "step" else "t_s"


def _offsets(run: Run, sources: Sequence[Rolling], align: str) -> list[float]:
    """Return the shift of each segment's x; it puts the run's first steady step at zero."""
    if align == "step":
        return [float(sum(source.steady for source in sources[:i])) for i in range(len(sources))]
    starts = [float(source.columns["t_s"][0]) for source in sources if source.columns.rows]
    return [-run.axis.position(min(starts, default=0.0))] * len(sources)


PLOT = Plot(
    name="aligned_timeline",
    title="Step time, aligned",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=no_steps,
    axis="value",
    options={"align": ("time", "step")},
)
