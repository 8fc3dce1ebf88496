"""Tokens or samples per second of a sweep over the first field, a curve for each arm.

Sizes without a number are at the top, with the reason.
"""

from __future__ import annotations

from workbench.charts.units import THROUGHPUTS
from workbench.plots._sweep import Column, curves_plot

_COLUMN = Column("tokens_per_s", "Throughput", THROUGHPUTS["tokens"])

PLOT = curves_plot("sweep_throughput", "Throughput over size", __doc__ or "", _COLUMN)
