"""Utilization: how busy the device was, and how much of it.

*Busy* only means that a kernel ran during the sampling period. If the GPU reports them (NVML GPM,
Hopper and later), the used share of multiprocessors, tensor cores and memory bandwidth is drawn
too, and the share that other processes used, which disturbs every measurement. Quantities that are
not measured or not reported are named with the reason. If several ranks share a step, each further
GPU has two lines: busy and active multiprocessors. The table has all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QPen

from sessions.sampling import UTILIZATION, absent, sampling
from workbench.charts import time_axis
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.drawn import is_cpu
from workbench.charts.layers.curves import Line, Look
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.series.tracks import Track
from workbench.charts.style import Style, shade
from workbench.charts.units import PERCENT, SECONDS
from workbench.plots._steps import add_timeline
from workbench.plots._telemetry import (
    devices,
    key,
    measured,
    note_undrawn,
    prefix,
    sampled,
    telemetry_table,
)

_FURTHER = ("busy", "sm_active")  # columns of each further GPU: all would be 48 lines
_TOP = 103.0  # so that a line at 100 % is not cut


class _Sampled(Line):
    """A line whose entry in the legend says how often it is sampled."""

    def __init__(
        self, appearance: Look, tracks: Callable[[], list[Track]], run: Run, column: str
    ) -> None:
        super().__init__(appearance, tracks)
        self._run, self._column = run, column

    def entries(self) -> list[Entry]:
        sampling_text = sampling(self._run.session.environment, self._column)
        if not sampling_text:
            return super().entries()
        return [
            replace(entry, name=f"{entry.name}, {sampling_text}") for entry in super().entries()
        ]


class _Absent(Layer):
    """Entries of the legend for what is not measured, with the reason; no drawing."""

    def __init__(self, run: Run, style: Style) -> None:
        super().__init__()
        self._run, self._style = run, style

    def entries(self) -> list[Entry]:
        if not self._run.session.telemetry:
            return []
        pen = QPen(shade(self._style.theme.muted))
        no_brush = QBrush(Qt.BrushStyle.NoBrush)
        words = absent(self._run.session.environment)
        return [Entry(reason, "dots", pen, no_brush) for reason in words]


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw one line per quantity that was measured."""
    plot_item.describe((SECONDS, time_axis.TITLE), (PERCENT, "Utilization"))
    plot_item.fixed_y = (0.0, _TOP)
    add_timeline(plot_item, runs, style)
    color = 0
    for run in runs:
        for number, device in enumerate(devices(run)):
            if number and is_cpu(device):
                continue  # the host's busy % is that of all its processes
            for column in _FURTHER if number else UTILIZATION:
                name = UTILIZATION[column]
                title = f"CPU {name}" if is_cpu(device) else prefix(runs, run, device) + name
                appearance = Look(title, style, PERCENT, color, dash=color)
                plot_item.add(_Sampled(appearance, sampled(run, device, column), run, column))
                color += measured(run, device, column)
        plot_item.add(_Absent(run, style))
    note_undrawn(plot_item, runs)


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return every sample, and the memory in use on the device."""
    return telemetry_table(runs, [*UTILIZATION, "memory_used"])


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if any sample was taken."""
    devices_of_runs = [(run, device) for run in runs for device in devices(run)]
    if not devices_of_runs:
        return "Utilization needs telemetry, but this session has none."
    if not any(measured(run, device, c) for run, device in devices_of_runs for c in UTILIZATION):
        return "Utilization needs telemetry, but this session's samples have no values of it."
    return None


PLOT = Plot(
    name="utilization",
    title="Utilization",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="time",
    key=key,
)
