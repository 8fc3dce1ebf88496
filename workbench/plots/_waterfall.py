"""Layers of the attribution's plot: bars of time and memory by toggle, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter, QPen

from sessions.model import Study
from sessions.studies.attribution.words import rows
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry, Layer
from workbench.charts.style import Style, shade
from workbench.charts.units import RATIO

QUANTITIES = ("time", "memory")
_REACH = 0.5  # share of the bars' span by which an interval may extend the axis
_HALF_PX = 9.0
_GAP_PX = 8.0
_LEAST_SHARE = 0.7  # least height of a bar with two labels, in lines of text


@dataclass(frozen=True)
class Bar:
    """One effect of one quantity, as ratios; ``low`` and ``high`` are NaN where it is exact.

    In a ladder, all are ratios to the base, and totals begin at 0; elsewhere bars begin at 1.
    ``ratio`` is to the step without the toggle.
    """

    row: int
    quantity: str
    start: float
    stop: float
    low: float
    high: float
    is_total: bool  # the base, or all toggles together
    ratio: float


@dataclass(frozen=True)
class Waterfall:
    """The rows from top to bottom, why some have no bar, and the bars."""

    names: list[str]
    reasons: dict[int, str]
    bars: list[Bar]
    cumulative: bool  # each bar starts where the previous one ends; else all start at 1


def waterfall(study: Study) -> Waterfall:
    """Return a ladder as steps from the base to the total; otherwise each effect from 1."""
    effects = [row for row in rows(study, "effects") if row["kind"] != "total"]
    totals = [row for row in rows(study, "effects") if row["kind"] == "total"]
    steps = [row for row in effects if row["quantity"] == "time"]
    cumulative = study.request.get("mode") == "ladder"
    names = [_name(row) for row in steps]
    reasons = {position: row["reason"] for position, row in enumerate(steps) if not row["verdict"]}
    for row in rows(study, "blocked"):
        reasons[len(names)] = f"blocked: {row['reason']}"
        names.append(row["toggle"])
    bars: list[Bar] = []
    first = int(cumulative)
    for quantity in QUANTITIES:
        quantity_rows = [row for row in effects if row["quantity"] == quantity]
        known = [row for row in [*quantity_rows, *totals] if math.isfinite(row["ratio"])]
        if not any(row["quantity"] == quantity for row in known):
            continue
        reached = 1.0
        if cumulative:
            bars.append(Bar(0, quantity, 0, 1, math.nan, math.nan, True, 1))
        for position, row in enumerate(quantity_rows):
            bar = _bar(position + first, row, reached, cumulative)
            if math.isfinite(bar.stop):
                bars.append(bar)
                reached = bar.stop
        bars += [
            _total(len(names) + first, row, cumulative)
            for row in totals
            if row["quantity"] == quantity and math.isfinite(row["ratio"])
        ]
    head = ["base"] if cumulative else []
    reasons = {position + first: reason for position, reason in reasons.items()}
    return Waterfall([*head, *names, "all together"], reasons, bars, cumulative)


def _name(effect: Mapping[str, Any]) -> str:
    """Return the toggle with its option; for an interaction only the toggles' names."""
    name = str(effect["name"])
    if effect["kind"] != "interaction":
        return name
    return " × ".join(toggle.partition("=")[0] for toggle in name.split(" x "))


def _bar(row: int, effect: Mapping[str, Any], reached: float, cumulative: bool) -> Bar:
    ratio, low, high = (float(effect[name]) for name in ("ratio", "low", "high"))
    quantity = str(effect["quantity"])
    from_ = reached if cumulative else 1.0
    return Bar(row, quantity, from_, from_ * ratio, from_ * low, from_ * high, False, ratio)


def _total(row: int, effect: Mapping[str, Any], cumulative: bool) -> Bar:
    ratio, low, high = (float(effect[name]) for name in ("ratio", "low", "high"))
    start = 0.0 if cumulative else 1.0
    return Bar(row, str(effect["quantity"]), start, ratio, low, high, True, ratio)


