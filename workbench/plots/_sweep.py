"""Shared by the plots of a sweep: the chosen sweep, its axes, and the layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter, QPen, QPolygonF

from sessions.model import Study
from sessions.plain_text import capitalized
from sessions.studies import sweep
from sessions.studies.scaling import Scaling
from sessions.studies.sweep import Curve
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers import strokes
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer, dot
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style, shade
from workbench.charts.units import STEPS, THROUGHPUTS, Unit

LATEST = "latest"
WRONG = "wrong"  # a mark over a point that was measured
_DOT_PX = 3.5
_MARK_PX = 5.0
_MOST_TICKS = 12
_LINE_POINTS = 33
_LANE_SHARE = 0.08  # share of the height: the row of unmeasured points at the top
_MOST_NAMED = 4  # curves that are named there too
_MEASURED_HINT = "No sweep was measured: choose a field in the panel Sweep, or run "


@dataclass(frozen=True)
class Column:
    """The column of a sweep's table that a plot shows."""

    name: str  # name of the table's column
    title: str
    unit: Unit
    logarithmic: bool = False


def curves_plot(name: str, title: str, text: str, column: Column, *, fits: bool = False) -> Plot:
    """Return the plot of one column over the first field, a curve for each arm."""

    def draw(canvas: Canvas, runs: Sequence[Run], style: Style, *, sweep: str = LATEST) -> None:
        study = shown(runs, sweep)
        if study is not None:
            draw_curves(canvas, study, style, column, fits)

    def numbers(runs: Sequence[Run], *, sweep: str = LATEST) -> dict[str, Array]:
        return table(runs, sweep)

    return Plot(
        name=name,
        title=title,
        help=text,
        draw=draw,
        table=numbers,
        can_show=no_sweep,
        axis="value",
        choices_in=choices,
        key=key,
    )


def shown(runs: Sequence[Run], choice: str = LATEST) -> Study | None:
    """Return the chosen sweep of the first run that has one."""
    for run in runs:
        sweeps = sweep.sweeps(run.session.studies)
        if sweeps:
            return sweeps[-1 if choice == LATEST else min(int(choice), len(sweeps)) - 1]
    return None


