"""The highest memory in the timed steps of a sweep over the first field, a curve for each arm.

A triangle at the top is a size that ran out of memory; other shapes are other reasons.
"""

from __future__ import annotations

from workbench.charts.units import BYTES
from workbench.plots._sweep import Column, curves_plot

_COLUMN = Column("peak_bytes", "Peak memory", BYTES)

PLOT = curves_plot("sweep_memory", "Peak memory over size", __doc__ or "", _COLUMN)
