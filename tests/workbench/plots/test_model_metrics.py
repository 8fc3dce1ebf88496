"""The plots of what a model measures of itself: which metric, which numbers, live."""

import csv
import math

import numpy as np
import pytest
from synthetic import add_metrics, cpu_session, gpu_session
from test_plots import STYLES, painted

from sessions.columns import Columns
from sessions.model import MetricSeries
from workbench import plot_export
from workbench.charts.layers.curves import Line
from workbench.plots import PLOTS, Run
from workbench.plots.model_metrics_map import Heat
from workbench.theming.theme import LIGHT
from workbench.ui import panel_list
from workbench.ui.panels._chart import Chart

LINES, MAP = PLOTS["model_metrics"], PLOTS["model_metrics_map"]


def series(values, t_s=None, **about):
    values = np.asarray(values, "f4")
    table = Columns({"t_s": "f8", "values": f"{values.shape[1:]}f4"})
    table.append({"t_s": np.arange(len(values)) if t_s is None else t_s, "values": values})
    named = {"title": "Rank", "unit": "", "help": "", "row": "layer", "column": "head"}
    return MetricSeries(**(named | about), shape=values.shape[1:], table=table)


def measured(values, **about):
    session = cpu_session(40)
    del session.segments[1:]
    t_s = session.segments[0].start_s + np.arange(len(values)) * 0.25
    session.segments[0].metrics["rank"] = series(values, t_s, **about)
    return session


def lines_of(runs, **options):
    _, canvas = painted(LINES, runs, STYLES["dark"], **options)
    lines = [layer for layer in canvas.layers if isinstance(layer, Line)]
    return {line.appearance.name: line for line in lines}, canvas


def test_lines_are_columns_or_rows_averaged_over_the_other_and_pass_over_nan():
    values = np.arange(24, dtype="f4").reshape(4, 2, 3)
    values[3, 0, 0] = math.nan
    run = Run(measured(values))
    columns, canvas = lines_of([run])
    assert list(columns) == ["head 0", "head 1", "head 2"]
    assert canvas.header.subtitle == "Rank, mean over 2 layers"
    newest = math.nan
    assert [line.value(newest) for line in columns.values()] == [21.0, 20.5, 21.5]
    rows, canvas = lines_of([run], lines="rows")
    assert list(rows) == ["layer 0", "layer 1"]
    assert [line.value(newest) for line in rows.values()] == [19.5, 22.0]
    assert canvas.axis("left").title == "Rank"


@pytest.mark.parametrize("lines", ["rows", "columns"])
def test_a_metric_of_one_row_or_one_column_is_never_averaged_away(lines):
    wide, _ = lines_of([Run(measured(np.ones((3, 1, 4))))], lines=lines)
    assert list(wide) == [f"head {number}" for number in range(4)]
    tall, _ = lines_of([Run(measured(np.ones((3, 4, 1))))], lines=lines)
    assert list(tall) == [f"layer {number}" for number in range(4)]


def test_of_many_lines_eight_are_drawn_and_it_says_so():
    lines, canvas = lines_of([Run(measured(np.ones((3, 24, 1))))])
    labels = list(lines)
    assert labels[0] == "layer 0" and labels[-1] == "layer 23" and len(labels) == 8
    assert "8 of 24" in canvas.header.subtitle


def test_readings_of_small_numbers_keep_their_digits():
    lines, _ = lines_of([Run(measured(np.full((3, 1, 1), 0.00123), unit="nats"))])
    assert lines["Rank"].reading(math.nan) == "0.00123 nats"


def test_every_band_of_the_map_has_the_shade_of_its_number():
    values = np.linspace(1, 2, 4 * 6).reshape(4, 2, 3).astype("f4")
    values[:, 1, 2] = math.nan
    _, canvas = painted(MAP, [Run(measured(values))], STYLES["dark"])
    (heat,) = (layer for layer in canvas.layers if isinstance(layer, Heat))
    shades = heat._shades
    assert shades.shape[0] == 6 and (shades[5] == -1).all()
    known = shades[:, (shades[:5] >= 0).all(0)]
    starts = [0, *(1 + np.flatnonzero((np.diff(known) != 0).any(0)))]
    finite = values[np.isfinite(values)]
    share = (values.reshape(4, 6) - finite.min()) / (finite.max() - finite.min())
    np.testing.assert_array_equal(known[:5, starts].T, (share[:, :5] * 31).round())
    assert [entry.name for entry in heat.entries()] == ["1", "1.48", "1.96"]


