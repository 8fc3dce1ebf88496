"""Timed kernels under this device's own roof: achieved and attainable rate.

The x axis is arithmetic intensity, the y axis is FLOP/s; both are logarithmic. The roof is the rate
of a large copy (the slope) and of a large matrix product (the level) in the same run. A kernel on
the roof needs only the time of its bytes and FLOPs. A dot is one implementation at one size in one
direction. Each operator is named below its lowest dot of each direction, if there is room.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter, QPen

from sessions.studies.kernels import Rated, Roof, rated, roofs
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers import strokes
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer, dot
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style, shade
from workbench.charts.units import Logarithmic, Unit

_INTENSITY = Logarithmic("FLOP/B", kind="plain")
_RATE = Logarithmic("FLOP/s")
_FLOPS, _BYTES = Unit("FLOP/s"), Unit("B/s")
_DOT_PX = 3.5
_NAME_ROWS = 3  # rows by which a name may move down to find room
_MARGIN = 0.3  # decades beyond the kernels on either side
_ALL = "all"


class RoofLine(Layer):
    """Slope and level of one dtype, from the leftmost kernel to beyond the ridge."""

    z = 10.0

    def __init__(self, roof: Roof, low: float, high: float, color: int, style: Style) -> None:
        super().__init__()
        self._roof, self._color, self._style = roof, color, style
        ridge = roof.flops_per_s / roof.bytes_per_s
        places = np.unique([low, min(max(ridge, low), high), high])
        self._x, self._y = np.log10(places), np.log10(roof.at(places))

    def entries(self) -> list[Entry]:
        """Return the roof's two rates."""
        roof = self._roof
        rates = f"{_BYTES.text(roof.bytes_per_s)}, {_FLOPS.text(roof.flops_per_s)}"
        name = f"measured roof, {roof.dtype}: {rates}"
        return [Entry(name, "line", self._pen(), QBrush(Qt.BrushStyle.NoBrush))]

    def y_span(self) -> tuple[float, float]:
        """Return its level; the axis need not show all of the slope."""
        return float(self._y.max()), float(self._y.max())

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw a line with one bend."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        x, y = frame.px(self._x), frame.py(self._y)
        strokes.polyline(painter, self._pen(), x, y, math.inf, frame, joined=True)

    def _pen(self) -> QPen:
        pen = self._style.pen(0, dash=self._color, width=1.3)
        pen.setColor(shade(self._style.theme.muted))
        return pen


class Kernels(Layer):
    """The dots of one implementation."""

    z = 30.0

    def __init__(self, kernels: list[Rated], color: int, style: Style) -> None:
        super().__init__()
        self._kernels, self._color, self._style = kernels, color, style
        self._x = np.log10([kernel.intensity for kernel in kernels])
        self._y = np.log10([kernel.achieved for kernel in kernels])

    def entries(self) -> list[Entry]:
        """Return the implementation's name."""
        pen = self._style.pen(self._color)
        name = self._kernels[0].implementation
        return [Entry(name, "dots", pen, QBrush(pen.color()))]

    def x_span(self) -> tuple[float, float]:
        """Return the range of its kernels with a margin."""
        return float(self._x.min()) - _MARGIN, float(self._x.max()) + _MARGIN

    def y_span(self) -> tuple[float, float]:
        """Return the range of its kernels with a margin below for names."""
        return float(self._y.min()) - _MARGIN, float(self._y.max())

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw a dot for each kernel."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        color, radius = self._style.color(self._color), _DOT_PX * self._style.line_px / 1.5
        for x, y in zip(frame.px(self._x), frame.py(self._y), strict=True):
            if 0 <= x <= frame.width:
                dot(painter, QPointF(x, y), radius, color)


