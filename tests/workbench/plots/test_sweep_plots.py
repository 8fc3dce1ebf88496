"""The plots of a sweep: fitted line and exponent, what was not measured in shape and words, map."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from PySide6.QtGui import QColor
from synthetic import gpu_session, sweep_study
from test_plots import STYLES, ink, painted

from sessions.model import Session
from sessions.studies import sweep
from workbench.charts.scale import scale_color
from workbench.charts.units import MILLISECONDS
from workbench.plot_export import export_plot
from workbench.plots import PLOTS, Run, sweep_map
from workbench.plots._sweep import Column, FittedLine, Missed, Points
from workbench.report import _page

NAMES = ("sweep_time", "sweep_throughput", "sweep_memory", "sweep_map")


def swept(**how) -> Session:
    return Session(title="swept", studies=[sweep_study(**how)])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_leaves_ink_in_every_theme(name, style):
    runs = [Run(swept(two=True))]
    assert PLOTS[name].can_show(runs) is None
    image, _ = painted(PLOTS[name], runs, STYLES[style])
    assert 0.01 < ink(image, STYLES[style].theme.surface) < 0.9


def test_the_numbers_of_a_map_have_the_ink_of_more_contrast_in_every_colour_of_the_scale():
    """Olive cells had white numbers, at 2.8 to 1."""
    for share in np.linspace(0, 1, 101):
        cell = sweep_map.luminance(scale_color(share))
        chosen, other = (
            sweep_map.luminance(QColor(sweep_map._INK[dark]))
            for dark in (cell > sweep_map._DARK, cell <= sweep_map._DARK)
        )
        contrasts = [(max(cell, ink) + 0.05) / (min(cell, ink) + 0.05) for ink in (chosen, other)]
        assert contrasts[0] >= 4, share
        assert contrasts[0] >= contrasts[1] - 0.2, share


def test_the_legend_names_each_arm_with_its_exponent_and_interval():
    _, canvas = painted(PLOTS["sweep_time"], [Run(swept())], STYLES["dark"])
    names = [entry.name for entry in canvas.entries()]
    study = sweep_study()
    for name, curve in zip(names, sweep.curves(study), strict=True):
        fit = sweep.fit_of(study, curve)
        assert name == f"{curve.label}: exponent {sweep.exponent_text(fit)}"
        assert fit.low < fit.exponent < fit.high


def test_the_line_lies_where_the_fit_says_and_the_dots_where_they_were_measured():
    study = sweep_study()
    _, canvas = painted(PLOTS["sweep_time"], [Run(swept())], STYLES["dark"])
    curve = sweep.curves(study)[1]
    fit = sweep.fit_of(study, curve)
    line = [layer for layer in canvas.layers if isinstance(layer, FittedLine)][1]
    dots = [layer for layer in canvas.layers if isinstance(layer, Points)][1]
    assert 10 ** line._y[-1] == pytest.approx(fit.factor * curve.x[-1] ** fit.exponent)
    assert 10**dots._y == pytest.approx(curve.columns["median_ms"])
    assert 10**dots._x == pytest.approx(curve.x)


def test_only_the_points_whose_numbers_are_wrong_are_crossed():
    columns = {"median_ms": np.array([3.0, np.nan, 1.0])}
    numbers = [sweep.Numbers(right, "") for right in (True, False, False)]
    outcomes = ["measured", "failed", "measured"]
    x = np.arange(3.0)
    curve = sweep.Curve(0, "defaults", None, x, outcomes, [""] * 3, columns, numbers)
    column = Column("median_ms", "Step time", MILLISECONDS)
    points = Points(curve, column, lambda x: x, 0, STYLES["dark"], "", False, True)
    assert curve.right is False and points._wrong == [False, True]


def test_what_was_out_of_memory_is_marked_above_everything_that_was_measured():
    for name in NAMES[:3]:
        _, canvas = painted(PLOTS[name], [Run(swept())], STYLES["light"])
        (missed,) = [layer for layer in canvas.layers if isinstance(layer, Missed)]
        assert missed._outcomes == ["out of memory"] * 2
        highest = max(layer.y_span()[1] for layer in canvas.layers if layer is not missed)
        assert missed.y_span()[1] > highest
        assert canvas.vb.viewRange()[1][1] >= missed.y_span()[1]


def test_the_map_has_a_cell_for_every_point_and_tells_the_arms_apart():
    runs = [Run(swept(two=True))]
    first, canvas = painted(PLOTS["sweep_map"], runs, STYLES["light"])
    (cells,) = canvas.layers
    assert len(cells._values) + len(cells._missed) == 21
    assert set(cells._missed.values()) == {"out of memory"}
    arm = PLOTS["sweep_map"].choices(runs)["arm"][1]
    other, canvas = painted(PLOTS["sweep_map"], runs, STYLES["light"], arm=arm)
    assert canvas.layers[0]._missed == {(0, 0): "refused"}
    assert first != other
    for metric in PLOTS["sweep_map"].choices(runs)["metric"]:
        image, _ = painted(PLOTS["sweep_map"], runs, STYLES["dark"], metric=metric)
        assert ink(image, STYLES["dark"].theme.surface) > 0.1


def test_words_are_drawn_in_the_order_asked_and_zero_is_drawn_on_a_plain_axis():
    study = sweep_study(sizes=3)
    words = np.array(
        [{512.0: "b", 1024.0: "a", 2048.0: "c"}[x] for x in study.tables["points"]["x"]]
    )
    study.tables["points"] = {**study.tables["points"], "x": words.astype(object)}
    study.tables.pop("fits")
    study.request["values_0"] = ["b", "a", "c"]
    _, canvas = painted(PLOTS["sweep_time"], [Run(Session(studies=[study]))], STYLES["dark"])
    assert canvas.axis("bottom").categories == [(0.0, "b"), (1.0, "a"), (2.0, "c")]
    marks = {entry.mark for entry in canvas.entries()}
    assert marks == {"dots"}, "there is nothing between two words, and no line"
    study = sweep_study(sizes=3)
    study.tables["points"] = {**study.tables["points"], "x": study.tables["points"]["x"] - 512}
    study.request["values_0"] = [0, 512, 1536]
    painted(PLOTS["sweep_time"], [Run(Session(studies=[study]))], STYLES["dark"])


def test_the_axis_spans_every_size_asked_for_from_the_first_point_on():
    study = sweep_study(sizes=5)
    rows = study.tables["points"]
    middle = rows["x"] == sorted(set(rows["x"]))[2]
    study.tables["points"] = {name: column[middle] for name, column in rows.items()}
    study.tables.pop("fits")
    _, canvas = painted(PLOTS["sweep_time"], [Run(Session(studies=[study]))], STYLES["dark"])
    first, last = canvas.vb.viewRange()[0]
    places = [position for position, _ in canvas.axis("bottom").categories]
    assert len(places) == 5 and first < min(places) < max(places) < last


def test_the_latest_sweep_is_shown_unless_another_is_chosen():
    session = Session(studies=[sweep_study(sizes=3), sweep_study(sizes=5)])
    assert PLOTS["sweep_time"].choices([Run(session)]) == {"sweep": ("latest", "1", "2")}
    for choice, count in (("latest", 5), ("1", 3), ("2", 5)):
        table = PLOTS["sweep_time"].table([Run(session)], sweep=choice)
        assert len(table["arm"]) == 2 * count


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".csv"])
def test_sweeps_are_exported(tmp_path, suffix):
    path = export_plot("sweep_time", [Run(swept())], tmp_path / f"one{suffix}")
    if suffix == ".csv":
        rows = list(csv.DictReader(path.open()))
        assert len(rows) == 14
        assert {row["outcome"] for row in rows} == {"measured", "out of memory"}
        assert float(rows[0]["settings_sequence"]) == 512 and rows[5]["median_ms"] == ""
    else:
        assert path.stat().st_size > 1000


def test_a_session_without_a_sweep_says_what_would_make_one():
    for name in NAMES:
        reason = PLOTS[name].can_show([Run(gpu_session(1, 20))])
        assert "panel Sweep" in reason and reason.endswith(".")
    assert "over two fields" in PLOTS["sweep_map"].can_show([Run(swept())])


def test_dots_of_many_short_segments_do_not_grow():
    many, single = gpu_session(1, 20), gpu_session(1, 20)
    segment = many.segments[0]
    many.segments = [segment] * 40
    runs = [Run(many)], [Run(single)]
    images = [painted(PLOTS["step_time"], run, STYLES["dark"])[0] for run in runs]
    inks = [ink(image, STYLES["dark"].theme.surface) for image in images]
    assert inks[0] < 3 * inks[1] and not math.isnan(inks[0])


def test_where_no_allocator_counted_memory_is_called_the_resident_set_that_it_is():
    session = swept()
    (study,) = session.studies
    for memory, title in (
        ("allocated on the GPU", "peak memory"),
        ("resident set of the process", "peak resident set"),
    ):
        study.facts["memory"] = memory
        headings = [column.name for column in sweep.points_table(study).columns]
        assert [heading for heading in headings if heading.startswith("peak ")] == [title]
        _, canvas = painted(PLOTS["sweep_memory"], [Run(session)], STYLES["dark"])
        assert canvas.axis("left").title == title.capitalize()
        _, canvas = painted(PLOTS["sweep_time"], [Run(session)], STYLES["dark"])
        assert canvas.axis("left").title == "Step time"


def of_one_arm(named: int) -> Session:
    """Return a sweep over two fields that measured its first arm, of so many requested arms."""
    session = swept(two=True)
    (study,) = session.studies
    points = {name: np.asarray(values) for name, values in study.tables["points"].items()}
    rows = points["arm"] == 0
    study.tables = {"points": {name: values[rows] for name, values in points.items()}}
    study.request["arms"] = study.request["arms"][:named]
    return session


@pytest.mark.parametrize("named", [1, 2])
def test_a_map_of_a_single_arm_is_drawn_and_reported(named):
    """A report of a sweep of one arm and a map of an unmeasured arm ended in a KeyError."""
    runs = [Run(of_one_arm(named))]
    assert "arm" not in PLOTS["sweep_map"].choices(runs), "there is nothing to choose"
    image, _ = painted(PLOTS["sweep_map"], runs, STYLES["light"])
    assert ink(image, STYLES["light"].theme.surface) > 0.01
    assert "over two fields" in _page.page(runs, sections=["sweep"])
