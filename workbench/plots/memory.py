"""Memory: bytes allocated by tensors, held by the caching allocator, and the highest so far.

The peak is that of the phase, because autotuning and compiling would raise a peak of the complete
session. On the CPU, the process's resident set replaces the allocated bytes. If several ranks share
a step, the memory that all processes use on each device is drawn too; without a GPU, each rank's
resident set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.charts import time_axis
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.drawn import is_cpu
from workbench.charts.layers.curves import Line, Look
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style
from workbench.charts.units import BYTES, SECONDS
from workbench.plots._steps import add_timeline, columns_of, step_table
from workbench.plots._telemetry import devices, key, note_undrawn, prefix, sampled

_COLUMNS = ("peak", "reserved", "allocated")


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw a line for each quantity and run; quantities differ by dash, runs by colour."""
    plot_item.describe((SECONDS, time_axis.TITLE), (BYTES, "Memory"))
    add_timeline(plot_item, runs, style)
    for run in runs:
        names = {"peak": "peak", "reserved": "reserved", "allocated": "allocated"}
        if not _measured([run], "reserved"):
            names["allocated"] = "resident set"
        for index, column in enumerate(_COLUMNS):
            kind = len(_COLUMNS) - 1 - index
            alone = len(runs) == 1
            name = names[column] if alone else f"{run.title} {names[column]}"
            color = run.color + kind if alone else run.color
            appearance = Look(name, style, BYTES, color, dash=kind)
            plot_item.add(Line(appearance, columns_of(run, column)))
        _add_devices(plot_item, runs, run, style)
    note_undrawn(plot_item, runs)


def _add_devices(plot_item: Canvas, runs: Sequence[Run], run: Run, style: Style) -> None:
    """Add a line of the memory in use on each device, if there are several."""
    if len(run.session.telemetry) == 1:
        return
    for number, device in enumerate(devices(run)):
        words = "resident set" if is_cpu(device) else "in use"
        if is_cpu(device) and not number:
            continue  # it is the steps' own
        kind = len(_COLUMNS) + number
        color = run.color + (kind if len(runs) == 1 else 0)
        appearance = Look(f"{prefix(runs, run, device)}{words}", style, BYTES, color, dash=kind)
        plot_item.add(Line(appearance, sampled(run, device, "memory_used")))


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return every step's bytes."""
    return step_table(runs, {f"{column}_bytes": column for column in reversed(_COLUMNS)})


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if any byte was counted."""
    if any(_measured(runs, column) for column in _COLUMNS):
        return None
    return "No memory has been measured yet: run a model, or open a session that has steps."


def _measured(runs: Sequence[Run], column: str) -> bool:
    return any(
        bool(np.isfinite(segment.steps[column]).any()) for run in runs for segment in run.chosen()
    )


PLOT = Plot(
    name="memory",
    title="Memory",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="time",
    key=key,
)
