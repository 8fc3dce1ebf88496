"""Step time of a sweep over the first field, both axes logarithmic, a curve for each arm.

A dot is a point with its 95 % interval. The line is the power law fitted to the dots; its exponent,
with a 95 % interval, stands in the legend. Along the top: sizes that have no time, and why.
"""

from __future__ import annotations

from workbench.ui.plots._sweep import Column, curves_plot
from workbench.ui.plots._units import Logarithmic

_COLUMN = Column("median_ms", "Step time", Logarithmic("s", 1e-3), True, "low_ms", "high_ms")

PLOT = curves_plot("sweep_time", "Step time over size", __doc__ or "", _COLUMN, fits=True)
