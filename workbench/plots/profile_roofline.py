"""The operators of a profile under the device's measured roof.

The x axis is arithmetic intensity, the y axis FLOP/s; both are logarithmic. The roof is the rate
that a large copy and a large matrix product reached on this device. A dot is an operator of the
kernel library, or all other kernels of one class; its size is its share of the step. Work without
FLOPs is drawn at the left edge; its distance below the slope shows how far its rate is below the
copy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QFontMetricsF, QPainter

from sessions.model import Study
from sessions.studies import breakdown
from sessions.studies.breakdown import RoofPoint
from sessions.studies.kernels import Roof
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Layer, dot
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style, shade
from workbench.charts.units import Logarithmic
from workbench.plots import _profiles
from workbench.plots._profiles import class_color
from workbench.plots.roofline import RoofLine

_INTENSITY = Logarithmic("FLOP/B", kind="plain")
_RATE = Logarithmic("FLOP/s")
_MARGIN = 0.3  # decades beyond the dots on either side
_DECADES = 4.5  # below the fastest that are shown; slower dots lie on the lower edge
_SMALL_PX, _LARGE_PX = 3.0, 9.0  # radius of a dot
_NAMED = 0.01  # share of the step from which on a dot has a name


class Operators(Layer):
    """The dots with their names."""

    z = 30.0

    def __init__(self, points: Sequence[RoofPoint], style: Style) -> None:
        super().__init__()
        self.points = sorted(points, key=lambda point: point.us)
        self._style = style
        self._x = np.log10([point.intensity for point in self.points])
        self._y = np.log10([point.achieved for point in self.points])
        total = sum(point.us for point in self.points)
        self._shares = [point.us / total for point in self.points]

    def x_span(self) -> tuple[float, float]:
        """Return the range of the dots with a margin."""
        return float(self._x.min()) - _MARGIN, float(self._x.max()) + _MARGIN

    def y_span(self) -> tuple[float, float]:
        """Return the range of the dots with a margin for names."""
        top = float(self._y.max())
        return max(float(self._y.min()) - _MARGIN, top - _DECADES), top

    def at(self, frame: Frame, point: QPointF) -> RoofPoint | None:
        """Return the dot at a point of the axes."""
        dx = frame.px(self._x) - frame.px(point.x())
        dy = frame.py(self._y) - frame.py(point.y())
        nearest = int(np.argmin(dx**2 + dy**2))
        return self.points[nearest] if math.hypot(dx[nearest], dy[nearest]) < 12 else None

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw small dots first, then names where there is room, in order of time."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        scale = self._style.line_px / 1.5
        x, y = frame.px(self._x), np.minimum(frame.py(self._y), frame.height - _SMALL_PX)
        radii = [
            scale * (_SMALL_PX + (_LARGE_PX - _SMALL_PX) * math.sqrt(share))
            for share in self._shares
        ]
        for index, point in enumerate(self.points):
            color = class_color(point.kind, self._style, strong=True)
            dot(painter, QPointF(x[index], y[index]), radii[index], color)
        font = self._style.font(small=True)
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        painter.setPen(shade(self._style.theme.text))
        taken = [
            QRectF(x[n] - radii[n], y[n] - radii[n], 2 * radii[n], 2 * radii[n])
            for n in range(len(self.points))
        ]
        plot = QRectF(0, 0, frame.width, frame.height + metrics.descent())
        for index in reversed(range(len(self.points))):
            if self._shares[index] < _NAMED or not 0 <= x[index] <= frame.width:
                continue
            name = self.points[index].name
            width = metrics.horizontalAdvance(name)
            beside_y, below_y = y[index] - metrics.height() / 2, y[index] + radii[index] + 1
            for left, top in (
                (x[index] + radii[index] + 3, beside_y),
                (x[index] - radii[index] - 3 - width, beside_y),
                (x[index] - width / 2, below_y),
                (min(x[index] - radii[index], frame.width - width), below_y),
            ):
                area = QRectF(left, top, width, metrics.height())
                if plot.contains(area) and not any(area.intersects(other) for other in taken):
                    taken.append(area)
                    painter.drawText(QPointF(left, top + metrics.ascent()), name)
                    break


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, profile: str = "") -> None:
    """Draw the roofs of all dtypes, and a dot for each operator."""
    study = _profiles.shown(runs, profile, _can_draw)
    points = breakdown.roof_points(study) if study is not None else []
    if study is None or not points:
        return
    plot_item.describe((_INTENSITY, "Arithmetic intensity"), (_RATE, "Achieved"))
    plot_item.zero = False
    plot_item.pad_x = 0.0
    plot_item.header.subtitle = study.title
    ends = [point.intensity for point in points]
    low, high = min(ends) / 10**_MARGIN, max(ends) * 10**_MARGIN
    rate, flops = breakdown.ceilings(study)
    for number, (dtype, flops_per_s) in enumerate(flops.items()):
        plot_item.add(RoofLine(Roof(dtype, rate, flops_per_s), low, high, number, style))
    plot_item.add(Operators(points, style))


def table(runs: Sequence[Run], *, profile: str = "") -> dict[str, Array]:
    """Return time, intensity, achieved and attainable rate of every dot."""
    study = _profiles.shown(runs, profile, _can_draw)
    points = breakdown.roof_points(study) if study is not None else []
    return {
        "operator": np.array([point.name for point in points], object),
        "us": np.array([point.us for point in points]),
        "flop_per_byte": np.array([point.intensity for point in points]),
        "achieved_flop_per_s": np.array([point.achieved for point in points]),
        "share_of_attainable": np.array([point.share for point in points]),
    }


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show, None if there is something."""
    if reason := _profiles.no_profile(runs):
        return reason
    if _profiles.shown(runs, can_draw=_can_draw) is not None:
        return None
    return "This profile has no bytes and FLOPs of its operators, or no ceilings."


def _can_draw(study: Study) -> bool:
    return bool(breakdown.roof_points(study))


PLOT = Plot(
    name="profile_roofline",
    title="Roofline of a step",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
    choices_in=partial(_profiles.choices, can_draw=_can_draw),
    key=_profiles.key,
)
