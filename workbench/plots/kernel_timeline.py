"""The profiled steps over time: host, launches, streams, the modules above them, and idle time.

A rectangle is one call; its width is its time, and its colour is its operator class. Modules are
nested. The line below the streams shows when the GPU was idle. Zoom with the wheel or W and S, move
with A and D or by dragging, and drag with Shift for the statistics of a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetricsF, QPainter, QPen

from sessions.studies import breakdown, timeline
from sessions.studies.breakdown import HOST_TRACK, LAUNCH_TRACK, STEP_TRACK
from sessions.studies.kernel_names import brief
from sessions.studies.timeline import HOST_MODULES, Lane, Timeline
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style, shade
from workbench.charts.units import STEPS
from workbench.plots import _profiles
from workbench.plots._profiles import MICROSECONDS, class_color
from workbench.theming.icons import mixed

_LEAST_PX = 1.5  # narrower slices share one pixel
_LABEL_PX = 24.0  # a slice that is narrower has no room for a word
_FAINT = 0.15  # opacity of what a search does not match
_HOST_ROWS = {True: 1, False: 4}  # rows of nested operators, with and without a GPU
_FEW, _ALL = "few", "all"
_MOST_ENTRIES = 8


@dataclass(frozen=True)
class Hit:
    """The slice under the mouse."""

    lane: Lane
    index: int  # in the lane

    @property
    def start_us(self) -> float:
        """Its start in the profile."""
        return float(self.lane.start[self.index])

    @property
    def stop_us(self) -> float:
        """Its end in the profile."""
        return float(self.lane.stop[self.index])

    @property
    def text(self) -> str:
        """Its name, time and module."""
        name, module = self.lane.texts[self.index], self.lane.modules[self.index]
        time = MICROSECONDS.text(self.stop_us - self.start_us)
        if self.lane.kind == "idle":
            return f"GPU idle: {time}"
        if self.lane.kind == "modules":
            return f"{module or name}: {time}"
        return f"{name}: {time}" + (f" in {module}" if module else "")


class Slices(Layer):
    """All lanes from top to bottom; ``selection`` is a range that is marked."""

    z = 10.0

    def __init__(self, data: Timeline, style: Style, rows: str = _FEW) -> None:
        super().__init__()
        self.timeline = data
        lanes = [self._short(lane, rows) for lane in data.lanes()]
        self.lanes = [lane for lane in lanes if rows == _ALL or lane.title != HOST_MODULES]
        self.selection: tuple[float, float] | None = None
        self._style = style
        self._hit: Hit | None = None
        self._matching: list[Array] | None = None
        self._tops = np.cumsum([0, *(lane.rows for lane in self.lanes)])
        self._colors = [self._colors_of(lane) for lane in self.lanes]

    @property
    def rows(self) -> int:
        """The number of rows of all lanes."""
        return int(self._tops[-1])

    def titles(self) -> list[tuple[float, str]]:
        """Return the name of each lane with the place of its middle."""
        return [
            (-(float(top) + lane.rows / 2), lane.title)
            for top, lane in zip(self._tops, self.lanes, strict=False)
        ]

    def search(self, text: str) -> int:
        """Fade what does not match the text; return how many slices do."""
        if not text:
            self._matching = None
        else:
            hits = self.timeline.matching(text)
            search_text = text.casefold()
            self._matching = [
                hits[lane.slices]
                if len(lane.slices)
                else np.array([search_text in module.casefold() for module in lane.modules], bool)
                for lane in self.lanes
            ]
        self.update()
        if self._matching is None:
            return 0
        pairs = zip(self.lanes, self._matching, strict=True)
        return sum(int(mask.sum()) for lane, mask in pairs if len(lane.slices))

    def select(self, selection: tuple[float, float] | None) -> None:
        """Mark a range."""
        self.selection = selection
        self.update()

    def at(self, x: float, y: float) -> Hit | None:
        """Return the slice at a place of the axes."""
        row = int(np.floor(-y))
        number = int(np.searchsorted(self._tops, row, "right")) - 1
        if not 0 <= number < len(self.lanes):
            return None
        lane = self.lanes[number]
        at_point = (lane.start <= x) & (x < lane.stop) & (lane.depth == row - self._tops[number])
        hits = np.flatnonzero(at_point)
        return Hit(lane, int(hits[-1])) if len(hits) else None

    def hover(self, hit: Hit | None) -> None:
        """Frame one slice."""
        if hit != self._hit:
            self._hit = hit
            self.update()

    def x_span(self) -> tuple[float, float]:
        """Return the range from the first step to the end of the last slice."""
        return 0.0, max(self.timeline.end_us, 1e-3)

    def entries(self) -> list[Entry]:
        """Return the operator classes, those of most time first."""
        totals: dict[str, float] = {}
        for stat in range(len(self.timeline.labels)):
            kind = self.timeline.kinds[stat]
            if kind:
                totals[kind] = totals.get(kind, 0.0) + self._label_us(stat)
        shown = sorted(totals, key=lambda kind: -totals[kind])[:_MOST_ENTRIES]
        no_pen = QPen(Qt.PenStyle.NoPen)
        return [
            Entry(kind, "patch", no_pen, QBrush(class_color(kind, self._style))) for kind in shown
        ]

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw every lane, the marked range and the slice under the mouse."""
        if self.selection is not None:
            left, right = (frame.px(x) for x in self.selection)
            band = QRectF(left, 0, right - left, frame.height)
            painter.fillRect(band, shade(self._style.theme.accent, 0.18))
        painter.setFont(self._style.font(small=True))
        for number, lane in enumerate(self.lanes):
            self._draw_lane(painter, frame, number, lane)
        if self._hit is not None and any(self._hit.lane is lane for lane in self.lanes):
            lane, index = self._hit.lane, self._hit.index
            number = next(n for n, other in enumerate(self.lanes) if other is lane)
            box = self._box(frame, number, int(lane.depth[index]), self._hit.start_us,
                            self._hit.stop_us)  # fmt: skip
            painter.setPen(QPen(shade(self._style.theme.text), 1.5))
            painter.drawRect(box)

    def _draw_lane(self, painter: QPainter, frame: Frame, number: int, lane: Lane) -> None:
        left, right = frame.px(lane.start), frame.px(lane.stop)
        visible = (right > 0) & (left < frame.width)
        wide = visible & (right - left >= _LEAST_PX)
        fills, mask = self._colors[number], None
        if self._matching is not None and lane.kind != STEP_TRACK:
            mask = self._matching[number]
        for depth in range(lane.rows):
            narrow = np.flatnonzero(visible & ~wide & (lane.depth == depth))
            _, first = np.unique(np.floor(left[narrow]), return_index=True)
            for index in narrow[first].tolist():
                box = self._box(frame, number, depth, lane.start[index], lane.stop[index])
                box.setWidth(1.0)
                painter.fillRect(box, _faded(fills[index], mask, index))
        metrics = QFontMetricsF(self._style.font(small=True))
        for index in np.flatnonzero(wide).tolist():
            box = self._box(
                frame, number, int(lane.depth[index]), lane.start[index], lane.stop[index]
            )
            if box.width() > 3:
                box.setRight(box.right() - 0.75)
            painter.fillRect(box, _faded(fills[index], mask, index))
            self._label(painter, metrics, box, lane.texts[index])

    def _label(self, painter: QPainter, metrics: QFontMetricsF, box: QRectF, text: str) -> None:
        if box.width() < _LABEL_PX or box.height() < 0.8 * metrics.height():
            return
        name = brief(text).removeprefix("aten::")
        shown = metrics.elidedText(name, Qt.TextElideMode.ElideRight, box.width() - 6)
        painter.setPen(shade(self._style.theme.text))
        middle = box.center().y() + (metrics.ascent() - metrics.descent()) / 2
        painter.drawText(QPointF(box.left() + 3, middle), shown)

    def _box(self, frame: Frame, number: int, depth: int, start: float, stop: float) -> QRectF:
        row = float(self._tops[number] + depth)
        left, right = max(0.0, frame.px(float(start))), min(frame.width, frame.px(float(stop)))
        top, bottom = frame.py(-row), frame.py(-(row + 1))
        gap = 1.0 if depth < self.lanes[number].rows - 1 else min(4.0, 0.2 * (bottom - top))
        return QRectF(left, top, max(0.0, right - left), bottom - top - gap)

    def _label_us(self, label: int) -> float:
        if not hasattr(self, "_own_us"):
            data = self.timeline
            kind = breakdown.STREAM_TRACK if data.on_device else HOST_TRACK
            rows = data.of_kind(kind)
            self._own_us = np.bincount(
                data.name[rows], weights=data.own_us[rows], minlength=len(data.labels)
            )
        return float(self._own_us[label])

    def _short(self, lane: Lane, rows: str) -> Lane:
        """Return the lane without the rows that few readers need."""
        most = _HOST_ROWS[self.timeline.on_device]
        if rows == _ALL or lane.kind != HOST_TRACK or lane.rows <= most:
            return lane
        keep = np.flatnonzero(lane.depth < most).tolist()
        return Lane(
            lane.title,
            lane.kind,
            lane.start[keep],
            lane.stop[keep],
            lane.depth[keep],
            [lane.texts[n] for n in keep],
            [lane.kinds[n] for n in keep],
            [lane.modules[n] for n in keep],
            lane.slices[keep],
        )

    def _colors_of(self, lane: Lane) -> list[QColor]:
        theme = self._style.theme
        if lane.kind in (STEP_TRACK, "modules"):
            plain = shade(mixed(theme.line, theme.surface, 0.8))
            return [plain] * len(lane.texts)
        if lane.kind == LAUNCH_TRACK:
            return [shade(theme.muted)] * len(lane.texts)
        if lane.kind == "idle":
            return [shade(mixed(theme.warning, theme.surface, 0.5))] * len(lane.texts)
        known = {kind: class_color(kind, self._style) for kind in set(lane.kinds)}
        return [known[kind] for kind in lane.kinds]


