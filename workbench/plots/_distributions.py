"""Steady step times as distributions: one per segment, named and coloured."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sessions.model import Segment
from sessions.verdicts.statistics import steady_ms
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.plot import Run

MOST = 12  # in one plot: more names leave it no room, and more curves cannot be told apart


@dataclass(frozen=True)
class Distribution:
    """Step times of one segment's steady steps, in milliseconds, in ascending order."""

    label: str
    color: int
    values: Array


def distributions(runs: Sequence[Run]) -> list[Distribution]:
    """Return a distribution for each chosen segment that has a steady step.

    The segments of one session have the colours of their numbers; sessions with one segment each
    have the runs' colours.
    """
    chosen = [(run, segment) for run in runs for segment in run.chosen()]
    single = len(runs) > 1 and all(len(run.chosen()) <= 1 for run in runs)
    collected: list[Distribution] = []
    for run, segment in chosen:
        values = run.keep(
            (segment.index, "sorted", len(segment.steps["t_s"])),
            functools.partial(_sorted_steady_ms, segment),
        )
        if len(values):
            color = segment.index if len(runs) == 1 else run.color if single else len(collected)
            collected.append(Distribution(_label(runs, run, segment, single), color, values))
    return collected


def drawn(runs: Sequence[Run], plot_item: Canvas) -> list[Distribution]:
    """Return the distributions that a plot shows, with titles for labels.

    Of more than ``MOST`` these are the ones with the most steps; the plot's subtitle says so.
    """
    titled = [replace(item, label=runs[0].titled(item.label)) for item in distributions(runs)]
    if len(titled) <= MOST:
        return titled
    least = sorted((len(item.values) for item in titled), reverse=True)[MOST - 1]
    notes = [plot_item.header.subtitle, f"the {MOST} of {len(titled)} with the most steps"]
    plot_item.header.subtitle = ", ".join(filter(None, notes))
    return [item for item in titled if len(item.values) >= least][:MOST]


def no_steady_steps(runs: Sequence[Run]) -> str | None:
    """Return why there is no distribution to show; None if there is one."""
    if distributions(runs):
        return None
    return "Distributions need steady steps, but there are none yet."


def distribution_table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return all steady step times in ascending order, each with the share of steps up to it."""
    parts = distributions(runs)
    empty = [np.empty(0)]
    return {
        "distribution": np.concatenate(
            empty + [np.full(len(part.values), part.label, dtype=object) for part in parts]
        ),
        "step_ms": np.concatenate(empty + [part.values for part in parts]),
        "share": np.concatenate(
            empty + [np.arange(1, len(part.values) + 1) / len(part.values) for part in parts]
        ),
    }


def _sorted_steady_ms(segment: Segment) -> Array:
    return np.sort(steady_ms(segment))


def _label(runs: Sequence[Run], run: Run, segment: Segment, single: bool) -> str:
    if len(runs) == 1:
        return segment.label
    return run.title if single else f"{run.title}: {segment.label}"
