"""Fast strokes from arrays of pixels, clipped to the frame."""

from __future__ import annotations

import numpy as np
from pyqtgraph.functions import arrayToQPolygonF
from pyqtgraph.Qt.internals import PrimitiveArray
from PySide6.QtCore import QLineF, Qt
from PySide6.QtGui import QBrush, QPainter, QPen

from workbench.charts.arrays import Array
from workbench.charts.layers.frame import Frame


def zigzag(x: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return a line through the lowest and highest value of every x: (2n,) for x and y."""
    y = np.empty(2 * len(x))
    y[0::4], y[1::4] = low[0::2], high[0::2]
    y[2::4], y[3::4] = high[1::2], low[1::2]
    return np.repeat(x, 2), y


def merged(
    x: Array, top: Array, bottom: Array, gap: float, width: float
) -> tuple[Array, Array, Array]:
    """Merge neighbouring places within ``width``, from the highest to the lowest of them.

    Those are left apart that NaN, or a leap of x by more than ``gap``, divides.
    """
    finite = np.isfinite(top) & np.isfinite(bottom)
    separated = (
        (np.diff(np.floor(x / width)) != 0) | (np.diff(x) > gap) | ~finite[1:] | ~finite[:-1]
    )
    first = np.concatenate([[0], np.flatnonzero(separated) + 1])
    last = np.concatenate([first[1:], [len(x)]]) - 1
    lows, highs = np.maximum.reduceat(bottom, first), np.minimum.reduceat(top, first)
    return (x[first] + x[last]) / 2, highs, lows


def polyline(
    painter: QPainter,
    pen: QPen,
    x: Array,
    y: Array,
    gap: float,
    frame: Frame,
    *,
    joined: bool,
) -> None:
    """Draw a line through the points, broken at NaN and where x leaps by more than ``gap``.

    A point without a neighbour becomes a dot. ``joined`` draws paths with proper joins, otherwise
    separate segments: Qt's raster engine takes 0.5 ms for those and up to 200 ms for a wide path.
    """
    finite = np.isfinite(y)
    linked = finite[:-1] & finite[1:] & (np.diff(x) <= gap)
    alone = finite.copy()
    alone[:-1] &= ~linked
    alone[1:] &= ~linked
    if alone.any():
        round_pen = QPen(pen.color(), 2.5 * pen.widthF())
        round_pen.setCapStyle(Qt.PenCapStyle.RoundCap)
        points(painter, round_pen, x[alone], y[alone], frame)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    if not joined:
        segments = _without_level(x, y, linked)
        solid = QPen(pen)
        solid.setStyle(Qt.PenStyle.SolidLine)
        painter.setPen(solid)
        pattern = [length * pen.widthF() for length in pen.dashPattern()]
        _lines(painter, dashed(segments, pattern, frame.px(0.0)) if pattern else segments)
        return
    segments = np.column_stack([x[:-1], y[:-1], x[1:], y[1:]])[linked]
    segments = clipped(segments, frame.width, frame.height)
    painter.setPen(pen)
    breaks = np.flatnonzero((segments[:-1, 2:] != segments[1:, :2]).any(axis=1)) + 1
    for piece in np.split(segments, breaks):
        if len(piece):
            chain = np.vstack([piece[:, :2], piece[-1:, 2:]])
            painter.drawPolyline(arrayToQPolygonF(chain[:, 0].copy(), chain[:, 1].copy()))


def _without_level(x: Array, y: Array, linked: Array) -> Array:
    """Return segments (n, 4) between linked neighbours, level stretches as one segment each.

    Level is what moves by less than half a pixel: a constant is one line and not a thousand.
    """
    with np.errstate(invalid="ignore"):
        level = linked & (np.rint(2 * y[1:]) == np.rint(2 * y[:-1]))
    # A point between two level links is not needed.
    needed = np.ones(len(x), bool)
    needed[1:-1] = ~(level[:-1] & level[1:])
    corners = np.flatnonzero(needed)
    starts, stops = corners[:-1], corners[1:]
    joined = linked[starts]
    starts, stops = starts[joined], stops[joined]
    return np.column_stack([x[starts], y[starts], x[stops], y[stops]])


def dashed(segments: Array, pattern: list[float], origin: float) -> Array:
    """Return the parts of segments (n, 4, x ascending) that a dash pattern leaves, by x.

    ``pattern`` is on, off, on, off ... in pixels, repeated from the pixel ``origin`` on, so that
    dashes stay with the data when the view scrolls. Qt's own patterns begin
    again with every segment, and as one path they take as long as a wide path does.
    """
    if not len(segments):
        return segments
    ends = np.cumsum(pattern)
    period = float(ends[-1])
    start, stop = segments[:, 0], segments[:, 2]
    first, last = np.floor((start.min() - origin) / period), np.ceil((stop.max() - origin) / period)
    cycles = np.arange(first, last + 1)[:, None] * period + origin
    on_from = (cycles + np.concatenate([[0.0], ends[1:-1:2]])).ravel()
    on_to = (cycles + ends[0::2]).ravel()
    # Every dash that a segment meets, as pairs of a segment and a dash.
    low = np.searchsorted(on_to, start, side="right")
    high = np.maximum(np.searchsorted(on_from, stop, side="right"), low)
    counts = high - low
    segment = np.repeat(np.arange(len(segments)), counts)
    dash = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + low[segment]
    met = segments[segment]
    left, right = np.maximum(met[:, 0], on_from[dash]), np.minimum(met[:, 2], on_to[dash])
    width = met[:, 2] - met[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(width > 0, (met[:, 3] - met[:, 1]) / width, 0.0)
    pieces = met.copy()
    sloped = width > 0
    pieces[sloped, 0], pieces[sloped, 2] = left[sloped], right[sloped]
    pieces[sloped, 1] = (met[:, 1] + slope * (left - met[:, 0]))[sloped]
    pieces[sloped, 3] = (met[:, 1] + slope * (right - met[:, 0]))[sloped]
    return pieces


def area(
    painter: QPainter,
    brush: QBrush,
    x: Array,
    top: Array,
    bottom: Array,
    gap: float,
    frame: Frame,
) -> None:
    """Fill the area between ``top`` and ``bottom``, broken at NaN and at leaps above ``gap``."""
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(brush)
    finite = np.isfinite(top) & np.isfinite(bottom)
    x, top, bottom = x[finite], top[finite], bottom[finite]
    skipped = np.diff(np.flatnonzero(finite)) > 1
    breaks = np.flatnonzero(skipped | (np.diff(x) > gap)) + 1
    for places, upper, lower in zip(
        np.split(x, breaks), np.split(top, breaks), np.split(bottom, breaks), strict=True
    ):
        inside = np.clip(places, 0, frame.width)
        if len(places) == 1 and inside[0] == places[0]:
            half = 1.0
            corners = np.array([inside[0] - half, inside[0] + half])
            upper, lower = np.repeat(upper, 2), np.repeat(lower, 2)
        elif len(places) < 2 or inside[0] == inside[-1]:
            continue
        else:
            upper, lower = np.interp(inside, places, upper), np.interp(inside, places, lower)
            corners = inside
        edge = np.concatenate([upper, lower[::-1]]).clip(0, frame.height)
        painter.drawPolygon(arrayToQPolygonF(np.concatenate([corners, corners[::-1]]), edge))


def columns(
    painter: QPainter, pen: QPen, x: Array, top: Array, bottom: Array, frame: Frame
) -> None:
    """Draw one upright line per place, from ``top`` to ``bottom`` and at least a pixel tall."""
    with np.errstate(invalid="ignore"):
        visible = (bottom >= 0) & (top <= frame.height) & (x >= 0) & (x <= frame.width)
    x, top = x[visible], top[visible].clip(0, frame.height)
    bottom = bottom[visible].clip(0, frame.height)
    painter.setPen(pen)
    _lines(painter, np.column_stack([x, top, x, np.maximum(bottom, top + 1)]))


def ragged(
    painter: QPainter,
    pen: QPen,
    x: Array,
    top: Array,
    bottom: Array,
    gap: float,
    frame: Frame,
) -> None:
    """Draw a ragged line as upright lines that touch their neighbours, without antialiasing.

    What a zigzag of slanted lines would fill, in a fifth of the time; for the screen.
    """
    finite = np.isfinite(bottom - top)
    linked = finite[:-1] & finite[1:] & (np.diff(x) <= gap)
    top, bottom = top.copy(), bottom.copy()
    top[1:][linked] = np.minimum(top[1:], bottom[:-1])[linked]
    bottom[1:][linked] = np.maximum(bottom[1:], top[:-1])[linked]
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    pattern = np.cumsum([length * pen.widthF() for length in pen.dashPattern()])
    if len(pattern):
        phase = np.mod(x - frame.px(0.0), pattern[-1])
        drawn = np.searchsorted(pattern, phase, side="right") % 2 == 0
        x, top, bottom = x[drawn], top[drawn], bottom[drawn]
    columns(painter, QPen(pen.color(), 1), x, top, bottom, frame)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)


def points(painter: QPainter, pen: QPen, x: Array, y: Array, frame: Frame) -> None:
    """Draw dots of the pen's width."""
    with np.errstate(invalid="ignore"):
        visible = (x >= 0) & (x <= frame.width) & (y >= 0) & (y <= frame.height)
    if visible.any():
        painter.setPen(pen)
        painter.drawPoints(arrayToQPolygonF(x[visible], y[visible]))


def clipped(segments: Array, width: float, height: float) -> Array:
    """Return the parts of segments (n, 4: x0 y0 x1 y1) inside 0..width and 0..height.

    The algorithm is that of Liang and Barsky.
    """
    start, delta = segments[:, :2], segments[:, 2:] - segments[:, :2]
    enter, leave = np.zeros(len(segments)), np.ones(len(segments))
    limits = np.array([width, height])
    with np.errstate(all="ignore"):  # an upright or level segment divides by zero
        for axis in (0, 1):
            at_zero = -start[:, axis] / delta[:, axis]
            at_limit = (limits[axis] - start[:, axis]) / delta[:, axis]
            still = delta[:, axis] == 0
            outside = still & ((start[:, axis] < 0) | (start[:, axis] > limits[axis]))
            enter = np.where(still, enter, np.maximum(enter, np.minimum(at_zero, at_limit)))
            leave = np.where(still, leave, np.minimum(leave, np.maximum(at_zero, at_limit)))
            leave = np.where(outside, -1.0, leave)
    visible = enter <= leave
    start, delta, enter, leave = start[visible], delta[visible], enter[visible], leave[visible]
    ends = segments[visible].copy()
    ends[:, :2] = np.where(enter[:, None] > 0, start + delta * enter[:, None], ends[:, :2])
    ends[:, 2:] = np.where(leave[:, None] < 1, start + delta * leave[:, None], ends[:, 2:])
    return ends


class _Buffer:
    """Memory for the segments of one call, kept and grown, with Qt's view of its first line.

    Shiboken finds wrappers by address: memory in which a Qt object has died whose wrapper still
    lives would come back as that object. So memory is looked at once, and taken only if it is seen
    as a line; the arrays that were refused are held so that the next one lies elsewhere.
    """

    def __init__(self) -> None:
        self.capacity = 0

    def reserve(self, count: int) -> None:
        """Have room for ``count`` segments."""
        if count <= self.capacity:
            return
        self.capacity = max(count, 2 * self.capacity, 4096)
        refused = []
        while True:
            array = PrimitiveArray(QLineF, 4)
            array.resize(self.capacity)
            first = array.drawargs()[0]
            if isinstance(first, QLineF):
                break
            refused.append(array)
        self._array, self.first = array, first

    def fill(self, segments: Array) -> None:
        """Put the segments in."""
        self.reserve(len(segments))
        self._array.ndarray()[: len(segments)] = segments


_buffer = _Buffer()


def _lines(painter: QPainter, segments: Array) -> None:
    if len(segments):
        _buffer.fill(segments)
        painter.drawLines(_buffer.first, len(segments))
