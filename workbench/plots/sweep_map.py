"""A sweep over two fields as a map for one arm: the fields are the x axis and the y axis.

Every cell shows its number. Dark is low, bright is high, on a logarithmic scale. A cell that could
not be measured is hatched, with a shape and the reason. A cell that is not measured yet is empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen

from sessions.model import Study
from sessions.studies import sweep as sweeps
from sessions.studies.sweep import Curve
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.scale import scale_color
from workbench.charts.style import Style, shade
from workbench.charts.units import BYTES, MILLISECONDS, STEPS, THROUGHPUTS, Unit
from workbench.plots import _sweep
from workbench.plots._narrowing import hatch
from workbench.plots._sweep import LATEST

_METRICS = {
    "step time": ("median_ms", MILLISECONDS),
    "throughput": ("tokens_per_s", THROUGHPUTS["tokens"]),
    "peak memory": ("peak_bytes", BYTES),
}
_GAP_PX = 1.0
_DARK = 0.185  # relative luminance above which dark text has more contrast than light text


class Cells(Layer):
    """The cells of one arm: one unit wide and high each, from 0 on."""

    z = 5.0

    def __init__(self, study: Study, curves: Sequence[Curve], metric: str, style: Style) -> None:
        super().__init__()
        self._style = style
        name, unit = _METRICS[metric]
        self._unit = _sweep.unit_of(name, unit, study)
        xs, ys = sweeps.axis(study, 0), sweeps.axis(study, 1)
        numeric = sweeps.is_numeric(study)
        self._size = (len(xs), len(ys))
        self._values: dict[tuple[int, int], float] = {}
        self._missed: dict[tuple[int, int], str] = {}
        for curve in curves:
            for point, x in enumerate(curve.x.tolist()):
                cell = (xs.index(x) if numeric else int(x), ys.index(curve.y))  # type: ignore[arg-type]
                if curve.outcomes[point] == sweeps.MEASURED:
                    self._values[cell] = float(curve.columns[name][point])
                else:
                    self._missed[cell] = curve.outcomes[point]
        logs = [math.log(value) for value in self._values.values() if value > 0]
        self._limits = (min(logs, default=0.0), max(logs, default=0.0))

    def x_span(self) -> tuple[float, float]:
        """Return the range of all columns."""
        return 0.0, float(self._size[0])

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw measured cells in their colour and hatch the rest."""
        font = self._style.font()
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        low, high = self._limits
        room = min((_area(cell, frame).width() for cell in self._values), default=0.0) - 4
        digits = digits_in(room, metrics, self._unit, self._values.values())
        for cell, value in self._values.items():
            share = (math.log(value) - low) / (high - low) if value > 0 and high > low else 0.5
            color = scale_color(share)
            area = _area(cell, frame)
            painter.fillRect(area, color)
            dark = luminance(color) > _DARK
            self._write(painter, metrics, area, self._unit.text(value, digits), QColor(_INK[dark]))
        for cell, outcome in self._missed.items():
            self._draw_missed(painter, metrics, _area(cell, frame), outcome)

    def _draw_missed(
        self, painter: QPainter, metrics: QFontMetricsF, area: QRectF, outcome: str
    ) -> None:
        theme = self._style.theme
        painter.save()
        painter.translate(area.topLeft())
        painter.setPen(QPen(shade(theme.muted, 0.5), 1))
        painter.drawLines(hatch(0.0, area.width(), area.height()))
        painter.restore()
        lines = _wrapped(outcome, metrics, area.width() - 6)
        height = metrics.height()
        middle = area.center().y() - len(lines) * height / 2
        pen = QPen(shade(theme.warning), self._style.line_px)
        _sweep.draw_mark(painter, QPointF(area.center().x(), middle), outcome, pen)
        for number, line in enumerate(lines):
            line_area = QRectF(area.left(), middle + (number + 0.5) * height, area.width(), height)
            width = metrics.horizontalAdvance(line) + 4
            plate = QRectF(line_area.center().x() - width / 2, line_area.top(), width, height)
            painter.fillRect(plate, shade(theme.surface))
            self._write(painter, metrics, line_area, line, shade(theme.text))

    def _write(
        self, painter: QPainter, metrics: QFontMetricsF, area: QRectF, text: str, color: QColor
    ) -> None:
        text = metrics.elidedText(text, Qt.TextElideMode.ElideRight, area.width() - 4)
        left = area.center().x() - metrics.horizontalAdvance(text) / 2
        top = area.center().y() - metrics.height() / 2
        painter.setPen(color)
        painter.drawText(QPointF(left, top + metrics.ascent()), text)


