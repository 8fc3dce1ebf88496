"""Time of each rank in a step: it computes, waits in collectives, or is idle.

One row for each rank, with its host. A rank that waits longer than others computes faster or has
faster links: a collective lasts until its slowest rank is done. Communication that overlaps with
computation is not shown. The skew is the extra computing time of the slowest rank over the median
rank. The times are sums over one step, recorded under the profiler after all timing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QBrush, QPainter, QPen

from sessions.model import Study
from sessions.numbers import LARGEST
from sessions.studies.rank_scaling import name_of, points, ranks_of, scalings
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style
from workbench.charts.units import MILLISECONDS, STEPS

LATEST = "latest"
ACTIVITIES = {"computing_ms": "computing", "waiting_ms": "waiting", "idle_ms": "idle"}
_BAR = 0.7  # share of a row
Row = Mapping[str, Any]


class Lanes(Layer):
    """A bar for each rank, divided by what the rank did."""

    z = 30.0

    def __init__(self, ranks: Sequence[Row], style: Style) -> None:
        super().__init__()
        self._style = style
        self._ms = np.array([[float(row[name]) for name in ACTIVITIES] for row in ranks])

    def entries(self) -> list[Entry]:
        """Return the activities with their share of the ranks' time."""
        shares = self._ms.sum(0) / max(float(self._ms.sum()), 1e-12)
        return [
            Entry(
                f"{title} {100 * share:.0f} %",
                "patch",
                QPen(Qt.PenStyle.NoPen),
                QBrush(self._style.color(color)),
            )
            for color, (title, share) in enumerate(zip(ACTIVITIES.values(), shares, strict=True))
        ]

    def x_span(self) -> tuple[float, float]:
        """Return the longest step."""
        return 0.0, max(float(self._ms.sum(1).max()), 1e-9)

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw the bars from top to bottom."""
        for row, parts in enumerate(self._ms):
            edges = np.clip(frame.px(np.concatenate([[0.0], np.cumsum(parts)])), 0, frame.width)
            top, bottom = (float(frame.py(-row - end)) for end in (0.5 - _BAR / 2, 0.5 + _BAR / 2))
            top, bottom = max(0.0, top), min(frame.height, bottom)
            for color, (left, right) in enumerate(itertools.pairwise(edges)):
                if right > left and bottom > top:
                    box = QRectF(float(left), top, float(right - left), bottom - top)
                    painter.fillRect(box, self._style.color(color))


def recorded(runs: Sequence[Run]) -> tuple[Study, dict[str, list[Row]]] | None:
    """Return the newest study with recorded ranks, and these by their point's name."""
    for run in runs:
        for study in reversed(scalings(run.session)):
            lanes: dict[str, list[Row]] = {}
            for point in points(study):
                ranks = ranks_of(study, point)
                if ranks and all(map(_is_recorded, ranks)):
                    lanes[name_of(point)] = list(ranks)
            if lanes:
                return study, lanes
    return None


def shown(runs: Sequence[Run], point: str) -> tuple[str, list[Row]]:
    """Return the name and the ranks of the chosen point, by default the last; none if unknown."""
    newest = recorded(runs)
    if newest is None:
        return "", []
    lanes = newest[1]
    name = point if point in lanes else next(reversed(lanes))
    return name, lanes[name]


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if there is something."""
    if recorded(runs) is None:
        return "The time of each rank was not recorded: run workbench scale."
    return None


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, point: str = LATEST) -> None:
    """Draw a lane for each rank."""
    name, ranks = shown(runs, point)
    if not ranks:
        return
    times = np.array([float(row["computing_ms"]) for row in ranks])
    skew = MILLISECONDS.text(float(times.max() - np.median(times)))
    plot_item.header.subtitle = f"{name}; skew {skew}"
    plot_item.describe((MILLISECONDS, "Time of a step"), (STEPS, ""))
    plot_item.axis("left").categories = [
        (-row - 0.5, _title(rank)) for row, rank in enumerate(ranks)
    ]
    plot_item.fixed_y = (-float(len(ranks)), 0.0)
    plot_item.pad_x = 0.0
    plot_item.add(Lanes(ranks, style))


def table(runs: Sequence[Run], *, point: str = LATEST) -> dict[str, Array]:
    """Return the times of each rank."""
    _, ranks = shown(runs, point)
    return {
        "rank": np.array([row["rank"] for row in ranks], np.int64),
        "host": np.array([row["host"] for row in ranks], object),
        **{name: np.array([row[name] for row in ranks], np.float64) for name in ACTIVITIES},
    }


def choices(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """Return the points whose ranks were recorded."""
    lanes = recorded(runs)
    return {} if lanes is None or len(lanes[1]) < 2 else {"point": (LATEST, *lanes[1])}


def _is_recorded(rank: Row) -> bool:
    """Return True if a rank's times are known and possible."""
    return all(0 <= rank[name] <= LARGEST for name in ACTIVITIES)


def _title(rank: Row) -> str:
    host = f" ({rank['host']})" if rank["host"] else ""
    return f"rank {int(rank['rank'])}{host}"


def _key(runs: Sequence[Run]) -> object:
    """Return the studies themselves: their rows are replaced, not appended to."""
    return [id(study) for run in runs for study in scalings(run.session)]


PLOT = Plot(
    name="rank_lanes",
    title="Time by rank",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
    choices_in=choices,
    key=_key,
)
