"""Shared by the plots of model metrics: their names, the chosen metric, and its table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sessions.model import MetricSeries, Segment
from workbench.charts.arrays import Array
from workbench.charts.plot import Run
from workbench.charts.units import Unit

Measured = tuple[Segment, MetricSeries]


@dataclass(frozen=True)
class Number(Unit):
    """A unit of a family's own, whose readings keep three digits however small they are."""

    kind: str = "plain"

    def text(self, value: float, digits: int = 3) -> str:
        """Return a reading such as ``0.00125`` or ``12.5 tokens``."""
        if not math.isfinite(value):
            return "–"
        return f"{value:.{digits}g} {self.symbol}".replace("-", "−").strip()


def names(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the metrics that were measured, those of the newest segments first."""
    segments = [segment for run in runs for segment in run.chosen()]
    return tuple(dict.fromkeys(name for segment in segments[::-1] for name in segment.metrics))


def choices(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """Return the plots' option: the names of the metrics."""
    return {"metric": names(runs)}


def chosen(runs: Sequence[Run], metric: str) -> str:
    """Return the metric to show: ``metric`` if it was measured, else the newest segment's first."""
    known = names(runs)
    return metric if metric in known else known[0]


def series_of(run: Run, metric: str) -> list[Measured]:
    """Return the metric in every chosen segment that has it."""
    return [(s, s.metrics[metric]) for s in run.chosen() if metric in s.metrics]


def latest(runs: Sequence[Run], metric: str) -> MetricSeries:
    """Return the metric of the newest segment that has it: its description and shape."""
    return [series for run in runs for _, series in series_of(run, metric)][-1]


def key(runs: Sequence[Run]) -> object:
    """Return what a drawing depends on, without the numbers: another shape needs other lines."""
    parts: list[object] = []
    for run in runs:
        segments = run.chosen()
        first = next((name for segment in segments[::-1] for name in segment.metrics), "")
        shapes = {name: s.shape for segment in segments for name, s in segment.metrics.items()}
        parts.append((first, shapes))
    return parts


def no_metrics(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if a model has reported metrics."""
    if names(runs):
        return None
    return "No model has reported metrics: run one that does (routing load, rank, gate ...)."


def part(noun: str, number: int, fallback: str) -> str:
    """Return the name of one row or column: ``block 3``."""
    return f"{noun or fallback} {number}"


def table(runs: Sequence[Run], *, metric: str = "", **_: str) -> dict[str, Array]:
    """Return every number of every reading: session, segment, time, row, column, value."""
    parts: dict[str, list[Array]] = {
        name: [np.empty(0)]
        for name in ("session", "segment", "label", "t_s", "row", "column", "value")
    }
    name = chosen(runs, metric) if names(runs) else ""
    for run in runs:
        for segment, series in series_of(run, name):
            values = np.asarray(series.table["values"])
            sample, row, column = np.indices(values.shape).reshape(3, -1)
            parts["session"].append(np.full(values.size, run.title, dtype=object))
            parts["segment"].append(np.full(values.size, segment.index))
            parts["label"].append(np.full(values.size, segment.label, dtype=object))
            parts["t_s"].append(np.asarray(series.table["t_s"])[sample])
            parts["row"].append(row)
            parts["column"].append(column)
            parts["value"].append(values.ravel())
    return {column: np.concatenate(arrays[1:] or arrays) for column, arrays in parts.items()}
