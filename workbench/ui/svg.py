"""Vector drawings without what nobody sees: empty groups, defaults, digits far below a pixel."""

from __future__ import annotations

import re

DIGITS = 1  # of a pixel: at ten times the size still no more than one
_EMPTY = re.compile(rb"<g [^>]*>\s*</g>\s*")
_GROUP = re.compile(rb"<g [^>]*>")
_SAID = re.compile(  # of a group: each text has its own font, and the rest are SVG's defaults
    rb'\s+(?:font-[a-z]+="[^"]*"|(?:fill|stroke)-opacity="1"|stroke-dashoffset="0")'
)
_EFFECT = b' vector-effect="none"'
_POINTS = re.compile(rb'(?<=points=")[^"]*')
_NUMBER = re.compile(rb"-?\d+\.\d+(?:e-?\d+)?")


def compact(drawing: bytes) -> bytes:
    """The same drawing with every corner of a line or an area at a tenth of a pixel.

    Qt writes six digits for each coordinate and a group for each change of pen.
    """
    shown = _EMPTY.sub(b"", drawing.replace(_EFFECT, b""))
    return _POINTS.sub(_round_points, _GROUP.sub(lambda group: _SAID.sub(b"", group[0]), shown))


def _round_points(points: re.Match[bytes]) -> bytes:
    pairs = _NUMBER.sub(_round, points[0]).split()
    kept = [pair for pair, before in zip(pairs, [b"", *pairs], strict=False) if pair != before]
    return b" ".join(kept if len(kept) > 1 else pairs)


def _round(number: re.Match[bytes]) -> bytes:
    return b"%g" % round(float(number[0]), DIGITS)
