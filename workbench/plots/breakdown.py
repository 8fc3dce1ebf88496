"""Time of a step by module: each module is drawn below the one that contains it.

The width is the time: of the module's kernels on the GPU, of its operators on the CPU. Work of a
module outside its inner modules is drawn below it in the colour of its operator class. A backward
pass counts for the module of its forward pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetricsF, QPainter, QPen

from sessions.model import Study
from sessions.studies.breakdown import Node, tree
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style, shade
from workbench.charts.units import PERCENT, STEPS
from workbench.plots import _profiles
from workbench.plots._profiles import MICROSECONDS, class_color

_LABEL_PX = 14.0  # a cell that is narrower has no room for a word
_LEAST_PX = 0.4  # narrower cells are not drawn; the cell above shows their time
_STUMP = 3  # letters of a name that was cut and says nothing any more


@dataclass(frozen=True)
class Cell:
    """One rectangle: a module, or its own work in one operator class."""

    title: str
    path: str
    depth: int
    start_us: float
    stop_us: float
    kind: str = ""  # empty for a module
    own_us: float = 0.0

    @property
    def us(self) -> float:
        """Its time."""
        return self.stop_us - self.start_us


def cells(study: Study) -> list[Cell]:
    """Return all rectangles of a profile, modules in the order of their names."""
    rectangles: list[Cell] = []

    def lay(node: Node, depth: int, start: float) -> float:
        at = start
        index = len(rectangles)
        rectangles.append(Cell("", "", 0, 0.0, 0.0))
        for child in sorted(node.children.values(), key=_order):
            at = lay(child, depth + 1, at)
        for kind, us in sorted(node.kinds.items(), key=lambda item: -item[1]):
            rectangles.append(Cell(kind, node.path, depth + 1, at, at + us, kind))
            at += us
        rectangles[index] = Cell(node.name, node.path, depth, start, at, own_us=node.own_us)
        return at

    lay(tree(study), 0, 0.0)
    return rectangles


def describe_cell(cell: Cell, step_us: float) -> str:
    """Return a cell in words and numbers."""
    time = MICROSECONDS.text(cell.us)
    share = PERCENT.text(100 * cell.us / step_us if step_us else 0.0)
    name = cell.path or "step"
    if cell.kind:
        return f"{name}: own {cell.kind}, {time} of a step, {share}"
    text = f"{name}: {time} of a step, {share}"
    if cell.own_us and cell.own_us < cell.us:
        text += f"; own work {MICROSECONDS.text(cell.own_us)}"
    return text


class Icicle(Layer):
    """The rectangles, with the step on top."""

    z = 10.0

    def __init__(self, cells: list[Cell], style: Style) -> None:
        super().__init__()
        self.cells = cells
        self._style = style
        self._hovered: Cell | None = None
        self.depth = 1 + max(cell.depth for cell in cells)
        self._start: Array = np.array([cell.start_us for cell in cells])
        self._stop: Array = np.array([cell.stop_us for cell in cells])
        self._row: Array = np.array([cell.depth for cell in cells])

    @property
    def step_us(self) -> float:
        """The time of the step."""
        return self.cells[0].us

    def at(self, x: float, y: float) -> Cell | None:
        """Return the cell at a point of the axes."""
        at_point = (self._start <= x) & (x < self._stop) & (self._row == np.floor(-y))
        matching = np.flatnonzero(at_point)
        return self.cells[int(matching[0])] if len(matching) else None

    def hover(self, cell: Cell | None) -> None:
        """Frame one cell."""
        if cell is not self._hovered:
            self._hovered = cell
            self.update()

    def x_span(self) -> tuple[float, float]:
        """Return the range of the step."""
        return 0.0, max(self.step_us, 1e-9)

    def entries(self) -> list[Entry]:
        """Return the operator classes and their time, the longest first."""
        totals: dict[str, float] = {}
        for cell in self.cells:
            if cell.kind:
                totals[cell.kind] = totals.get(cell.kind, 0.0) + cell.us
        ordered = sorted(totals.items(), key=lambda item: -item[1])
        return [
            Entry(
                f"{kind} {PERCENT.text(100 * us / self.step_us, 2)}",
                "patch",
                QPen(Qt.PenStyle.NoPen),
                QBrush(self._fill(kind)),
            )
            for kind, us in ordered
            if us > 0.005 * self.step_us
        ]

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw every cell that is wide enough to be seen."""
        left, right = frame.px(self._start), frame.px(self._stop)
        visible = (right - left >= _LEAST_PX) & (right > 0) & (left < frame.width)
        font = self._style.font(small=True)
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        for index in np.flatnonzero(visible).tolist():
            cell = self.cells[index]
            self._draw_cell(painter, metrics, frame, cell, float(left[index]), float(right[index]))

    def _draw_cell(
        self,
        painter: QPainter,
        metrics: QFontMetricsF,
        frame: Frame,
        cell: Cell,
        left: float,
        right: float,
    ) -> None:
        theme = self._style.theme
        top, bottom = frame.py(-float(cell.depth)), frame.py(-float(cell.depth + 1))
        left, right = max(0.0, left), min(frame.width, right)
        box = QRectF(QPointF(left, max(0.0, top)), QPointF(right, min(frame.height, bottom - 1)))
        if box.width() > 3:
            box.setRight(box.right() - 1)
        painter.fillRect(box, self._fill(cell.kind))
        if self._style.paper and not cell.kind:
            painter.setPen(QPen(shade(theme.line), 1))
            painter.drawRect(box)
        if cell is self._hovered:
            painter.setPen(QPen(shade(theme.text), 1.5))
            painter.drawRect(box.adjusted(0.75, 0.75, -0.75, -0.75))
        if box.width() < _LABEL_PX or box.height() < metrics.height():
            return
        text = metrics.elidedText(cell.title, Qt.TextElideMode.ElideRight, box.width() - 8)
        if text != cell.title and len(text) <= _STUMP:
            return
        painter.setPen(shade(theme.text))
        middle = box.center().y() + (metrics.ascent() - metrics.descent()) / 2
        painter.drawText(QPointF(box.left() + 4, middle), text)

    def _fill(self, kind: str) -> QColor:
        if not kind:
            return shade(self._style.theme.raised)
        return class_color(kind, self._style)


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, profile: str = "") -> None:
    """Draw the rectangles of one profile."""
    study = _profiles.shown(runs, profile)
    if study is None:
        return
    rectangles = cells(study)
    layer = Icicle(rectangles, style)
    plot_item.describe((MICROSECONDS, "Time of a step"), (STEPS, ""))
    plot_item.axis("left").categories = []
    plot_item.fixed_y = (-float(layer.depth), 0.0)
    plot_item.pad_x = 0.0
    plot_item.header.subtitle = study.title
    plot_item.add(layer)


def table(runs: Sequence[Run], *, profile: str = "") -> dict[str, Array]:
    """Return every kernel or operator by module and phase, of one step."""
    study = _profiles.shown(runs, profile)
    return dict(study.tables["kernels"]) if study else {"us": np.empty(0)}


def _order(node: Node) -> tuple[bool, list[tuple[int, str]]]:
    """Return the sort key: by name, numbers by size, and what is no module of the model last."""
    parts = re.split(r"(\d+)", node.name)
    outside = node.name.startswith("(") and not node.children
    return outside, [(int(part), "") if part.isdigit() else (0, part) for part in parts]


PLOT = Plot(
    name="breakdown",
    title="Time by module",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=_profiles.no_profile,
    axis="value",
    choices_in=_profiles.choices,
    key=_profiles.key,
)
