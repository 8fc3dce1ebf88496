"""Efficiency of steps over ranks, with 95 % intervals: a curve for each kind of parallelism.

Strong scaling divides one batch among the ranks; its efficiency is t1 / (n tn). Weak scaling gives
every rank as many rows as one device had; its efficiency is t1 / tn. The dashed line at 1 is ideal.
Each dot is a paired comparison with one device. A cross marks wrong numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PySide6.QtCore import QLineF, QPointF, Qt
from PySide6.QtGui import QBrush, QPainter, QPen

from sessions.model import Study
from sessions.studies.rank_scaling import curves, scalings
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers import strokes
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer, dot
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style, shade
from workbench.charts.units import STEPS
from workbench.plots._sweep import WRONG, draw_mark

LATEST = "latest"
IDEAL = 1.0
_DOT_PX = 3.5
_CAP_PX = 4.0
_SPREAD = 0.03  # on the axis, between curves that share a number of ranks


class Efficiency(Layer):
    """The dots of one kind, joined from one device on, with their intervals."""

    z = 30.0

    def __init__(
        self, kind: str, curve: Sequence[Mapping[str, Any]], color: int, shift: float, style: Style
    ) -> None:
        super().__init__()
        self._kind, self._color, self._style = kind, color, style
        self._x = np.log2([float(row["count"]) for row in curve]) + shift
        self._y, self._low, self._high = (
            np.array([float(row[name]) for row in curve]) for name in ("efficiency", "low", "high")
        )
        self._wrong = [row["wrong"] == 1 for row in curve]

    def entries(self) -> list[Entry]:
        """Return the kind."""
        return [
            Entry(self._kind, "line", self._style.pen(self._color), QBrush(Qt.BrushStyle.NoBrush))
        ]

    def x_span(self) -> tuple[float, float]:
        """Return the places from one device to the most ranks."""
        return 0.0, float(self._x.max())

    def y_span(self) -> tuple[float, float]:
        """Return the ends of all intervals; the ideal is among them."""
        ends = np.concatenate([self._y, self._low, self._high])
        ends = ends[np.isfinite(ends)]
        return min(IDEAL, float(ends.min())), max(IDEAL, float(ends.max()))

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw the line, then intervals and dots."""
        style, color = self._style, self._style.color(self._color)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        x, y = frame.px(self._x), frame.py(self._y)
        first = frame.px(np.zeros(1)), frame.py(np.full(1, IDEAL))
        strokes.polyline(
            painter,
            style.pen(self._color),
            np.concatenate([first[0], x]),
            np.concatenate([first[1], y]),
            math.inf,
            frame,
            joined=True,
        )
        ends = zip(frame.py(self._low).tolist(), frame.py(self._high).tolist(), strict=True)
        places = zip(x.tolist(), y.tolist(), ends, self._wrong, strict=True)
        for across, height, (low, high), wrong in places:
            painter.setPen(QPen(color, style.line_px))
            if math.isfinite(low) and math.isfinite(high):
                painter.drawLine(QLineF(across, low, across, high))
                for end in (low, high):
                    painter.drawLine(QLineF(across - _CAP_PX, end, across + _CAP_PX, end))
            dot(painter, QPointF(across, height), _DOT_PX * style.line_px / 1.5, color)
            if wrong:
                pen = QPen(shade(style.theme.bad), style.line_px)
                draw_mark(painter, QPointF(across, height), WRONG, pen)


class Ideal(Layer):
    """The efficiency 1 on all numbers of ranks."""

    z = 10.0

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._style = style

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw a dashed line."""
        pen = QPen(shade(self._style.theme.muted), self._style.line_px, Qt.PenStyle.DashLine)
        painter.setPen(pen)
        height = float(frame.py(IDEAL))
        painter.drawLine(QLineF(0.0, height, frame.width, height))


def shown(runs: Sequence[Run], choice: str = LATEST) -> Study | None:
    """Return the chosen scaling study of the first run that has one."""
    for run in runs:
        if studies := scalings(run.session):
            return studies[-1 if choice == LATEST else min(int(choice), len(studies)) - 1]
    return None


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if there is something."""
    study = shown(runs)
    if study is None:
        return "Scaling over ranks was not measured: run workbench scale."
    return None if curves(study) else "No number of ranks has been measured yet."


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, study: str = LATEST) -> None:
    """Draw a curve for each kind."""
    chosen = shown(runs, study)
    if chosen is None:
        return
    plot_item.header.subtitle = chosen.title
    plot_item.describe((STEPS, "Ranks"), (STEPS, "Efficiency"))
    plot_item.zero, plot_item.pad_x = False, 0.06
    by_kind = curves(chosen)
    counts = {1, *(int(row["count"]) for curve in by_kind.values() for row in curve)}
    plot_item.axis("bottom").categories = [
        (math.log2(count), str(count)) for count in sorted(counts) if count > 0
    ]
    plot_item.add(Ideal(style))
    middle = (len(by_kind) - 1) / 2
    for color, (kind, curve) in enumerate(by_kind.items()):
        plot_item.add(Efficiency(kind, curve, color, _SPREAD * (color - middle), style))


def table(runs: Sequence[Run], *, study: str = LATEST) -> dict[str, Array]:
    """Return every efficiency with its interval."""
    chosen = shown(runs, study)
    rows = [] if chosen is None else [row for curve in curves(chosen).values() for row in curve]
    return {
        "kind": np.array([row["kind"] for row in rows], object),
        "ranks": np.array([row["count"] for row in rows], np.int64),
        **{
            name: np.array([row[column] for row in rows], np.float64)
            for name, column in (
                ("efficiency", "efficiency"),
                ("efficiency_low", "low"),
                ("efficiency_high", "high"),
            )
        },
    }


def choices(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """Return which of several studies can be shown."""
    for run in runs:
        count = len(scalings(run.session))
        if count > 1:
            return {"study": (LATEST, *map(str, range(1, count + 1)))}
    return {}


def _key(runs: Sequence[Run]) -> object:
    """Return the studies themselves: their rows are replaced, not appended to."""
    return [id(study) for run in runs for study in scalings(run.session)]


PLOT = Plot(
    name="scaling",
    title="Scaling over ranks",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
    choices_in=choices,
    key=_key,
)
