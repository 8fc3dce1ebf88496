"""Step time of a sweep over the first field, both axes logarithmic, a curve for each arm.

A dot is a point. The points were measured one after the other, in random order, so that only their
scatter about the line tells how sure they are. The line is the power law fitted to the dots; its
exponent, with a 95 % interval, stands in the legend. Along the top: sizes without a time, and why.
"""

from __future__ import annotations

from workbench.charts.units import Logarithmic
from workbench.plots._sweep import Column, curves_plot

_COLUMN = Column("median_ms", "Step time", Logarithmic("s", 1e-3), True)

PLOT = curves_plot("sweep_time", "Step time over size", __doc__ or "", _COLUMN, fits=True)