class Names(Layer):
    """Operators' names below their lowest dots, where there is room: the roof is above."""

    z = 25.0

    def __init__(self, lowest: Mapping[str, Rated], style: Style) -> None:
        super().__init__()
        self.lowest, self._style = lowest, style  # by name

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw the names, those of the slowest first."""
        font = self._style.font(small=True)
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        painter.setPen(shade(self._style.theme.text))
        taken: list[QRectF] = []
        for name, kernel in sorted(self.lowest.items(), key=lambda kernel_: kernel_[1].achieved):
            x = frame.px(math.log10(kernel.intensity))
            y = frame.py(math.log10(kernel.achieved))
            width = metrics.horizontalAdvance(name)
            left = min(max(0.0, x - width / 2), frame.width - width)
            area = QRectF(left, y + _DOT_PX + 2, width, metrics.height())
            for _ in range(_NAME_ROWS):
                if not any(area.intersects(other) for other in taken):
                    break
                area.translate(0.0, metrics.height())
            else:
                continue
            if 0 <= x <= frame.width and area.bottom() <= frame.height:
                taken.append(area)
                painter.drawText(QPointF(left, area.top() + metrics.ascent()), name)


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, direction: str = _ALL) -> None:
    """Draw the roofs of all dtypes, and the dots of every implementation."""
    kernels = _rated_kernels(runs, direction)
    plot_item.describe((_INTENSITY, "Arithmetic intensity"), (_RATE, "Achieved"))
    plot_item.zero = False
    plot_item.pad_x = 0.0
    several = len({kernel.direction for kernel in kernels}) > 1
    lowest: dict[str, Rated] = {}
    for kernel in sorted(kernels, key=lambda kernel: kernel.achieved):
        name = f"{kernel.operator}, {kernel.direction}" if several else kernel.operator
        lowest.setdefault(name, kernel)
    ends = [kernel.intensity for kernel in kernels]
    low, high = min(ends) / 10**_MARGIN, max(ends) * 10**_MARGIN
    for number, roof in enumerate(roofs(runs[0].session)):
        plot_item.add(RoofLine(roof, low, high, number, style))
    for color, name in enumerate(dict.fromkeys(kernel.implementation for kernel in kernels)):
        same_implementation = [kernel for kernel in kernels if kernel.implementation == name]
        plot_item.add(Kernels(same_implementation, color, style))
    plot_item.add(Names(lowest, style))


def table(runs: Sequence[Run], *, direction: str = _ALL) -> dict[str, Array]:
    """Return achieved and attainable rate of every drawn kernel, and their ratio."""
    kernels = _rated_kernels(runs, direction)
    words = ("operator", "case", "dtype", "direction", "implementation")
    numbers = {
        "flop_per_byte": [kernel.intensity for kernel in kernels],
        "achieved_flop_per_s": [kernel.achieved for kernel in kernels],
        "attainable_flop_per_s": [kernel.attainable for kernel in kernels],
        "share_of_attainable": [kernel.achieved / kernel.attainable for kernel in kernels],
    }
    return {
        **{name: np.array([getattr(kernel, name) for kernel in kernels], object) for name in words},
        **{name: np.array(column, np.float64) for name, column in numbers.items()},
    }


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None for one session of timed kernels."""
    if len(runs) > 1:
        return f"The roofline shows one session, but {len(runs)} were given."
    if not _rated_kernels(runs):
        return "The roofline needs timed kernels: run workbench bench and open its session."
    return None


def _rated_kernels(runs: Sequence[Run], direction: str = _ALL) -> list[Rated]:
    kernels = rated(runs[0].session) if runs else []
    return [kernel for kernel in kernels if direction in (_ALL, kernel.direction)]


def _choices(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    known = tuple(dict.fromkeys(kernel.direction for kernel in _rated_kernels(runs)))
    return {"direction": (_ALL, *known)} if len(known) > 1 else {}


PLOT = Plot(
    name="roofline",
    title="Roofline",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
    choices_in=_choices,
    key=lambda runs: len(_rated_kernels(runs)),
)
