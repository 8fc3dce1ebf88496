"""The plots: one per file, found by looking into this folder.

``PLOTS[name].draw(plot_item, runs, style)`` draws; the same on screen and on paper.
"""

from __future__ import annotations

import importlib
import pkgutil

from workbench.charts.plot import Plot, Run

__all__ = ["PLOTS", "Plot", "Run"]


def _discover() -> dict[str, Plot]:
    names = sorted(
        module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")
    )
    plots = [importlib.import_module(f"{__name__}.{name}").PLOT for name in names]
    return {plot.name: plot for plot in plots}


PLOTS: dict[str, Plot] = _discover()