def no_sweep(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if a point was measured."""
    study = shown(runs)
    if study is None:
        if any(stored.kind == sweep.KIND for run in runs for stored in run.session.studies):
            return "No point of the sweep has been measured yet."
        return f"{_MEASURED_HINT}workbench sweep."
    if not any(len(curve.x) for curve in sweep.curves(study)):
        return "No point of the sweep has been measured yet."
    return None


def choices(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """Return the names of the sweeps if there are several."""
    for run in runs:
        count = len(sweep.sweeps(run.session.studies))
        if count > 1:
            return {"sweep": (LATEST, *map(str, range(1, count + 1)))}
    return {}


def key(runs: Sequence[Run]) -> object:
    """Return what a drawing depends on: every point changes it."""
    studies = [study for run in runs for study in sweep.sweeps(run.session.studies)]
    return [
        [len(study.tables[name]["arm"]) for name in (sweep.POINTS, sweep.NUMBERS)
         if name in study.tables]
        for study in studies
    ]  # fmt: skip


def unit_of(name: str, unit: Unit, study: Study) -> Unit:
    """Return the unit of a column of the table: a throughput counts tokens or samples."""
    return THROUGHPUTS[sweep.throughput_unit(study)] if name == "tokens_per_s" else unit


def draw_curves(
    canvas: Canvas, study: Study, style: Style, column: Column, fits: bool = False
) -> None:
    """Draw every curve of one column over the first field, and the points without a number."""
    title = sweep.field_title(study)
    # Without an allocator's count, a point's memory is that of the process.
    shown_as = sweep.peak_title(study) if column.name == "peak_bytes" else column.title
    unit = unit_of(column.name, column.unit, study)
    canvas.describe((STEPS, capitalized(title)), (unit, capitalized(shown_as)))
    canvas.zero = not column.logarithmic
    canvas.pad_x = 0.06
    to_axis = axis_transform(study)
    curves = sweep.curves(study)
    canvas.axis("bottom").categories = _ticks(study, to_axis)
    canvas.least_x = _ends(study, to_axis)
    missing = [curve for curve in curves if not curve.measured.all()]
    for color, curve in enumerate(curves):
        name = sweep.name_of(study, curve)
        fitted = sweep.fit_of(study, curve) if fits else None
        drawn = fitted is not None and math.isfinite(fitted.exponent * fitted.factor)
        if fitted is not None and drawn:
            canvas.add(FittedLine(curve, fitted, to_axis, color, style, _fit_name(name, fitted)))
        joined = not drawn and sweep.is_numeric(study)  # there is nothing between two words
        canvas.add(Points(curve, column, to_axis, color, style, name, joined, named=not drawn))
    spans = [span for layer in canvas.layers if (span := layer.y_span()) is not None]
    low = min((span[0] for span in spans), default=0.0)
    high = max((span[1] for span in spans), default=1.0)
    above = high + _LANE_SHARE * len(missing) * (high - (low if column.logarithmic else 0.0))
    for row, curve in enumerate(missing):
        name = sweep.name_of(study, curve) if 1 < len(curves) <= _MOST_NAMED else ""
        canvas.add(
            Missed(curve, to_axis, row, above, style.pen(curves.index(curve), dash=0), style, name)
        )


def axis_transform(study: Study) -> Callable[[Array], Array]:
    """Return the function from values of x to positions on the axis: log10 if all are above 0."""
    values = sweep.axis(study, 0)
    if sweep.is_numeric(study) and min(map(float, values)) > 0:
        return lambda x: np.log10(np.asarray(x, np.float64))
    return lambda x: np.asarray(x, np.float64)


def _ends(study: Study, to_axis: Callable[[Array], Array]) -> tuple[float, float]:
    """Return the positions of the least and the greatest requested size."""
    values = sweep.axis(study, 0)
    numbers = values if sweep.is_numeric(study) else range(len(values))
    positions = to_axis(np.array(numbers, np.float64))
    return float(positions.min()), float(positions.max())


def _ticks(study: Study, to_axis: Callable[[Array], Array]) -> list[tuple[float, str]]:
    """Return the requested sizes as ticks, thinned if there are many."""
    values = sweep.axis(study, 0)
    stride = -(-len(values) // _MOST_TICKS)
    words = not sweep.is_numeric(study)
    return [
        (float(to_axis(np.array(number if words else value, float))), sweep.shown(value))
        for number, value in list(enumerate(values))[::stride]
    ]


def _fit_name(name: str, fitted: Scaling) -> str:
    text = sweep.exponent_text(fitted).partition(", no interval")[0]
    return f"{name}: exponent {text.replace('-', '−')}"


class Points(Layer):
    """The measured points of one curve, ``joined`` by lines or not.

    ``named``: in the legend; a line that is fitted to them names the curve otherwise.
    """

    z = 30.0

    def __init__(
        self,
        curve: Curve,
        column: Column,
        to_axis: Callable[[Array], Array],
        color: int,
        style: Style,
        name: str,
        joined: bool,
        named: bool,
    ) -> None:
        super().__init__()
        self._color, self._style, self._name = color, style, name
        self._joined, self._named = joined, named
        taken = curve.measured & np.isfinite(curve.columns[column.name])
        self._all = to_axis(curve.x)
        self._x = self._all[taken]
        numbers = curve.numbers or [None] * len(taken)
        self._wrong = [
            check is not None and check.right is False for check in compress(numbers, taken)
        ]
        values = curve.columns[column.name][taken]
        with np.errstate(all="ignore"):
            self._y = np.log10(values) if column.logarithmic else values

    def entries(self) -> list[Entry]:
        if not self._named:
            return []
        pen = self._style.pen(self._color)
        if self._joined:
            return [Entry(self._name, "line", pen, QBrush(Qt.BrushStyle.NoBrush))]
        return [Entry(self._name, "dots", pen, QBrush(pen.color()))]

    def x_span(self) -> tuple[float, float] | None:
        return (float(self._all.min()), float(self._all.max())) if len(self._all) else None

    def y_span(self) -> tuple[float, float] | None:
        finite = self._y[np.isfinite(self._y)]
        return (float(finite.min()), float(finite.max())) if len(finite) else None

    def draw(self, painter: QPainter, frame: Frame) -> None:
        if not len(self._x):
            return
        style = self._style
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        x, y = frame.px(self._x), frame.py(self._y)
        if self._joined:
            pen = style.pen(self._color)
            strokes.polyline(painter, pen, x, y, math.inf, frame, joined=True)
        color = style.color(self._color)
        painter.setPen(QPen(color, style.line_px))
        for dot_x, height, wrong in zip(x.tolist(), y.tolist(), self._wrong, strict=True):
            if -_DOT_PX <= dot_x <= frame.width + _DOT_PX:
                dot(painter, QPointF(dot_x, height), _DOT_PX * style.line_px / 1.5, color)
                if wrong:
                    pen = QPen(shade(style.theme.bad), style.line_px)
                    draw_mark(painter, QPointF(dot_x, height), WRONG, pen)


class FittedLine(Layer):
    """The power law fitted to one curve: a straight line where both axes are logarithmic."""

    z = 20.0

    def __init__(
        self,
        curve: Curve,
        fitted: Scaling,
        to_axis: Callable[[Array], Array],
        color: int,
        style: Style,
        name: str,
    ) -> None:
        super().__init__()
        self._color, self._style, self._name = color, style, name
        sizes = curve.x[curve.measured & (curve.x > 0)]
        # Many points: on a plain axis, which a size of 0 makes, a power law is no straight line.
        along = np.geomspace(sizes.min(), sizes.max(), _LINE_POINTS)
        with np.errstate(divide="ignore", invalid="ignore"):
            self._x, self._y = to_axis(along), np.log10(fitted.at(along))

    def entries(self) -> list[Entry]:
        pen = self._style.pen(self._color)
        return [Entry(self._name, "line", pen, QBrush(Qt.BrushStyle.NoBrush))]

    def y_span(self) -> tuple[float, float]:
        return float(self._y.min()), float(self._y.max())

    def draw(self, painter: QPainter, frame: Frame) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        pen = self._style.pen(self._color)
        x, y = frame.px(self._x), frame.py(self._y)
        strokes.polyline(painter, pen, x, y, math.inf, frame, joined=True)


class Missed(Layer):
    """The points of one curve that have no number, along the top: a shape, and words.

    A triangle is out of memory, a square was refused, a cross failed or is void. The axis reaches
    ``above``, so that they lie over nothing.
    """

    z = 40.0

    def __init__(
        self,
        curve: Curve,
        to_axis: Callable[[Array], Array],
        row: int,
        above: float,
        pen: QPen,
        style: Style,
        name: str,
    ) -> None:
        super().__init__()
        self._row, self._above, self._pen = row, above, pen
        self._style, self._name = style, name
        missing = ~curve.measured
        self._x = to_axis(curve.x)[missing]
        self._outcomes = [curve.outcomes[number] for number in np.flatnonzero(missing).tolist()]

    def y_span(self) -> tuple[float, float]:
        return self._above, self._above

    def draw(self, painter: QPainter, frame: Frame) -> None:
        style = self._style
        font = style.font(small=True)
        metrics = QFontMetricsF(font)
        y = (self._row + 0.5) * (metrics.height() + 3) + 2
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        painter.setFont(font)
        last_named = ""
        for mark_x, outcome in zip(frame.px(self._x).tolist(), self._outcomes, strict=True):
            if not 0 <= mark_x <= frame.width:
                continue
            draw_mark(painter, QPointF(mark_x, y), outcome, QPen(self._pen))
            if outcome != last_named:
                last_named = outcome
                self._draw_text(painter, metrics, mark_x, y, outcome, frame.width)

    def _draw_text(
        self,
        painter: QPainter,
        metrics: QFontMetricsF,
        mark_x: float,
        y: float,
        outcome: str,
        width: float,
    ) -> None:
        text = f"{self._name}: {outcome}" if self._name else outcome
        text = metrics.elidedText(text, Qt.TextElideMode.ElideMiddle, max(60.0, 0.5 * width))
        need = metrics.horizontalAdvance(text)
        left = mark_x - need - 2 * _MARK_PX - 2  # a point that is out of memory is to the right
        if left < 0:
            left = mark_x + 2 * _MARK_PX + 2
        theme = self._style.theme
        top = y - metrics.height() / 2
        painter.fillRect(QRectF(left - 3, top, need + 6, metrics.height()), shade(theme.surface))
        painter.setPen(shade(theme.text))
        painter.drawText(QPointF(left, top + metrics.ascent()), text)


def draw_mark(painter: QPainter, center: QPointF, outcome: str, pen: QPen) -> None:
    """Draw the shape of an outcome: triangle, square or cross, filled if memory ran out."""
    x, y, size = center.x(), center.y(), _MARK_PX
    pen.setWidthF(max(pen.widthF(), 1.5))
    painter.setPen(pen)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    if outcome == sweep.OUT_OF_MEMORY:
        painter.setBrush(pen.color())
        corners = [(x - size, y + size), (x, y - size), (x + size, y + size)]
        painter.drawPolygon(QPolygonF([QPointF(*corner) for corner in corners]))
    elif outcome == sweep.REFUSED:
        painter.drawRect(QRectF(x - size + 1, y - size + 1, 2 * size - 2, 2 * size - 2))
    else:
        painter.drawLine(QLineF(x - size, y - size, x + size, y + size))
        painter.drawLine(QLineF(x - size, y + size, x + size, y - size))


def table(runs: Sequence[Run], sweep_choice: str = LATEST) -> dict[str, Array]:
    """Return every point with all its columns, arm by arm, ascending."""
    study = shown(runs, sweep_choice)
    curves = sweep.curves(study) if study is not None else []
    if study is None or not curves:
        return {"arm": np.empty(0, object)}
    words = None if sweep.is_numeric(study) else np.array(sweep.axis(study, 0), object)
    columns: dict[str, list[Array]] = {}
    for curve in curves:
        count = len(curve.x)
        row = {"arm": np.full(count, curve.label, object)}
        fields = [str(field).replace(".", "_") for field in study.request["fields"]]
        row[fields[0]] = curve.x if words is None else words[curve.x.astype(int)]
        if curve.y is not None:
            row[fields[1]] = np.full(count, curve.y, object)
        row["outcome"] = np.array(curve.outcomes, object)
        row |= dict(curve.columns)
        known = (None if check is None else check.right for check in curve.numbers)
        row["right"] = np.array([math.nan if right is None else right for right in known], float)
        row["note"] = np.array(curve.reasons, object)
        for name, values in row.items():
            columns.setdefault(name, []).append(values)
    return {name: np.concatenate(parts) for name, parts in columns.items()}
