"""Marks of the idle time between two runs, which the time axis leaves out."""

from __future__ import annotations

import math

import numpy as np
from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QPainter

from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Layer
from workbench.charts.plot import Run
from workbench.charts.style import Style
from workbench.theming.icons import mixed

_APART_PX = 3.0  # between the two lines of a mark


class Gaps(Layer):
    """Two close lines where idle time was left out."""

    z = 1.0

    def __init__(self, run: Run, style: Style) -> None:
        super().__init__()
        self._run, self._style = run, style
        self._gaps: list[tuple[float, float]] = []

    def pull(self) -> None:
        """Read the gaps so far."""
        gaps = self._run.axis.gaps
        if gaps is not self._gaps:
            self._gaps, self.fresh = gaps, -math.inf

    def draw(self, painter: QPainter, frame: Frame) -> None:
        """Draw the visible gaps; those that share a pixel are drawn once."""
        theme = self._style.theme
        color = QColor(mixed(theme.muted, theme.surface, 0.6))
        positions = np.array([position for position, _ in self._gaps])
        visible = positions[(positions >= frame.x[0]) & (positions <= frame.x[1])]
        middle_px = np.round(frame.px(visible))
        lines_px = np.concatenate([middle_px - _APART_PX // 2, middle_px + _APART_PX // 2])
        for x in np.unique(lines_px):
            painter.fillRect(QRectF(x, 0, 1, frame.height), color)
