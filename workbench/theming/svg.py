"""Compaction of SVG drawings: no empty groups, no default attributes, no invisible digits."""

from __future__ import annotations

import itertools
import math
import re

_TENTHS = 10  # per pixel: at ten times the size, errors stay below a pixel
APART = 0.15  # pixels, a twelfth of a line's width
_APART = APART * _TENTHS
_EMPTY = re.compile(rb"<g [^>]*>\s*</g>\s*")
_GROUP = re.compile(rb"<g [^>]*>")
_SAID = re.compile(  # attributes of a group without effect: defaults, or set by each text
    rb'\s+(?:font-[a-z]+="[^"]*"|(?:fill|stroke)-opacity="1"|stroke-dashoffset="0")'
)
_EFFECT = b' vector-effect="none"'
_MOVED = re.compile(rb"matrix\(1,0,0,1,([^)]*)\)")
_TAG = re.compile(rb"(<g [^>]*>|</g>)")
_CORNERS = re.compile(rb'<poly(line|gon)\b([^>]*?) points="([^"]*)"([^>]*)>')
_Point = tuple[int, int]  # in tenths of a pixel


def compact(drawing: bytes) -> bytes:
    """Return the same drawing, every line and area as a path of steps in tenths of a pixel.

    Qt writes six digits for each coordinate and a group for each change of pen. A corner is left
    out where the line without it passes within ``APART`` of it.
    """
    shown = _EMPTY.sub(b"", drawing.replace(_EFFECT, b""))
    shown = _GROUP.sub(lambda group: _MOVED.sub(rb"translate(\1)", _SAID.sub(b"", group[0])), shown)
    return _CORNERS.sub(_path, _merged(shown))


def _merged(drawing: bytes) -> bytes:
    """Return the drawing with adjacent equal groups merged."""
    tokens = _TAG.split(drawing)  # text, tag, text, tag ... text
    merged: list[bytes] = []
    closed = b""  # how the group began that has just ended
    opened: list[bytes] = []
    for index, token in enumerate(tokens):
        if index % 2 == 0:
            if token.strip():
                closed = b""
            merged.append(token)
        elif token == b"</g>":
            closed = opened.pop()
            merged.append(token)
        else:
            opened.append(token)
            if token == closed:
                while merged.pop() != b"</g>":
                    pass
            else:
                merged.append(token)
            closed = b""
    return b"".join(merged)


def _path(match: re.Match[bytes]) -> bytes:
    kind, before, points, after = match.groups()
    numbers = [round(float(number) * _TENTHS) for number in points.replace(b",", b" ").split()]
    corners = _straightened(list(zip(numbers[0::2], numbers[1::2], strict=True)))
    steps = [b"m" + _pair(corners[0])]
    command = b""  # the current letter: a further step of its kind needs none
    for (x, y), (right, down) in itertools.pairwise(corners):
        step = right - x, down - y
        if not step[1]:
            command, words = b"h", b"h" + _tenths(step[0])
        elif not step[0]:
            command, words = b"v", b"v" + _tenths(step[1])
        else:
            words = _pair(step)
            apart = b"" if words.startswith(b"-") else b" "
            words, command = (apart if command == b"l" else b"l") + words, b"l"
        steps.append(words)
    steps += [b"h0"] * (len(corners) == 1) + [b"z"] * (kind == b"gon")
    return b'<path%s d="%s"%s>' % (before, b"".join(steps), after)


def _straightened(points: list[_Point]) -> list[_Point]:
    """Return the points without those that a straight line passes near.

    One pass, by the cone of directions in which a line from the last corner passes near all points
    since.
    """
    corners = points[:1]
    low, high, passed = -math.pi, math.pi, points[0] if points else (0, 0)
    towards: float | None = None  # the middle of the cone
    farthest = 0.0
    for point in points[1:]:
        x, y = point[0] - corners[-1][0], point[1] - corners[-1][1]
        far = math.hypot(x, y)
        angle = math.atan2(y, x)
        if towards is not None:
            turn = math.remainder(angle - towards, math.tau)
            if far < farthest - _APART or not low <= turn <= high:
                corners.append(passed)
                x, y = point[0] - passed[0], point[1] - passed[1]
                far, towards, farthest = math.hypot(x, y), None, 0.0
                angle = math.atan2(y, x)
        passed = point
        if far <= _APART:
            continue
        half, turn = math.asin(_APART / far), 0.0
        if towards is None:
            towards, low, high = angle, -half, half
        else:
            turn = math.remainder(angle - towards, math.tau)
            low, high = max(low, turn - half), min(high, turn + half)
        farthest = max(farthest, far)
    return [*corners, *points[-1:]] if len(points) > 1 else corners


def _pair(point: _Point) -> bytes:
    """Join two numbers, with a space where a minus does not tell them apart."""
    first, second = map(_tenths, point)
    return first + (b"" if second.startswith(b"-") else b" ") + second


def _tenths(count: int) -> bytes:
    """Return a number of tenths as SVG reads it, no digit more than it needs: -3, .5, 12.1."""
    units, tenth = divmod(abs(count), _TENTHS)
    sign = b"-" if count < 0 else b""
    if not tenth:
        return b"%s%d" % (sign, units)
    return b"%s%s.%d" % (sign, b"%d" % units if units else b"", tenth)
