"""The plots of a profile: cells as wide as their time, memory in its roles, on screen and paper."""

from __future__ import annotations

import numpy as np
import profile_samples
import pytest
from PySide6.QtGui import QImage
from test_plots import STYLES, ink, painted

from sessions.model import Session
from sessions.studies import breakdown
from workbench import plot_export
from workbench.plots import PLOTS, Run
from workbench.plots.breakdown import Icicle, cells, describe_cell
from workbench.plots.memory_roles import FREE, rows

NAMES = ("breakdown", "memory_roles", "memory_course")


@pytest.fixture(scope="module")
def profiled() -> Session:
    return profile_samples.session(2)


def icicle(canvas) -> Icicle:
    return next(layer for layer in canvas.layers if isinstance(layer, Icicle))


@pytest.mark.parametrize("style", sorted(STYLES))
@pytest.mark.parametrize("name", NAMES)
def test_every_plot_of_a_profile_is_drawn_in_every_style(profiled, name, style):
    image, _ = painted(PLOTS[name], [Run(profiled)], STYLES[style])
    assert ink(image, STYLES[style].theme.surface) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_without_a_profile_a_plot_says_so(name):
    assert PLOTS[name].can_show([Run(Session())]) == "No steps of this session were profiled."


def test_a_cell_is_as_wide_as_its_time_and_lies_within_what_it_is_part_of(profiled):
    study = breakdown.profiles(profiled)[0]
    rectangles = cells(study)
    totals = breakdown.totals(study)
    for cell in rectangles:
        if cell.path and not cell.kind:
            assert cell.us == pytest.approx(totals[cell.path])
    by_row: dict[int, list] = {}
    for cell in rectangles:
        by_row.setdefault(cell.depth, []).append(cell)
    for depth, row in by_row.items():
        row.sort(key=lambda cell: cell.start_us)
        starts = np.array([cell.start_us for cell in row])
        stops = np.array([cell.stop_us for cell in row])
        assert (stops[:-1] <= starts[1:] + 1e-6).all()
        for cell in row if depth else []:
            assert any(
                up.start_us - 1e-6 <= cell.start_us and cell.stop_us <= up.stop_us + 1e-6
                for up in by_row[depth - 1]
                if not up.kind
            )
    own = sum(cell.us for cell in rectangles if cell.kind)
    assert own == pytest.approx(breakdown.total_us(study))


def test_blocks_lie_in_the_order_of_their_numbers(profiled):
    rectangles = cells(breakdown.profiles(profiled)[0])
    blocks = [cell.title for cell in rectangles if cell.path.count(".") == 1 and not cell.kind]
    assert blocks == [str(number) for number in range(12)]


def test_the_cell_under_the_mouse_is_told_with_its_numbers(profiled):
    _, canvas = painted(PLOTS["breakdown"], [Run(profiled)], STYLES["dark"], profile="1")
    layer = icicle(canvas)
    for cell in layer.cells[:40]:
        assert layer.at((cell.start_us + cell.stop_us) / 2, -cell.depth - 0.5) is cell
    assert layer.at(-1.0, -0.5) is None and layer.at(1.0, 3.0) is None
    block = next(cell for cell in layer.cells if cell.path == "blocks.3" and not cell.kind)
    text = describe_cell(block, layer.step_us)
    assert text.startswith("blocks.3: 2.1") and "ms of a step, 7" in text and "own work" in text
    assert describe_cell(layer.cells[0], layer.step_us).endswith("100\u202f%")


def test_a_chosen_profile_is_drawn_and_the_newest_otherwise(profiled):
    assert PLOTS["breakdown"].choices([Run(profiled)])["profile"] == ("2", "1")
    first, newest = (
        icicle(painted(PLOTS["breakdown"], [Run(profiled)], STYLES["dark"], **options)[1]).step_us
        for options in ({"profile": "1"}, {})
    )
    assert newest < first
    table = PLOTS["breakdown"].table([Run(profiled)], profile="1")
    assert float(table["us"].sum()) == pytest.approx(first)


def test_bars_hold_what_was_measured_and_what_was_estimated(profiled):
    study = breakdown.profiles(profiled)[0]
    (measured_name, measured), (estimated_name, estimated) = rows(study)
    assert (measured_name, estimated_name) == ("at the peak", "estimated")
    reserved = float(study.tables["memory"]["reserved"].max())
    assert sum(measured.values()) == pytest.approx(reserved)
    assert measured[FREE] == pytest.approx(breakdown.fragmentation(study))
    assert "workspace" not in estimated and estimated["activations"] == 5900 * 2**20


def test_the_course_reads_the_bytes_at_its_place(profiled):
    _, canvas = painted(PLOTS["memory_course"], [Run(profiled)], STYLES["dark"])
    entry = next(entry for entry in canvas.entries() if entry.name.startswith("activations"))
    assert entry.reading(7.0) == "5.08 GiB" and entry.reading(0.0) == "0 B"
    assert entry.reading(float("nan")) == "5.08 GiB"


@pytest.mark.parametrize("suffix", plot_export.SUFFIXES)
def test_a_profile_is_exported_like_every_plot(profiled, tmp_path, suffix):
    for name in NAMES:
        path = plot_export.export_plot(name, [Run(profiled)], tmp_path / f"{name}{suffix}")
        assert path.stat().st_size > 200
    if suffix == ".png":
        assert not QImage(str(path)).isNull()


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("kernel_timeline", "timeline"),
        ("memory_course", "memory"),
        ("memory_roles", "peak"),
        ("profile_roofline", "least"),
    ],
)
def test_without_a_choice_the_newest_profile_that_has_the_data_is_drawn(name, table):
    """The newest may lack it: it was recorded by an older version, or read from another trace."""
    session = Session()
    for faster in (1.0, 0.8, 0.6):
        session.studies.append(profile_samples.rich_study(blocks=2, faster=faster))
    del session.studies[2].tables[table]
    plot, runs = PLOTS[name], [Run(session)]
    assert plot.can_show(runs) is None
    _, canvas = painted(plot, runs, next(iter(STYLES.values())))
    assert canvas.layers
    rows, expected = (plot.table(runs, **choice) for choice in ({}, {"profile": "2"}))
    assert rows and all(len(rows[column]) for column in rows)
    for column, values in expected.items():
        np.testing.assert_array_equal(rows[column], values)
    assert plot.choices_in(runs) == {"profile": ("2", "1")}
    for study in session.studies:
        study.tables.pop(table, None)
    assert plot.can_show(runs) is not None and not plot.choices_in(runs)
