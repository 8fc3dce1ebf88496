"""Shared by the plots of telemetry: tracks and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sessions.schema import TELEMETRY
from workbench.charts import drawn
from workbench.charts.arrays import Array
from workbench.charts.drawn import MOST_DEVICES, device_order
from workbench.charts.plot import Run, note_beside_title
from workbench.charts.series.tracks import Grid, Track
from workbench.charts.time_axis import RunningSamples

if TYPE_CHECKING:
    from workbench.charts.canvas import Canvas

_WORDS = {"%": "percent", "degrees Celsius": "celsius"}


def devices(run: Run) -> list[str]:
    """Return the devices of a run to draw."""
    return drawn.devices(run.session)


def note_undrawn(plot_item: Canvas, runs: Sequence[Run]) -> None:
    """Write the number of drawn devices after the plot's title, if not all are drawn."""
    most = max((len(run.session.telemetry) for run in runs), default=0)
    if most > MOST_DEVICES:
        note_beside_title(plot_item, f"{MOST_DEVICES} of {most:,} devices")


def key(runs: Sequence[Run]) -> object:
    """Return the number of devices: those of other ranks join while a session runs."""
    return [len(run.session.telemetry) for run in runs]


def sampled(run: Run, device: str, column: str) -> Callable[[], list[Track]]:
    """Return one column of one device's telemetry."""

    def tracks() -> list[Track]:
        columns = run.session.telemetry.get(device)
        if columns is None:
            return []
        grid = run.keep((device, "grid"), Grid)
        if not (axis := run.axis).begun:
            return [Track(columns, "t_s", column, grid=grid)]
        source = run.keep(
            (device, column, "running"), lambda: RunningSamples(axis, columns, column)
        )
        track = Track(source.columns, "position", column, pull=source.pull, grid=grid)
        return [run.keep((device, column), lambda: track)]

    return tracks


def measured(run: Run, device: str, column: str) -> bool:
    """Return True if the column has any number."""
    return bool(np.isfinite(run.session.telemetry[device][column]).any())


def highest(runs: Sequence[Run], column: str) -> float:
    """Return the highest sample of all devices; 0 if there is none."""
    samples = [
        run.session.telemetry[device][column]
        for run in runs
        for device in devices(run)
        if measured(run, device, column)
    ]
    return max((float(np.nanmax(values)) for values in samples), default=0.0)


def telemetry_table(runs: Sequence[Run], columns: Sequence[str]) -> dict[str, Array]:
    """Return every sample of every device: session, device, time and ``columns`` with units."""
    headings = {name: _with_unit(name) for name in ("t_s", *columns)}
    parts: dict[str, list[Array]] = {
        name: [np.empty(0)] for name in ("session", "device", *headings.values())
    }
    for run in runs:
        for device in sorted(run.session.telemetry, key=device_order):
            samples = run.session.telemetry[device]
            rows = len(samples["t_s"])
            parts["session"].append(np.full(rows, run.title, dtype=object))
            parts["device"].append(np.full(rows, device, dtype=object))
            for name, heading in headings.items():
                parts[heading].append(np.array(samples[name]))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _with_unit(column: str) -> str:
    """Return a column's name that ends with its unit: ``busy_percent``, ``power_w``."""
    unit = TELEMETRY[column].unit
    word = _WORDS.get(unit, unit.lower())
    return column if column.endswith(f"_{word}") else f"{column}_{word}"


def prefix(runs: Sequence[Run], run: Run, device: str) -> str:
    """Return the legend's words before a quantity, if there are several sessions or devices."""
    session = f"{run.title} " if len(runs) > 1 else ""
    several = len(run.session.telemetry) > 1
    return session + (f"{device.upper()} " if several else "")
