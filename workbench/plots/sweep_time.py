"""Step time of a sweep over the first field, both axes logarithmic, a curve for each arm.

Each dot is one size. The sizes were measured one after the other, in random order, so only their
scatter around the line shows the uncertainty. The line is a power law fitted to the dots; its
exponent is in the legend, with a 95 % interval. Sizes without a time are at the top, with the
reason.
"""

from __future__ import annotations

from workbench.charts.units import Logarithmic
from workbench.plots._sweep import Column, curves_plot

_COLUMN = Column("median_ms", "Step time", Logarithmic("s", 1e-3), True)

PLOT = curves_plot("sweep_time", "Step time over size", __doc__ or "", _COLUMN, fits=True)