_INK = {True: "#10141a", False: "#f4f6f8"}  # on the scale's own colours, whatever the theme


def draw(
    plot_item: Canvas,
    runs: Sequence[Run],
    style: Style,
    *,
    metric: str = "step time",
    arm: str = "",
    sweep: str = LATEST,
) -> None:
    """Draw the cells of one arm, named along both axes."""
    study = _sweep.shown(runs, sweep)
    if study is None or sweeps.dimensions(study) < 2:
        return
    curves = [curve for curve in sweeps.curves(study) if curve.label == (arm or curve.label)]
    if not curves:
        return
    curves = [curve for curve in curves if curve.arm == curves[0].arm]
    titles = [sweeps.field_title(study, field) for field in (0, 1)]
    plot_item.describe((STEPS, titles[0].capitalize()), (STEPS, titles[1].capitalize()))
    for field, name in enumerate(("bottom", "left")):
        plot_item.axis(name).categories = [
            (number + 0.5, sweeps.shown(value))
            for number, value in enumerate(sweeps.axis(study, field))
        ]
    plot_item.fixed_y = (0.0, float(len(sweeps.axis(study, 1))))
    plot_item.pad_x = 0.0
    notes = [plot_item.header.subtitle, metric, sweeps.marked(curves[0])]
    plot_item.header.subtitle = ", ".join(filter(None, notes))
    plot_item.add(Cells(study, curves, metric, style))


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if a sweep has two fields and a point."""
    study = _sweep.shown(runs)
    if reason := _sweep.no_sweep(runs):
        return reason
    if study is not None and sweeps.dimensions(study) < 2:
        return "The map shows a sweep over two fields, but this sweep had one."
    return None


def table(
    runs: Sequence[Run], *, metric: str = "", arm: str = "", sweep: str = LATEST
) -> dict[str, Array]:
    """Return every point of all arms with all its columns."""
    return _sweep.table(runs, sweep)


def _choices(runs: Sequence[Run]) -> Mapping[str, tuple[str, ...]]:
    study = _sweep.shown(runs)
    arms = tuple(dict.fromkeys(curve.label for curve in sweeps.curves(study))) if study else ()
    return {**_sweep.choices(runs), **({"arm": arms} if len(arms) > 1 else {})}


def digits_in(room: float, metrics: QFontMetricsF, unit: Unit, values: Iterable[float]) -> int:
    """Return the most digits at which every number with its unit fits the room in pixels."""
    for digits in (3, 2):
        texts = (unit.text(value, digits) for value in values)
        if all(metrics.horizontalAdvance(text) <= room for text in texts):
            return digits
    return 1


def luminance(color: QColor) -> float:
    """Return the relative luminance of WCAG, with 2.2 as exponent of its power curve."""
    red, green, blue = (level**2.2 for level in (color.redF(), color.greenF(), color.blueF()))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _wrapped(text: str, metrics: QFontMetricsF, width: float) -> list[str]:
    """Wrap the text to the width, at spaces."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and metrics.horizontalAdvance(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _area(cell: tuple[int, int], frame: Frame) -> QRectF:
    """Return the cell in pixels, within the frame."""
    x = np.clip(frame.px(np.array([cell[0], cell[0] + 1.0])), 0, frame.width)
    y = frame.py(np.array([cell[1] + 1.0, cell[1]]))
    corners = QPointF(x[0] + _GAP_PX, y[0] + _GAP_PX), QPointF(x[1] - _GAP_PX, y[1] - _GAP_PX)
    return QRectF(*corners).normalized()


PLOT = Plot(
    name="sweep_map",
    title="Sweep over two fields",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
    options={"metric": tuple(_METRICS)},
    choices_in=_choices,
    key=_sweep.key,
)