class Bars(Layer):
    """The bars of one quantity, each with its interval and its ratio."""

    z = 30.0

    def __init__(self, quantity: str, bars: Sequence[Bar], lane: int, style: Style) -> None:
        super().__init__()
        self._quantity = quantity
        self._bars = [bar for bar in bars if bar.quantity == quantity]
        self._lane = lane  # 0 above, 1 below, where both quantities share a row; -1 alone
        self._style = style

    def entries(self) -> list[Entry]:
        color = self._style.color(QUANTITIES.index(self._quantity))
        name = {"time": "step time, 95 % interval", "memory": "peak memory, exact"}[self._quantity]
        return [Entry(name, "patch", QPen(Qt.PenStyle.NoPen), QBrush(color))]

    def x_span(self) -> tuple[float, float] | None:
        if not self._bars:
            return None
        ends = [end for bar in self._bars for end in (bar.start, bar.stop)]
        low, high = min(ends), max(ends)
        reach = _REACH * max(high - low, 0.01)
        for bar in self._bars:
            if math.isfinite(bar.low):
                low, high = min(low, bar.low), max(high, bar.high)
        return max(low, min(ends) - reach), min(high, max(ends) + reach)

    def draw(self, painter: QPainter, frame: Frame) -> None:
        style = self._style
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        row_px = abs(frame.height / (frame.y[1] - frame.y[0]))
        lanes = 1 if self._lane < 0 else 2
        half = min(_HALF_PX, 0.38 * row_px / lanes)
        shift = 0.0 if lanes == 1 else (2 * self._lane - 1) * (half + 0.5)
        before: tuple[float, float] | None = None
        for bar in self._bars:
            y = float(frame.py(-float(bar.row))) + shift
            left, right = sorted((float(frame.px(bar.start)), float(frame.px(bar.stop))))
            left, right = max(0.0, left), min(frame.width, right)
            if before is not None and not (bar.is_total and bar.start == bar.stop):
                self._join(painter, before, float(frame.px(bar.start)), y, frame)
            fill = style.color(QUANTITIES.index(self._quantity), 0.45 if bar.is_total else 1.0)
            painter.fillRect(QRectF(left, y - half, max(1.5, right - left), 2 * half), fill)
            end = right
            if math.isfinite(bar.low):
                end = max(end, self._whisker(painter, bar, y, half, frame))
            self._label(painter, bar, end, y, half, frame)
            before = (float(frame.px(bar.stop)), y)

    def _join(
        self, painter: QPainter, before: tuple[float, float], x: float, y: float, frame: Frame
    ) -> None:
        """Draw the thin line from a bar's end to the next bar's start, if they are the same."""
        if abs(before[0] - x) < 1 and 0 <= x <= frame.width:
            painter.setPen(QPen(shade(self._style.theme.muted), 1))
            painter.drawLine(QPointF(x, before[1]), QPointF(x, y))

    def _whisker(self, painter: QPainter, bar: Bar, y: float, half: float, frame: Frame) -> float:
        """Draw the interval and return its right end."""
        low, high = float(frame.px(bar.low)), float(frame.px(bar.high))
        pen = QPen(shade(self._style.theme.text), self._style.line_px)
        painter.setPen(pen)
        left, right = max(0.0, low), min(frame.width, high)
        if left < right:
            painter.drawLine(QPointF(left, y), QPointF(right, y))
        for end_x in (low, high):
            if 0 <= end_x <= frame.width:
                painter.drawLine(QPointF(end_x, y - 0.6 * half), QPointF(end_x, y + 0.6 * half))
        return right

    def _label(
        self, painter: QPainter, bar: Bar, end: float, y: float, half: float, frame: Frame
    ) -> None:
        if bar.is_total and bar.ratio == 1 and bar.row == 0:
            return
        font = self._style.font(small=True)
        metrics = QFontMetricsF(font)
        if self._lane > 0 and _LEAST_SHARE * metrics.height() > 2 * half:
            return  # it would lie on that of the time, which is drawn; the table has both
        text = RATIO.text(bar.ratio)
        width = metrics.horizontalAdvance(text)
        left = end + _GAP_PX
        if left + width > frame.width:
            first = min(bar.start, bar.stop, bar.low if math.isfinite(bar.low) else math.inf)
            left = float(frame.px(first)) - _GAP_PX - width
            if left < 0:  # no room there either: on the bar before its interval, not on its axis
                inside = max(0.0, float(frame.px(first))) + _GAP_PX
                fits = not math.isfinite(bar.low) or inside + width < float(frame.px(bar.low))
                left = inside if fits else 0.0
        painter.setFont(font)
        painter.setPen(shade(self._style.theme.text))
        painter.drawText(QPointF(left, y + (metrics.ascent() - metrics.descent()) / 2), text)


class Reasons(Layer):
    """The reasons of rows without a bar, in words."""

    z = 40.0

    def __init__(self, reasons: dict[int, str], style: Style) -> None:
        super().__init__()
        self._reasons = reasons
        self._style = style

    def draw(self, painter: QPainter, frame: Frame) -> None:
        font = self._style.font(small=True)
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        for row, reason in self._reasons.items():
            y = float(frame.py(-float(row)))
            text = metrics.elidedText(reason, Qt.TextElideMode.ElideRight, frame.width - 16)
            width, height = metrics.horizontalAdvance(text), metrics.height()
            plate = QRectF(5, y - height / 2, width + 6, height)
            painter.fillRect(plate, shade(self._style.theme.surface))
            painter.setPen(shade(self._style.theme.muted))
            painter.drawText(QPointF(8, y + (metrics.ascent() - metrics.descent()) / 2), text)


class Origin(Layer):
    """The line at which bars begin: 0 or 1."""

    z = 20.0

    def __init__(self, x: float, style: Style) -> None:
        super().__init__()
        self._x, self._style = x, style

    def x_span(self) -> tuple[float, float]:
        return self._x, self._x

    def draw(self, painter: QPainter, frame: Frame) -> None:
        x = float(frame.px(self._x))
        if 0 <= x <= frame.width:
            painter.setPen(QPen(shade(self._style.theme.muted), 1))
            painter.drawLine(QPointF(x, 0), QPointF(x, frame.height))
