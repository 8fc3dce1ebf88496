"""Memory by role over one step: it rises in the forward pass and falls in the backward pass.

This is the last profiled step, so its length includes the profiler's cost. If changes are too close
together to be drawn, the one with the most memory is shown.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QPainter, QPen

from sessions.model import Study
from sessions.numbers import LARGEST
from sessions.studies import breakdown
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers import strokes
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style
from workbench.charts.units import BYTES, MILLISECONDS
from workbench.plots import _profiles
from workbench.plots.memory_roles import role_color


class Stack(Layer):
    """Areas on top of one another, what lasts longest at the bottom."""

    z = 10.0

    def __init__(self, study: Study, style: Style) -> None:
        super().__init__()
        table = study.tables["memory"]
        self._t_ms: Array = np.asarray(table["t_ms"], np.float64)
        self._bytes_by_role = {
            role: np.asarray(table[role], np.float64)
            for role in breakdown.ROLES
            if np.any(np.asarray(table[role]) > 0)
        }
        self._style = style

    def x_span(self) -> tuple[float, float]:
        """Return the range of the step."""
        return float(self._t_ms[0]), float(self._t_ms[-1])

    def y_span(self) -> tuple[float, float]:
        """Return the range from 0 to the peak."""
        return 0.0, float(np.max(sum(self._bytes_by_role.values()), initial=1.0))

    def entries(self) -> list[Entry]:
        """Return the roles with their largest bytes."""
        return [
            Entry(
                breakdown.ROLE_TITLES[role],
                "patch",
                QPen(Qt.PenStyle.NoPen),
                QBrush(role_color(role, self._style)),
                functools.partial(self._reading, role_bytes),
                "000 MiB",
            )
            for role, role_bytes in self._bytes_by_role.items()
        ]

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw an area for each role."""
        x = np.repeat(frame.px(self._t_ms), 2)[1:]  # held until the next change
        below = np.zeros(len(x))
        for role, role_bytes in self._bytes_by_role.items():
            above = below + np.repeat(role_bytes, 2)[:-1]
            low, high = (np.clip(frame.py(y), -1.0, frame.height + 1) for y in (below, above))
            brush = QBrush(role_color(role, self._style))
            strokes.area(painter, brush, x, high, low, math.inf, frame)
            below = above

    def _reading(self, role_bytes: Array, at: float) -> str:
        index = int(np.searchsorted(self._t_ms, at, side="right")) - 1
        return BYTES.text(
            float(role_bytes[max(0, index)] if math.isfinite(at) else role_bytes.max())
        )


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, profile: str = "") -> None:
    """Draw the course of one profile."""
    study = _profiles.shown(runs, profile, _can_draw)
    if study is None or _why_not(study):
        return
    plot_item.describe((MILLISECONDS, "Time in the step"), (BYTES, "Memory"))
    plot_item.pad_x = 0.0
    plot_item.add(Stack(study, style))


def table(runs: Sequence[Run], *, profile: str = "") -> dict[str, Array]:
    """Return bytes by role at each time that is drawn."""
    study = _profiles.shown(runs, profile, _can_draw)
    course = dict(study.tables.get("memory", {}) if study else {}) or {"t_ms": np.empty(0)}
    return {name if name == "t_ms" else f"{name}_bytes": values for name, values in course.items()}


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if a profile has memory in it."""
    if reason := _profiles.no_profile(runs):
        return reason
    study = _profiles.shown(runs, can_draw=_can_draw) or _profiles.shown(runs)
    return None if study is None else _why_not(study)


def _can_draw(study: Study) -> bool:
    return _why_not(study) is None


def _why_not(study: Study) -> str | None:
    """Return why the memory of a profile cannot be drawn; None if it can."""
    course = study.tables.get("memory", {})
    if not len(course.get("t_ms", ())):
        return "The profile of this session has no memory data."
    times_ms = np.asarray(course["t_ms"], np.float64)
    if not (np.abs(times_ms) <= LARGEST).all() or (np.diff(times_ms) < 0).any():
        return "The memory data of this profile has impossible times."
    return None


PLOT = Plot(
    name="memory_course",
    title="Memory over a step",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
    choices_in=partial(_profiles.choices, can_draw=_can_draw),
    key=_profiles.key,
)
