"""The effect of each toggle: bars of step time and of peak memory, by toggle.

A ladder begins with the base, 1. Each toggle lowers or raises the ratio; the last bar shows all
toggles together. In other modes, a bar starts at 1 and shows the ratio with a toggle to without
it: with all other toggles on (leave-one-out), averaged over all orders (shares), or the extra
effect of two toggles (interaction). The thin line over a bar is the 95 % interval of the ratio;
memory is counted exactly and has none. The reason is shown for a toggle that could not be measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sessions.model import Study
from sessions.studies.attribution.words import attributions, is_measured
from workbench.charts.arrays import Array
from workbench.charts.canvas import Canvas
from workbench.charts.plot import Plot, Run
from workbench.charts.style import Style
from workbench.charts.units import RATIO, STEPS
from workbench.plots._waterfall import QUANTITIES, Bars, Origin, Reasons, waterfall


def shown(runs: Sequence[Run]) -> Study | None:
    """Return the newest attribution of the first run that has one, preferably a measured one.

    Attributions of claims that could not be measured do not hide others.
    """
    studies = next((studies for run in runs if (studies := attributions(run.session))), [])
    return next(filter(is_measured, reversed(studies)), next(reversed(studies), None))


def nothing(runs: Sequence[Run]) -> str | None:
    """Return why there is nothing to show; None if a round counts."""
    study = shown(runs)
    if study is None:
        return "No attribution of toggles is in this session."
    return None if is_measured(study) else "The attribution has no round that counts yet."


def draw(plot_item: Canvas, runs: Sequence[Run], style: Style) -> None:
    """Draw a row for each toggle, the first on top."""
    study = shown(runs)
    if study is None:
        return
    chart, titled = waterfall(study), runs[0].titled
    plot_item.header.subtitle = study.title
    plot_item.axis("left").categories = [
        (-float(row), titled(name)) for row, name in enumerate(chart.names)
    ]
    title = "Ratio to the base" if chart.cumulative else "Ratio to without"
    plot_item.describe((RATIO, title), (STEPS, ""))
    plot_item.fixed_y = (-len(chart.names) + 0.4, 0.6)
    plot_item.pad_x = 0.12
    plot_item.add(Origin(0.0 if chart.cumulative else 1.0, style))
    quantities = [
        quantity for quantity in QUANTITIES if any(bar.quantity == quantity for bar in chart.bars)
    ]
    for lane, quantity in enumerate(quantities):
        plot_item.add(Bars(quantity, chart.bars, lane if len(quantities) > 1 else -1, style))
    plot_item.add(Reasons(chart.reasons, style))


def table(runs: Sequence[Run]) -> dict[str, Array]:
    """Return every bar's start, end and interval, as ratios."""
    study = shown(runs)
    chart = None if study is None else waterfall(study)
    bars = [] if chart is None else chart.bars
    names = [] if chart is None else chart.names
    return {
        "toggle": np.array([names[bar.row] for bar in bars], dtype=object),
        "quantity": np.array([bar.quantity for bar in bars], dtype=object),
        "start_ratio": np.array([bar.start for bar in bars], np.float64),
        "stop_ratio": np.array([bar.stop for bar in bars], np.float64),
        "low_ratio": np.array([bar.low for bar in bars], np.float64),
        "high_ratio": np.array([bar.high for bar in bars], np.float64),
    }


def _key(runs: Sequence[Run]) -> object:
    """Return the identities of the studies: their rows are replaced, not appended to."""
    return [id(study) for run in runs for study in run.session.studies]


PLOT = Plot(
    name="attribution",
    title="Attribution",
    help=__doc__ or "",
    draw=draw,
    table=table,
    can_show=nothing,
    axis="value",
    key=_key,
)
