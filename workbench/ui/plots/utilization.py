"""Utilization: how busy the device was, and how much of it.

*Busy* says only that some kernel ran during the sampling period. Where the GPU offers them (NVML
GPM, Hopper and later), the share of multiprocessors, tensor cores and memory bandwidth that was in
use is drawn beside it; and what other processes used, which disturbs every measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.ui.plots._arrays import Array
from workbench.ui.plots._canvas import Canvas
from workbench.ui.plots._layers import Line, Look
from workbench.ui.plots._plot import Plot, Run
from workbench.ui.plots._steps import add_timeline
from workbench.ui.plots._telemetry import devices, measured, prefix, sampled, telemetry_table
from workbench.ui.plots._units import PERCENT, SECONDS
from workbench.ui.style import Style

_COLUMNS = {
    "busy": "busy",
    "sm_active": "SM active",
    "tensor_active": "tensor cores",
    "dram_active": "DRAM bandwidth",
    "sm_occupancy": "SM occupancy",
    "others": "by other processes",
}
_TOP = 103.0  # so that a line at 100 % is whole


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """One line per quantity that was measured."""
    plot_item.describe((SECONDS, "Time since the session began"), (PERCENT, "Utilization"))
    plot_item.fixed_y = (0.0, _TOP)
    add_timeline(plot_item, runs, style)
    color = 0
    for run in runs:
        for device in devices(run):
            for column, name in _COLUMNS.items():
                title = f"CPU {name}" if device == "cpu" else prefix(runs, run, device) + name
                look = Look(title, style, PERCENT, color, dash=color)
                plot_item.add(Line(look, sampled(run, device, column)))
                color += measured(run, device, column)


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Every sample."""
    return telemetry_table(runs, list(_COLUMNS))


def can_show(runs: Sequence[Run]) -> str | None:
    """Whether any sample was taken."""
    found = [(run, device) for run in runs for device in devices(run)]
    if not found:
        return "Utilization needs telemetry; this session has none."
    if not any(measured(run, device, c) for run, device in found for c in _COLUMNS):
        return "Utilization needs telemetry; this session's samples hold no number for it."
    return None


PLOT = Plot(
    name="utilization",
    title="Utilization",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="time",
)
