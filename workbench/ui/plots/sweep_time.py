"""Step time of a sweep over the first field, both axes logarithmic, a curve for each arm.

A dot is a point with its 95 % interval. The line is the power law fitted to the dots; its exponent,
with a 95 % interval, stands in the legend. Along the top: sizes that have no time, and why.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.ui.plots import _sweep
from workbench.ui.plots._arrays import Array
from workbench.ui.plots._canvas import Canvas
from workbench.ui.plots._plot import Plot, Run
from workbench.ui.plots._sweep import LATEST, Column
from workbench.ui.plots._units import Logarithmic
from workbench.ui.style import Style

_COLUMN = Column("median_ms", "Step time", Logarithmic("s", 1e-3), True, "low_ms", "high_ms")


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, sweep: str = LATEST) -> None:
    """A curve for each arm, and its exponent."""
    study = _sweep.shown(runs, sweep)
    if study is not None:
        _sweep.draw_curves(plot_item, study, style, _COLUMN, fits=True)


def table(runs: Sequence[Run], *, sweep: str = LATEST) -> dict[str, Array]:
    """Every point with all that was measured of it."""
    return _sweep.table(runs, sweep)


PLOT = Plot(
    name="sweep_time",
    title="Step time over size",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=_sweep.no_sweep,
    axis="value",
    found=_sweep.choices,
    key=_sweep.key,
)
