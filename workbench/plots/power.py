"""Power drawn by the device, and on a second axis what explains it: SM clock or temperature.

If the clock falls while power is at its limit, the GPU throttles: its timings cannot be compared
with others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workbench.charts import time_axis
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.curves import Line, Look
from workbench.charts.plot import Plot, Run
from workbench.charts.series.sources import Moved, Source
from workbench.charts.style import Style
from workbench.charts.units import CELSIUS, MEGAHERTZ, SECONDS, WATTS, nice_step
from workbench.plots._steps import add_timeline
from workbench.plots._telemetry import (
    devices,
    highest,
    key,
    measured,
    note_undrawn,
    prefix,
    sampled,
    telemetry_table,
)

_RIGHT = {
    "sm_clock": ("SM clock", MEGAHERTZ),
    "temperature": ("temperature", CELSIUS),
}


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, right: str = "sm_clock") -> None:
    """Draw power on the left axis and the quantity ``right``, scaled to it, on the right axis."""
    plot_item.describe((SECONDS, time_axis.TITLE), (WATTS, "Power"))
    add_timeline(plot_item, runs, style)
    power, other = highest(runs, "power_w"), highest(runs, right)
    watts_per_unit = _round_up(power or 1.0) / _round_up(other or 1.0)
    name, unit = _RIGHT[right]
    color = 0
    for run in runs:
        for device in devices(run):
            title = prefix(runs, run, device)
            appearance = Look(f"{title}power", style, WATTS, color, dash=color)
            plot_item.add(Line(appearance, sampled(run, device, "power_w")))
            color += measured(run, device, "power_w")
            if other and measured(run, device, right):
                appearance = Look(f"{title}{name} (right)", style, unit, color, dash=color)
                scaled = _scaled(sampled(run, device, right), watts_per_unit)
                plot_item.add(Line(appearance, scaled, shown_as=1.0 / watts_per_unit))
                color += 1
    if other:
        plot_item.show_right(unit, name[0].upper() + name[1:], 1.0 / watts_per_unit)
    note_undrawn(plot_item, runs)


def table(runs: Sequence[Run], *, right: str = "sm_clock") -> dict[str, Array]:
    """Return every sample."""
    return telemetry_table(runs, ["power_w", right])


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if a device reported its power."""
    devices_of_runs = [(run, device) for run in runs for device in devices(run)]
    if not devices_of_runs:
        return "This session has no telemetry."
    if not any(measured(run, device, "power_w") for run, device in devices_of_runs):
        return "The device of this session does not report it."
    return None


def _scaled(tracks: Callable[[], Sequence[Source]], factor: float) -> Callable[[], list[Source]]:
    return lambda: [Moved(track, factor=factor) for track in tracks()]


def _round_up(value: float) -> float:
    return nice_step(value / 8) * 8


PLOT = Plot(
    name="power",
    title="Power",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="time",
    options={"right": tuple(_RIGHT)},
    key=key,
)