def test_a_segment_that_the_map_has_no_room_for_leaves_the_others_as_they_are():
    session = cpu_session(40)
    begun = [segment.start_s for segment in session.segments]
    for segment in session.segments:
        segment.metrics["rank"] = series(np.full((2, 2, 3), 7.0), segment.start_s + np.arange(2))
    session.segments[0].start_s = begun[1] - 1e-6  # narrower than a place of the view
    session.segments[0].metrics["rank"] = series(np.full((1, 2, 3), 5.0), [begun[1] - 1e-6])
    _, canvas = painted(MAP, [Run(session)], STYLES["dark"])
    (heat,) = (layer for layer in canvas.layers if isinstance(layer, Heat))
    assert (heat._shades >= 0).any()


def test_the_map_says_that_it_shows_one_session():
    runs = [Run(gpu_session(1, 20, seed=seed)) for seed in (0, 1)]
    assert MAP.can_show(runs) == "The map shows one session, but 2 were given."
    assert LINES.can_show(runs) is None


def test_without_a_metric_it_says_what_would_fill_it():
    for plot in (LINES, MAP):
        assert plot.can_show([Run(cpu_session())]).startswith("No model has reported metrics:")


def test_the_csv_holds_every_number_with_its_row_and_column(tmp_path):
    values = np.random.default_rng(0).random((3, 2, 4)).astype("f4")
    path = plot_export.export_plot("model_metrics", [Run(measured(values))], tmp_path / "a.csv")
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    read = [np.float32(row["value"]) for row in rows]
    np.testing.assert_array_equal(np.reshape(read, values.shape), values)
    assert (rows[6]["row"], rows[6]["column"]) == ("1", "2")


def test_an_export_of_a_metric_that_was_not_measured_is_a_mistake(tmp_path):
    with pytest.raises(
        plot_export.ExportError, match=r"cannot be 'entropy'; expected one of load, gate"
    ):
        plot_export.export_plot(
            "model_metrics",
            [Run(gpu_session(1, 20))],
            tmp_path / "a.png",
            options={"metric": "entropy"},
        )


def test_the_menu_offers_the_metrics_and_the_chart_draws_the_chosen_one(qtbot, tasks):
    chart = Chart(LINES, LIGHT, tasks)
    qtbot.addWidget(chart)
    chart.show_runs([Run(gpu_session(1, 40))])
    texts = {action.text(): action for action in chart.menu().actions()}
    assert {"Metric: load", "Metric: gate", "Lines: columns", "Lines: rows"} <= texts.keys()
    assert texts["Metric: load"].isChecked()
    texts["Metric: gate"].trigger()
    assert chart.canvas.axis("left").title == "Gate to attention"
    chart.show_runs([Run(measured(np.ones((3, 1, 1))))])  # which has no gate
    assert chart.canvas.axis("left").title == "Rank" and chart.reason is None


def test_live_a_plot_fills_with_the_first_reading_and_follows_a_model_of_another_shape(
    qtbot, workspace, show
):
    panel = panel_list.live(workspace)
    qtbot.addWidget(panel)
    panel.resize(900, 700)
    panel.show()
    for name in ("model_metrics", "model_metrics_map"):
        panel.show_plot(name)
    session = gpu_session(2, 60)
    for segment in session.segments:
        segment.metrics = {}
    show(session)
    chart = panel.charts["model_metrics"]
    qtbot.waitUntil(lambda: panel.charts["step_time"].reason is None)
    assert chart.reason.startswith("No model has reported")
    add_metrics(session, np.random.default_rng(0))
    workspace.session.dataArrived.emit()
    qtbot.waitUntil(lambda: chart.reason is None)
    assert "expert 7" in [entry.name for entry in chart.canvas.entries()]

    newest = session.segments[-1]
    newest.metrics = {"rank": series(np.ones((2, 3, 1)), newest.start_s + np.arange(2.0))}
    workspace.session.dataArrived.emit()
    qtbot.waitUntil(lambda: chart.canvas.axis("left").title == "Rank")
    assert "layer 2" in [entry.name for entry in chart.canvas.entries()]
    end = newest.phases[-1].stop_s
    added = {"t_s": [end], "values": [[[5.0], [6.0], [7.0]]]}
    newest.metrics["rank"].table.append(added)
    layers = list(chart.canvas.layers)
    workspace.session.dataArrived.emit()
    qtbot.waitUntil(lambda: chart.canvas.x_span()[1] == Run(session).axis.position(end))
    assert chart.canvas.layers == layers, "numbers alone cost a drawing from scratch"
