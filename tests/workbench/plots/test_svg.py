"""Vector drawings: short, and still all that one sees of the lines at their size."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import gpu_session
from test_many_segments import pixels

from workbench import plot_export
from workbench.plots import PLOTS, Run
from workbench.report import _page
from workbench.theming import svg

NEAR_PX = 2  # about the width of a line
LONG = 8 * 4000  # steps

tenths = st.integers(-9000, 9000)
points = st.lists(st.tuples(tenths, tenths), min_size=1, max_size=60)
smooth = st.builds(
    lambda count, turn: [
        (round(900 * math.cos(turn * n)), round(900 * math.sin(turn * n))) for n in range(count)
    ],
    st.integers(2, 80),
    st.floats(1e-3, 0.5),
)


def line_of(corners: list[tuple[int, int]], kind: str = "line") -> bytes:
    written = " ".join(f"{x / 10:.1f},{y / 10:.1f}" for x, y in corners)
    return f'<poly{kind} fill="none" points="{written}"/>'.encode()


def read(path: bytes) -> tuple[np.ndarray, bool]:
    """Return the corners (n, 2) of an SVG path of m, l, h, v, and whether it is closed."""
    (steps,) = re.findall(rb' d="([^"]*)"', path)
    corners: list[np.ndarray] = []
    for command, numbers in re.findall(rb"([mlhvz])([^mlhvz]*)", steps):
        values = [float(number) for number in re.findall(rb"-?(?:\d*\.\d+|\d+)", numbers)]
        if command == b"z":
            return np.array(corners), True
        if command in b"hv":
            zeros = [0.0] * len(values)
            pairs = zip(*((values, zeros) if command == b"h" else (zeros, values)), strict=True)
            values = [number for pair in pairs for number in pair]
        for step in np.reshape(values, (-1, 2)):
            corners.append(step if not corners else corners[-1] + step)
    return np.array(corners), False


def distance(point: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """From a point to each of the segments (n, 2) to (n, 2)."""
    along = stop - start
    length = (along**2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(length > 0, ((point - start) * along).sum(axis=1) / length, 0.0)
    nearest = start + np.clip(share, 0, 1)[:, None] * along
    return np.hypot(*(point - nearest).T)


@given(points | smooth)
def test_a_line_passes_near_every_corner_that_is_left_out_and_begins_and_ends_alike(corners):
    line, closed = read(svg.compact(line_of(corners)))
    requested = np.array(corners) / 10
    assert not closed
    assert line[0] == pytest.approx(requested[0])
    assert line[-1] == pytest.approx(requested[-1], abs=1e-6)
    if len(line) > 1:
        worst = max(distance(corner, line[:-1], line[1:]).min() for corner in requested)
        assert worst <= 2 * svg.APART + 1e-6
    assert len(line) <= max(2, len(corners))


def test_a_straight_line_of_many_corners_has_two_and_a_zigzag_keeps_all():
    straight, _ = read(svg.compact(line_of([(n, 3 * n) for n in range(500)])))
    assert straight.tolist() == [[0, 0], [49.9, 149.7]]
    zigzag = [(10 * n, 100 * (n % 2)) for n in range(200)]
    line, _ = read(svg.compact(line_of(zigzag)))
    assert np.allclose(line, np.array(zigzag) / 10)


def test_areas_stay_closed_and_single_points_stay_points():
    area, closed = read(svg.compact(line_of([(0, 0), (100, 0), (100, 100)], "gon")))
    assert closed and area.tolist() == [[0, 0], [10, 0], [10, 10]]
    assert svg.compact(line_of([(15, -5)])) == b'<path fill="none" d="m1.5-.5h0"/>'


def test_groups_that_say_the_same_become_one_and_others_stay():
    group, other = b'<g fill="a">', b'<g fill="b">'
    parts = [group, b"<x/></g>\n", group, b"<y/></g>", other, b"<z/></g>", group, b"<w/></g>"]
    merged = [group, b"<x/>", b"<y/></g>", other, b"<z/></g>", group, b"<w/></g>"]
    assert svg.compact(b"".join(parts)) == b"".join(merged)
    apart = [group, b"<x/></g>", b"<circle/>", group, b"<y/></g>"]
    assert svg.compact(b"".join(apart)) == b"".join(apart)


def ink_of(drawing: bytes) -> np.ndarray:
    """Return a mask (height, width) of the drawing's pixels that are not paper."""
    return pixels(drawing) < 190


def around(ink: np.ndarray) -> np.ndarray:
    """Return a mask of the pixels within some pixels of ink."""
    wide = ink.copy()
    for down in range(-NEAR_PX, NEAR_PX + 1):
        for right in range(-NEAR_PX, NEAR_PX + 1):
            wide |= np.roll(ink, (down, right), axis=(0, 1))
    return wide


@pytest.mark.parametrize(
    ("name", "moved"),  # a straighter line is shorter, so that the dashes of its end move along it
    [("step_time", 1e-3), ("memory", 1e-3), ("utilization", 1e-3), ("power", 1e-3), ("ecdf", 0.03)],
)
def test_a_chart_of_a_report_is_a_few_times_shorter_and_has_the_same_ink(
    qapp, name, moved, monkeypatch
):
    runs = [Run(gpu_session(8, LONG // 8, seed=1))]
    with monkeypatch.context() as patch:
        patch.setattr(plot_export, "compact", lambda drawing: drawing)
        fine = plot_export.plot_svg(PLOTS[name], runs)
    short = plot_export.plot_svg(PLOTS[name], runs, least_px=_page._LEAST_PX)
    assert len(short) < len(fine) / 3 and len(short) < 65_000
    before, after = ink_of(fine), ink_of(short)
    assert before.sum() > 3000
    lost, gained = before & ~around(after), after & ~around(before)
    allowed = moved * before.sum()
    assert lost.sum() <= allowed and gained.sum() <= allowed
