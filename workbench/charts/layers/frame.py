"""The visible part of a view box, in units of the axes and in pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

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
        return (x - self.x[0]) * (self.width / (self.x[1] - self.x[0]))

    def py(self, y: Pixels) -> Pixels:
        """Return pixels from the top."""
        return (self.y[1] - y) * (self.height / (self.y[1] - self.y[0]))
