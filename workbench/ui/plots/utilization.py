"""Utilization: how busy the device was, and how much of it.

*Busy* says only that some kernel ran during the sampling period. Where the GPU offers them (NVML
GPM, Hopper and later), the share of multiprocessors, tensor cores and memory bandwidth that was in
use is drawn beside it; and what other processes used, which disturbs every measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QPen

from sessions.model import ABSENT, SAMPLING
from workbench.ui.plots._arrays import Array
from workbench.ui.plots._canvas import Canvas
from workbench.ui.plots._layers import Entry, Layer, Line, Look
from workbench.ui.plots._plot import Plot, Run
from workbench.ui.plots._steps import add_timeline
from workbench.ui.plots._telemetry import devices, measured, prefix, sampled, telemetry_table
from workbench.ui.plots._tracks import Track
from workbench.ui.plots._units import PERCENT, SECONDS
from workbench.ui.style import Style, shade

_COLUMNS = {
    "busy": "busy",
    "sm_active": "SM active",
    "tensor_active": "tensor cores",
    "dram_active": "DRAM bandwidth",
    "sm_occupancy": "SM occupancy",
    "others": "by other processes",
}
_SHORT = {  # where several are missing
    "sm_active": "SM",
    "tensor_active": "tensor",
    "dram_active": "DRAM",
    "sm_occupancy": "occupancy",
}
_TOP = 103.0  # so that a line at 100 % is whole


def _how(run: Run, column: str) -> str:
    """How often a column is sampled, or why it is not; empty in sessions that do not know."""
    return run.session.environment.get(f"{SAMPLING}{column}", "")


class _Sampled(Line):
    """A line whose entry in the legend says how often it is sampled."""

    def __init__(
        self, look: Look, tracks: Callable[[], list[Track]], run: Run, column: str
    ) -> None:
        super().__init__(look, tracks)
        self._run, self._column = run, column

    def entries(self) -> list[Entry]:
        how = _how(self._run, self._column)
        if not how or how.startswith(ABSENT):
            return super().entries()
        return [replace(one, name=f"{one.name}, {how}") for one in super().entries()]


class _Absent(Layer):
    """Only entries of the legend: what is not measured, and why; told while a session has data."""

    def __init__(self, run: Run, style: Style) -> None:
        super().__init__()
        self._run, self._style = run, style

    def entries(self) -> list[Entry]:
        if not self._run.session.telemetry:
            return []
        missing: dict[str, dict[str, str]] = {}  # by reason: names by column
        for column, name in _COLUMNS.items():
            how = _how(self._run, column)
            if how.startswith(ABSENT):
                missing.setdefault(how.removeprefix(ABSENT), {})[column] = name
        pen = QPen(shade(self._style.theme.muted))
        none = QBrush(Qt.BrushStyle.NoBrush)
        return [
            Entry(f"no {', '.join(_brief(names))}: {reason}", "dots", pen, none)
            for reason, names in missing.items()
        ]


def _brief(names: dict[str, str]) -> list[str]:
    """Names by column, short ones where there are too many for one line."""
    return [_SHORT.get(c, name) if len(names) > 2 else name for c, name in names.items()]


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
                plot_item.add(_Sampled(look, sampled(run, device, column), run, column))
                color += measured(run, device, column)
        plot_item.add(_Absent(run, style))


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