def _faded(color: QColor, mask: Array | None, index: int) -> QColor:
    if mask is None or mask[index]:
        return color
    faint = QColor(color)
    faint.setAlphaF(_FAINT)
    return faint


def draw(
    plot_item: Canvas, runs: Sequence[Run], style: Style, *, profile: str = "", rows: str = _FEW
) -> None:
    """Draw all lanes of one profile."""
    study = _profiles.shown(runs, profile, timeline.is_stored)
    data = timeline.of(study) if study is not None else None
    if study is None or data is None:
        return
    layer = Slices(data, style, rows)
    plot_item.describe((MICROSECONDS, "Time"), (STEPS, ""))
    plot_item.axis("left").categories = layer.titles()
    plot_item.fixed_y = (-float(layer.rows), 0.0)
    plot_item.pad_x = 0.0
    plot_item.header.subtitle = study.title
    plot_item.add(layer)


def table(runs: Sequence[Run], *, profile: str = "", rows: str = _FEW) -> dict[str, Array]:
    """Return every slice with its track, name and module."""
    study = _profiles.shown(runs, profile, timeline.is_stored)
    data = timeline.of(study) if study is not None else None
    if data is None:
        return {"t_us": np.empty(0)}
    labels = np.array(data.labels, object)
    titles = np.array([title for title, _ in data.tracks], object)
    return {
        "track": titles[data.track],
        "name": labels[data.name],
        "module": labels[data.module],
        "depth": data.depth,
        "t_us": data.start,
        "us": data.stop - data.start,
    }


def can_show(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show, None if there is something."""
    if reason := _profiles.no_profile(runs):
        return reason
    if _profiles.shown(runs, can_draw=timeline.is_stored) is not None:
        return None
    return "This profile has no timeline: profile these steps again."


PLOT = Plot(
    name="kernel_timeline",
    title="Kernel timeline",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=can_show,
    axis="value",
    options={"rows": (_FEW, _ALL)},
    choices_in=partial(_profiles.choices, can_draw=timeline.is_stored),
    key=_profiles.key,
)
