"""Charts of many segments: what is drawn is bounded by pixels, not by steps."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QByteArray
from PySide6.QtGui import QImage, QPainter
from PySide6.QtSvg import QSvgRenderer
from synthetic import gpu_session

from sessions.columns import Columns
from workbench import plot_export
from workbench.charts.layers.curves import Line, Look
from workbench.charts.layers.frame import Frame
from workbench.charts.series.tracks import Track
from workbench.charts.style import paper_style
from workbench.charts.units import MILLISECONDS
from workbench.plots import PLOTS, Run
from workbench.theming import svg
from workbench.theming.theme import DARK, PRINT
from workbench.ui.panels._chart import Chart


def track(t_s) -> Track:
    columns = Columns({"t_s": "f8", "y": "f4"})
    columns.append({"t_s": t_s, "y": np.sin(np.arange(len(t_s)))})
    pulled = Track(columns, "t_s", "y")
    pulled.pull()
    return pulled


@pytest.mark.parametrize("count", [1, 10, 50])
def test_segments_beside_one_another_share_the_places_of_the_view(count):
    places = np.linspace(0.0, 100.0, 20_000).reshape(count, -1)
    views = [track(t_s).view(0.0, 100.0, 0.1) for t_s in places]
    assert 1000 <= sum(len(view.x) for view in views) <= 1000 + 3 * count


@pytest.mark.parametrize("seconds", [10.0, 20_000.0])
def test_a_line_through_steps_is_whole_however_much_time_a_pixel_is(qapp, seconds):
    style = paper_style(PRINT)
    steps = track(np.linspace(0.0, seconds, 20_000))
    line = Line(Look("a", style, MILLISECONDS, 0), lambda: [steps])
    line.pull()
    line.decimate(Frame((0.0, seconds), (-2.0, 2.0), 100.0, 50.0, seconds / 100))
    ((view, gap),) = line._views
    assert view.dense and np.diff(view.x).max() <= gap


@pytest.mark.parametrize("plot", ["step_time", "throughput", "memory"])
def test_a_drawing_of_many_segments_is_hardly_longer_than_one_of_as_many_steps(qapp, plot):
    single, many = (
        len(
            plot_export.plot_svg(
                PLOTS[plot], [Run(gpu_session(segments=count, steps=7600 // count))]
            )
        )
        for count in (1, 38)
    )
    assert many < 2 * single


def test_a_compact_drawing_looks_the_same(qapp, monkeypatch):
    run = Run(gpu_session(segments=8, steps=120))
    small = plot_export.plot_svg(PLOTS["step_time"], [run])
    monkeypatch.setattr(plot_export, "compact", lambda drawing: drawing)
    uncompacted = plot_export.plot_svg(PLOTS["step_time"], [run])
    assert len(small) < 0.75 * len(uncompacted) and svg.compact(uncompacted) == small
    difference = np.abs(pixels(uncompacted) - pixels(small))
    assert difference.mean() < 0.5 and (difference > 64).mean() < 1e-3


def pixels(drawing: bytes) -> np.ndarray:
    """Return the drawing as grey values of its own size: (height, width)."""
    image = QImage(*plot_export.SIZE, QImage.Format.Format_Grayscale8)
    image.fill(255)
    painter = QPainter(image)
    QSvgRenderer(QByteArray(drawing)).render(painter)
    painter.end()
    rows = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), -1)
    return rows[:, : image.width()].astype(float)


@pytest.mark.parametrize("size", [(2, 2), (60, 40), (100, 30), (160, 60), (90, 400)])
def test_a_chart_without_room_is_drawn_once_it_has_some(qtbot, qapp, size, tasks):
    chart = Chart(PLOTS["attribution"], DARK, tasks)
    qtbot.addWidget(chart)
    chart.resize(*size)
    chart.show()
    chart.show_runs([Run(gpu_session())])
    chart.resize(700, 400)
    qtbot.waitUntil(lambda: chart.canvas.layers[0].frame is not None)
    assert chart.canvas.layers[0].frame.width > 100
