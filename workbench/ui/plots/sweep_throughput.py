"""Tokens a second of a sweep over the first field, a curve for each arm.

Along the top: sizes that have no number, and why.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.ui.plots import _sweep
from workbench.ui.plots._arrays import Array
from workbench.ui.plots._canvas import Canvas
from workbench.ui.plots._plot import Plot, Run
from workbench.ui.plots._sweep import LATEST, Column
from workbench.ui.plots._units import TOKENS_PER_SECOND
from workbench.ui.style import Style

_COLUMN = Column("tokens_per_s", "Throughput", TOKENS_PER_SECOND)


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style, *, sweep: str = LATEST) -> None:
    """A curve for each arm."""
    study = _sweep.shown(runs, sweep)
    if study is not None:
        _sweep.draw_curves(plot_item, study, style, _COLUMN)


def table(runs: Sequence[Run], *, sweep: str = LATEST) -> dict[str, Array]:
    """Every point with all that was measured of it."""
    return _sweep.table(runs, sweep)


PLOT = Plot(
    name="sweep_throughput",
    title="Throughput over size",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=_sweep.no_sweep,
    axis="value",
    found=_sweep.choices,
    key=_sweep.key,
)
