"""The configurations of an optimization: step time against memory, error or energy.

The x axis is the step time that the search estimated; the y axis is the chosen quantity. The large
dots, joined by a line, are the Pareto front: no other configuration is better in one quantity and
as good in the others. The ring is the best configuration, the square is the start. A cross is a
configuration that cannot be proposed, because its numbers are wrong or it exceeds a limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter, QPen, QPolygonF

from sessions.model import Study
from sessions.studies.attribution.words import rows
from sessions.studies.optimization.rows import BEST, START
from sessions.studies.optimization.space import RACED
from sessions.studies.optimization.words import CANDIDATES, changed_options, optimizations
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer, cross, dot
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style, shade
from workbench.charts.units import BYTES, MILLISECONDS, STEPS, Unit

_SMALL_PX, _LARGE_PX, _RING_PX = 3.0, 5.0, 8.0
_MARGIN = 0.06  # share of the range on every side
_NAME_PX = 260.0  # largest width of a name
FRONT, OTHER, REFUSED = "Pareto front", "other configurations", "cannot be proposed"
_NOTHING = (
    "No optimization is in this session: press Optimize in its panel, or run workbench optimize."
)


@dataclass(frozen=True)
class Quantity:
    """A quantity on the vertical axis: its column, its title and its unit."""

    column: str
    title: str
    unit: Unit


QUANTITIES = {
    "memory": Quantity("peak_bytes", "Peak memory", BYTES),
    "error": Quantity("max_error", "Largest error", STEPS),
    "energy": Quantity("joules", "Energy of a step", Unit("J")),
}


class Configurations(Layer):
    """The dots, the front that joins some of them, and the names on the front."""

    z = 30.0

    def __init__(
        self, shown: Sequence[Mapping[str, Any]], quantity: Quantity, run: Run, style: Style
    ) -> None:
        super().__init__()
        self.rows, self._style, self._titled = list(shown), style, run.titled
        self._x = np.array([float(row["step_ms"]) for row in shown])
        self._y = np.array([float(row[quantity.column]) for row in shown])

    def entries(self) -> list[Entry]:
        """Return one entry for each kind of mark that is drawn."""
        front_pen, other_pen = self._style.pen(0), self._style.pen(1)
        entries = [
            Entry(FRONT, "dots", front_pen, QBrush(front_pen.color())),
            Entry(OTHER, "dots", other_pen, QBrush(other_pen.color())),
            Entry(REFUSED, "cross", other_pen, QBrush(other_pen.color())),
        ]
        kinds = {self._kind(row) for row in self.rows}
        return [entry for entry in entries if entry.name in kinds]

    def x_span(self) -> tuple[float, float]:
        """Return the range of step times with a margin."""
        return _wider(self._x)

    def y_span(self) -> tuple[float, float]:
        """Return the range of values with a margin."""
        return _wider(self._y)

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw the front's line, then the dots, then the names."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        points = [
            QPointF(float(frame.px(x)), float(frame.py(y)))
            for x, y in zip(self._x, self._y, strict=True)
        ]
        on_front = sorted(
            (p for p, row in zip(points, self.rows, strict=True) if row["front"] == 1),
            key=QPointF.x,
        )
        pen = self._style.pen(0)
        painter.setPen(pen)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPolyline(QPolygonF(on_front))
        inside = QRectF(0, 0, frame.width, frame.height)
        for row, point in zip(self.rows, points, strict=True):
            if inside.contains(point):
                self._mark(painter, row, point)
        self._name(painter, frame, points)

    def _short(self, row: Mapping[str, Any]) -> str:
        best = next((other for other in self.rows if other["role"] == BEST), None)
        return self._titled(difference_words(row, best))

    @staticmethod
    def _kind(row: Mapping[str, Any]) -> str:
        """Return the name of the mark of a configuration in the legend."""
        if row["front"] == 1:
            return FRONT
        return REFUSED if row["reason"] else OTHER

    def _mark(self, painter: QPainter, row: Mapping[str, Any], point: QPointF) -> None:
        is_front = row["front"] == 1
        color = self._style.color(0 if is_front else 1)
        if self._kind(row) == REFUSED:
            cross(painter, point, _SMALL_PX, color)
        else:
            dot(painter, point, _LARGE_PX if is_front else _SMALL_PX, color)
        painter.setPen(QPen(shade(self._style.theme.text), 1.5))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        if row["role"] == BEST:
            painter.drawEllipse(point, _RING_PX, _RING_PX)
        if row["candidate"] == 0:
            corner = QPointF(_RING_PX, _RING_PX)
            painter.drawRect(QRectF(point - corner, point + corner))

    def _name(self, painter: QPainter, frame: Frame, points: Sequence[QPointF]) -> None:
        """Name the start and the front, where there is room."""
        font = self._style.font(small=True)
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        painter.setPen(shade(self._style.theme.text))
        taken = [QRectF(p.x() - _RING_PX, p.y() - _RING_PX, 2 * _RING_PX, 2 * _RING_PX)
                 for p in points]  # fmt: skip
        for row, point in zip(self.rows, points, strict=True):
            if row["front"] != 1 and row["role"] not in (BEST, START):
                continue
            name = metrics.elidedText(self._short(row), Qt.TextElideMode.ElideRight, _NAME_PX)
            width, height = metrics.horizontalAdvance(name), metrics.height()
            left = min(max(0.0, point.x() - width / 2), frame.width - width)
            for top in (point.y() + _RING_PX + 2, point.y() - _RING_PX - 2 - height):
                area = QRectF(left, top, width, height)
                if (
                    top >= 0
                    and area.bottom() <= frame.height
                    and not any(area.intersects(other) for other in taken)
                ):
                    taken.append(area)
                    painter.drawText(QPointF(left, top + metrics.ascent()), name)
                    break


def difference_words(row: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    """Return how a configuration differs from the best one; its title if there is none."""
    if best is None or row["candidate"] == 0:
        return str(row["title"])
    options, best_options = changed_options(row), changed_options(best)
    differences = [
        *sorted(options - best_options),
        *(f"without {option}" for option in sorted(best_options - options)),
    ]
    return ", ".join([BEST, *differences])


def shown(runs: Sequence[Run]) -> tuple[Study, Run] | None:
    """Return the newest optimization of the first run that has one, with that run."""
    for run in runs:
        if studies := optimizations(run.session):
            return studies[-1], run
    return None


def measured(runs: Sequence[Run], quantity: Quantity) -> list[Mapping[str, Any]]:
    """Return the rows of the configurations that have a step time and the quantity."""
    newest = shown(runs)
    candidates = [] if newest is None else rows(newest[0], CANDIDATES)
    return [
        row
        for row in candidates
        if row["state"] == RACED and math.isfinite(row["step_ms"] + row[quantity.column])
    ]


def choices(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """Return the quantities that were measured."""
    known = tuple(name for name, quantity in QUANTITIES.items() if measured(runs, quantity))
    return {"against": known} if known else {}


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if there is something."""
    if shown(runs) is None:
        return _NOTHING
    return None if choices(runs) else "No configuration has been measured and checked yet."


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, against: str = "memory") -> None:
    """Draw every configuration that was measured."""
    newest, quantity = shown(runs), _quantity(runs, against)
    if newest is None or quantity is None:
        return
    study, run = newest
    plot_item.header.subtitle = study.title
    plot_item.describe((MILLISECONDS, "Step time, estimated"), (quantity.unit, quantity.title))
    plot_item.zero = False
    plot_item.pad_x = 0.0
    plot_item.add(Configurations(measured(runs, quantity), quantity, run, style))


def table(runs: Sequence[Run], *, against: str = "memory") -> dict[str, Array]:
    """Return what is drawn: every configuration with its step time and the quantity."""
    quantity = _quantity(runs, against)
    drawn = [] if quantity is None else measured(runs, quantity)
    column = "peak_bytes" if quantity is None else quantity.column
    return {
        "configuration": np.array([row["title"] for row in drawn], dtype=object),
        "step_ms": np.array([row["step_ms"] for row in drawn], np.float64),
        column: np.array([row[column] for row in drawn], np.float64),
        "front": np.array([row["front"] for row in drawn], np.float64),
    }


def _quantity(runs: Sequence[Run], against: str) -> Quantity | None:
    known = choices(runs).get("against", ())
    name = against if against in known else next(iter(known), "")
    return QUANTITIES.get(name)


def _wider(values: Array) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = _MARGIN * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def _key(runs: Sequence[Run]) -> object:
    """Return the identities of the studies: their rows are replaced, not appended to."""
    return [id(study) for run in runs for study in optimizations(run.session)]


PLOT = Plot(
    name="pareto",
    title="Configurations",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
    choices_in=choices,
    key=_key,
)
