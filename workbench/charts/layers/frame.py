"""The visible part of a view box, in units of the axes and in pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from sessions.numbers import LARGEST
from workbench.charts.arrays import Array

Pixels = TypeVar("Pixels", float, Array)


@dataclass(frozen=True)
class Frame:
    """The visible part of the view box: ranges in axis units, sizes in pixels, a bin's width."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float
    height: float
    bin: float = 1.0

    def px(self, x: Pixels) -> Pixels:
        """Return pixels from the left."""
        return (_limited(x) - self.x[0]) * (self.width / (self.x[1] - self.x[0]))

    def py(self, y: Pixels) -> Pixels:
        """Return pixels from the top."""
        return (self.y[1] - _limited(y)) * (self.height / (self.y[1] - self.y[0]))


def _limited(values: Pixels) -> Pixels:
    """Return the numbers within what an axis can reach: pixels of others would overflow."""
    limited: Pixels = np.clip(values, -LARGEST, LARGEST)
    return limited
