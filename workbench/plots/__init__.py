"""The plots: one per file, found by looking into this folder; plug-ins may bring others.

``PLOTS[name].draw(plot_item, runs, style)`` draws; the same on screen and on paper.
"""

from __future__ import annotations

from workbench import plugins
from workbench.charts.plot import Plot, Run

__all__ = ["PLOTS", "Plot", "Run"]

PLOTS: dict[str, Plot] = plugins.gather(__name__, "PLOT", Plot, "plots")
