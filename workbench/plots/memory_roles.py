"""Memory by role at the peak of a step: measured, and as estimated from the model's sizes.

"Measured" is the memory in use at the peak of the profiled step. Memory that is reserved beyond
that (free blocks, or blocks too small for a request) is fragmentation. The estimate of a training
step counts temporaries as activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QPainter, QPen

from sessions.model import Study
from sessions.studies import breakdown
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style, shade
from workbench.charts.units import BYTES, STEPS
from workbench.plots import _profiles
from workbench.theming.icons import mixed

FREE = "reserved and free"
_THICK = 0.56  # share of a row
_TINT = 0.6


def role_color(role: str, style: Style) -> QColor:
    """Return the colour of a role, the same in every plot."""
    theme = style.theme
    if role == FREE:
        return shade(mixed(theme.muted, theme.surface, 0.25))
    color = style.color(breakdown.ROLES.index(role))
    return shade(mixed(color.name(), theme.surface, _TINT))


class Bars(Layer):
    """One bar a row, of parts by role."""

    z = 10.0

    def __init__(self, rows: list[dict[str, float]], style: Style) -> None:
        super().__init__()
        self._rows = rows
        self._style = style

    def x_span(self) -> tuple[float, float]:
        """Return the range from 0 to the end of the longest bar."""
        return 0.0, max(1.0, *(sum(row.values()) for row in self._rows))

    def entries(self) -> list[Entry]:
        """Return the roles with their measured bytes."""
        return [
            Entry(
                f"{breakdown.ROLE_TITLES.get(role, role)} {BYTES.text(size)}",
                "patch",
                QPen(Qt.PenStyle.NoPen),
                QBrush(role_color(role, self._style)),
            )
            for role, size in self._rows[0].items()
            if size > 0
        ]

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw the parts of each row from left to right."""
        for number, row in enumerate(self._rows):
            top, bottom = frame.py(-number + _THICK / 2), frame.py(-number - _THICK / 2)
            at = 0.0
            for role, size in row.items():
                left = max(0.0, float(frame.px(at)))
                right = min(frame.width, float(frame.px(at + size)))
                at += size
                if right > left:
                    box = QRectF(QPointF(left, top), QPointF(right, bottom))
                    painter.fillRect(box, role_color(role, self._style))


def rows(study: Study) -> list[tuple[str, dict[str, float]]]:
    """Return the bars: a name, and bytes by role."""
    peak = breakdown.peak(study)
    measured = {role: peak[role][0] for role in breakdown.ROLES if role in peak}
    free = breakdown.fragmentation(study)
    bars = [("at the peak", measured | ({FREE: free} if free > 0 else {}))]
    estimate = {role: peak[role][1] for role in measured if np.isfinite(peak[role][1])}
    if estimate:
        bars.append(("estimated", estimate))
    return bars


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, profile: str = "") -> None:
    """Draw the bars of one profile."""
    study = _profiles.shown(runs, profile, _can_draw)
    if study is None or not breakdown.peak(study):
        return
    bars = rows(study)
    plot_item.describe((BYTES, "Memory"), (STEPS, ""))
    plot_item.axis("left").categories = [
        (-float(number), f"{name}: {BYTES.text(_used_bytes(row))}")
        for number, (name, row) in enumerate(bars)
    ]
    plot_item.fixed_y = (-len(bars) + 0.5, 0.5)
    plot_item.pad_x = 0.0
    plot_item.add(Bars([row for _, row in bars], style))


def _used_bytes(row: dict[str, float]) -> float:
    return sum(size for role, size in row.items() if role != FREE)


def table(runs: Sequence[Run], *, profile: str = "") -> dict[str, Array]:
    """Return bytes by role, measured and estimated."""
    study = _profiles.shown(runs, profile, _can_draw)
    peak = dict(study.tables.get("peak", {}) if study else {}) or {"bytes": np.empty(0)}
    names = {"estimate": "estimate_bytes"}
    return {names.get(name, name): values for name, values in peak.items()}


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if a profile has memory in it."""
    reason = _profiles.no_profile(runs)
    if reason is None and _profiles.shown(runs, can_draw=_can_draw) is None:
        return "The profile of this session has no memory data."
    return reason


def _can_draw(study: Study) -> bool:
    return bool(breakdown.peak(study))


PLOT = Plot(
    name="memory_roles",
    title="Memory by role",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
    choices_in=partial(_profiles.choices, can_draw=_can_draw),
    key=_profiles.key,
)
