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
    """The corners (n, 2) of a path of m, l, h, v, and whether it is closed: SVG's grammar."""
    (steps,) = re.findall(rb' d="([^"]*)"', path)
    found: list[np.ndarray] = []
    for command, numbers in re.findall(rb"([mlhvz])([^mlhvz]*)", steps):
        values = [float(each) for each in re.findall(rb"-?(?:\d*\.\d+|\d+)", numbers)]
        if command == b"z":
            return np.array(found), True
        if command in b"hv":
            values = [each for value in values
                      for each in ((value, 0.0) if command == b"h" else (0.0, value))]  # fmt: skip
        for step in np.reshape(values, (-1, 2)):
            found.append(step if not found else found[-1] + step)
    return np.array(found), False


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
    found, closed = read(svg.compact(line_of(corners)))
    asked = np.array(corners) / 10
    assert not closed
    assert found[0] == pytest.approx(asked[0]) and found[-1] == pytest.approx(asked[-1], abs=1e-6)
    if len(found) > 1:
        worst = max(distance(one, found[:-1], found[1:]).min() for one in asked)
        assert worst <= 2 * svg.APART + 1e-6
    assert len(found) <= max(2, len(corners))


def test_a_straight_line_of_many_corners_has_two_and_a_zigzag_keeps_all():
    straight, _ = read(svg.compact(line_of([(n, 3 * n) for n in range(500)])))
    assert straight.tolist() == [[0, 0], [49.9, 149.7]]
    zigzag = [(10 * n, 100 * (n % 2)) for n in range(200)]
    found, _ = read(svg.compact(line_of(zigzag)))
    assert np.allclose(found, np.array(zigzag) / 10)


def test_areas_stay_closed_and_single_points_stay_points():
    found, closed = read(svg.compact(line_of([(0, 0), (100, 0), (100, 100)], "gon")))
    assert closed and found.tolist() == [[0, 0], [10, 0], [10, 10]]
    assert svg.compact(line_of([(15, -5)])) == b'<path fill="none" d="m1.5-.5h0"/>'


def test_groups_that_say_the_same_become_one_and_others_stay():
    group, other = b'<g fill="a">', b'<g fill="b">'
    parts = [group, b"<x/></g>\n", group, b"<y/></g>", other, b"<z/></g>", group, b"<w/></g>"]
    merged = [group, b"<x/>", b"<y/></g>", other, b"<z/></g>", group, b"<w/></g>"]
    assert svg.compact(b"".join(parts)) == b"".join(merged)
    apart = [group, b"<x/></g>", b"<circle/>", group, b"<y/></g>"]
    assert svg.compact(b"".join(apart)) == b"".join(apart)


def ink_of(drawing: bytes) -> np.ndarray:
    """Whether each pixel of the drawing at its own size is no paper: (height, width)."""
    return pixels(drawing) < 190


def around(ink: np.ndarray) -> np.ndarray:
    """What lies within some pixels of ink."""
    found = ink.copy()
    for down in range(-NEAR_PX, NEAR_PX + 1):
        for right in range(-NEAR_PX, NEAR_PX + 1):
            found |= np.roll(ink, (down, right), axis=(0, 1))
    return found


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
