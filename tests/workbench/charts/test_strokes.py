import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QSize
from PySide6.QtGui import QBrush, QColor, QPainter, QPen
from PySide6.QtSvg import QSvgGenerator

from workbench.charts.layers.frame import Frame
from workbench.charts.layers.strokes import (
    _without_level,
    area,
    clipped,
    dashed,
    polyline,
    zigzag,
)

coordinate = st.floats(-500, 500)
segment = st.tuples(coordinate, coordinate, coordinate, coordinate)


@given(st.lists(segment, min_size=1, max_size=30))
def test_clipped_segments_lie_inside_and_on_the_lines_they_come_from(segments):
    segments = np.array(segments)
    pieces = clipped(segments, 100.0, 60.0)
    assert (pieces[:, [0, 2]] >= -1e-6).all() and (pieces[:, [0, 2]] <= 100 + 1e-6).all()
    assert (pieces[:, [1, 3]] >= -1e-6).all() and (pieces[:, [1, 3]] <= 60 + 1e-6).all()
    inside = (
        (segments[:, [0, 2]] >= 0).all(1)
        & (segments[:, [0, 2]] <= 100).all(1)
        & (segments[:, [1, 3]] >= 0).all(1)
        & (segments[:, [1, 3]] <= 60).all(1)
    )
    for segment in segments[inside]:
        assert (pieces == segment).all(1).any()


def test_a_segment_that_crosses_the_view_is_cut_at_its_edges():
    pieces = clipped(np.array([[-50.0, -30.0, 150.0, 90.0]]), 100.0, 60.0)
    np.testing.assert_allclose(pieces, [[0.0, 0.0, 100.0, 60.0]], atol=1e-9)


@given(st.lists(st.floats(0.01, 9), min_size=2, max_size=60), st.floats(-100, 100))
@settings(max_examples=60)
def test_dashes_cover_the_on_part_of_the_line_once_and_stay_on_it(steps, origin):
    x = np.cumsum(steps)
    y = np.sin(x)
    segments = np.column_stack([x[:-1], y[:-1], x[1:], y[1:]])
    pattern = [4.0, 2.0, 1.0, 2.0]
    pieces = dashed(segments, pattern, origin)
    assert (pieces[:, 2] >= pieces[:, 0]).all()
    np.testing.assert_allclose(np.interp(pieces[:, 0], x, y), pieces[:, 1], atol=1e-6)
    np.testing.assert_allclose(np.interp(pieces[:, 2], x, y), pieces[:, 3], atol=1e-6)
    fine = np.linspace(x[0], x[-1], 20001)
    phase = np.mod(fine - origin, sum(pattern))
    on = (phase < 4) | ((phase >= 6) & (phase < 7))
    expected = on.mean() * (x[-1] - x[0])
    assert abs((pieces[:, 2] - pieces[:, 0]).sum() - expected) < 0.02 + 1e-3 * x[-1]


def test_upright_segments_survive_dashing_where_the_dash_is_on():
    pieces = dashed(np.array([[1.0, 0.0, 1.0, 50.0], [5.0, 0.0, 5.0, 50.0]]), [4.0, 2.0], 0.0)
    np.testing.assert_array_equal(pieces, [[1.0, 0.0, 1.0, 50.0]])


def test_a_zigzag_visits_the_lowest_and_the_highest_of_every_place():
    x, y = zigzag(np.arange(3.0), np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]))
    assert x.tolist() == [0, 0, 1, 1, 2, 2]
    assert y.tolist() == [1, 4, 5, 2, 3, 6]


def test_a_level_line_becomes_one_segment_and_steps_are_kept():
    x = np.arange(10.0)
    y = np.array([5.0] * 6 + [9.0] * 4)
    segments = _without_level(x, y, np.ones(9, bool))
    np.testing.assert_array_equal(segments, [[0, 5, 5, 5], [5, 5, 6, 9], [6, 9, 9, 9]])


def test_a_gap_is_not_bridged_when_level_stretches_are_joined():
    x = np.arange(6.0)
    linked = np.array([True, True, False, True, True])
    segments = _without_level(x, np.full(6, 3.0), linked)
    np.testing.assert_array_equal(segments[:, [0, 2]], [[0, 2], [3, 5]])


def svg_of(draw):
    content = QByteArray()
    buffer = QBuffer(content)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    generator = QSvgGenerator()
    generator.setOutputDevice(buffer)
    generator.setSize(QSize(100, 60))
    painter = QPainter(generator)
    draw(painter)
    painter.end()
    return bytes(content.data()).decode()


def test_what_lies_outside_the_frame_never_reaches_a_vector_file():
    frame = Frame((0.0, 1.0), (0.0, 1.0), 100.0, 60.0)
    x = np.linspace(-80, 180, 40)
    y = 30 + 300 * np.sin(x / 20)

    def draw(painter):
        polyline(painter, QPen(QColor("red")), x, y, np.inf, frame, joined=True)
        area(painter, QBrush(QColor("red")), x, y - 20, y + 20, np.inf, frame)

    numbers = re.findall(r"(?:points=\"|d=\")([^\"]*)\"", svg_of(draw))
    coordinates = [[float(part) for part in re.findall(r"-?[\d.]+", text)] for text in numbers]
    assert sum(map(len, coordinates)) > 50
    for values in coordinates:
        assert min(values[0::2]) >= -1e-3 and max(values[0::2]) <= 100.001
        assert min(values[1::2]) >= -1e-3 and max(values[1::2]) <= 60.001


def test_lines_break_at_gaps_and_nan_and_single_samples_become_dots():
    frame = Frame((0.0, 1.0), (0.0, 1.0), 100.0, 60.0)
    x = np.array([0.0, 10, 20, 60, 70, 80, 90])
    y = np.array([10.0, 10, 20, 20, 10, np.nan, 30])
    svg = svg_of(
        lambda painter: polyline(painter, QPen(QColor("red")), x, y, 15.0, frame, joined=True)
    )
    lines = re.findall(r"<polyline[^>]*points=\"([^\"]*)\"", svg)
    assert [line.split() for line in lines] == [["0,10", "10,10", "20,20"], ["60,20", "70,10"]]
    assert re.findall(r"<circle cx=\"([^\"]*)\" cy=\"([^\"]*)\"", svg) == [("90", "30")]
