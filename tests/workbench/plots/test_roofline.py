"""The roofline: dots under the roof where they were measured, named, exported, or why not."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from synthetic import bench_session, gpu_session
from test_plots import STYLES, ink, painted

from sessions.studies.kernels import rated
from workbench.plot_export import export_plot
from workbench.plots import PLOTS, Run
from workbench.plots.roofline import Kernels, Names, RoofLine

PLOT = PLOTS["roofline"]


@pytest.mark.parametrize("style", STYLES)
def test_a_bench_session_leaves_ink_in_every_theme(style):
    image, canvas = painted(PLOT, [Run(bench_session())], STYLES[style])
    assert 0.01 < ink(image, STYLES[style].theme.surface) < 0.9
    names = [entry.name for entry in canvas.entries()]
    assert names[0] == "measured roof, bfloat16: 4.10 TB/s, 790 TFLOP/s"
    assert set(names[1:]) == {"torch", "triton", "torch.compile"}


def test_dots_lie_where_they_were_measured_and_none_above_the_roof():
    session = bench_session()
    _, canvas = painted(PLOT, [Run(session)], STYLES["dark"])
    (roof,) = [layer for layer in canvas.layers if isinstance(layer, RoofLine)]
    drawn = 0
    for layer in canvas.layers:
        if isinstance(layer, Kernels):
            drawn += len(layer._x)
            highest = np.log10(roof._roof.at(10**layer._x))
            assert (layer._y <= highest + 1e-9).all()
            assert 10**layer._y == pytest.approx([kernel.achieved for kernel in layer._kernels])
    assert drawn == len(rated(session))
    (names,) = [layer for layer in canvas.layers if isinstance(layer, Names)]
    known = {f"{kernel.operator}, {kernel.direction}" for kernel in rated(session)}
    assert names.lowest.keys() == known
    assert {kernel.implementation for kernel in names.lowest.values()} == {"torch"}  # the slowest


def test_one_direction_can_be_shown_alone():
    runs = [Run(bench_session())]
    assert PLOT.choices(runs) == {"direction": ("all", "forward", "backward")}
    shown = PLOT.table(runs, direction="backward")
    assert set(shown["direction"]) == {"backward"}
    _, canvas = painted(PLOT, runs, STYLES["light"], direction="backward")
    (names,) = [layer for layer in canvas.layers if isinstance(layer, Names)]
    assert set(names.lowest) == {kernel.operator for kernel in rated(runs[0].session)}


@pytest.mark.parametrize("suffix", [".pdf", ".csv"])
def test_it_is_exported(tmp_path, suffix):
    path = export_plot("roofline", [Run(bench_session())], tmp_path / f"roofline{suffix}")
    if suffix == ".csv":
        rows = list(csv.DictReader(path.open()))
        assert len(rows) == len(rated(bench_session()))
        assert all(0 < float(row["share_of_attainable"]) <= 1 for row in rows)
    else:
        assert path.stat().st_size > 1000


def test_what_is_no_bench_session_says_what_would_fill_the_plot():
    assert "workbench bench" in PLOT.can_show([Run(gpu_session(1, 20))])
    assert "one session" in PLOT.can_show([Run(bench_session()), Run(bench_session())])
