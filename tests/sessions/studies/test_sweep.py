"""A sweep's tables: what is fitted of them, and how they are read back."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from sessions.model import Configuration, Study
from sessions.studies import sweep
from workbench.charts.units import STEPS
from workbench.plots._sweep import unit_of


def columns(sizes, times, second=None):
    count = len(sizes)
    outcomes = [sweep.MEASURED if np.isfinite(ms) else sweep.OUT_OF_MEMORY for ms in times]
    table = {"x": [*sizes], "arm": [0] * count, "outcome": outcomes, "median_ms": [*times]}
    return {**table, "error": [0.01] * count, **({"y": second} if second else {})}


def test_the_longer_half_is_of_what_was_measured_and_left_out_where_it_is_too_short():
    sizes = [64, 128, 256, 512, 1024, 2048]
    times = [1.0, 1.0, 2.0, 4.0, np.nan, np.nan]
    fitted = sweep.fits(columns(sizes, times))
    assert fitted["part"] == [sweep.ALL] and fitted["n"] == [4]
    fitted = sweep.fits(columns(sizes, [1.0, 1.0, 2.0, 4.0, 8.0, np.nan]))
    assert fitted["part"] == [sweep.ALL, sweep.LONGER] and fitted["n"] == [5, 3]
    assert fitted["exponent"][1] == pytest.approx(1.0)


def test_each_value_of_the_second_field_has_an_exponent_of_its_own():
    sizes = [64.0, 128.0, 256.0] * 2
    times = [size**power for size, power in zip(sizes, [1, 1, 1, 2, 2, 2], strict=True)]
    fitted = sweep.fits(columns(sizes, times, [2.0, 2.0, 2.0, 4.0, 4.0, 4.0]))
    assert fitted["y"] == [2.0, 4.0] and fitted["exponent"] == pytest.approx([1, 2])


def test_words_have_no_exponent():
    assert sweep.fits(columns(["tiny", "base"], [1.0, 2.0])) == {}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("128,256, 512", [128, 256, 512]),
        ("0.5,1e3", [0.5, 1000.0]),
        ("true,False", [True, False]),
        ("tiny,2.8B", ["tiny", "2.8B"]),
        ("nan,-inf,1e400", ["nan", "-inf", "1e400"]),  # JSON cannot send them as numbers
        ("9" * 5000, ["9" * 5000]),
    ],
)
def test_values_are_read_as_a_person_writes_them(text, values):
    read = sweep.read_values(text)
    assert read == values and list(map(type, read)) == list(map(type, values))


@pytest.mark.parametrize(
    ("field", "text", "values"),
    [
        ("toggles.data_parallel", "off,2, 4", ["off", "2", "4"]),
        ("toggles.data_parallel", "2,4", [2, 4]),
        ("settings.batch", "off,2", ["off", 2]),
        ("data", "007,1e5", ["007", "1e5"]),  # names of files
    ],
)
def test_options_of_a_toggle_are_words_where_one_is(field, text, values):
    assert sweep.read_values(text, field) == values


@pytest.mark.parametrize("text", ["", "1,,2", "1,"])
def test_a_value_that_is_missing_is_refused(text):
    with pytest.raises(ValueError, match="expected VALUE,VALUE"):
        sweep.read_values(text)


@pytest.mark.parametrize(
    ("right", "cell", "name"),
    [
        (1.0, "right", "on"),
        (0.0, "WRONG", "WRONG numbers: on"),
        (np.nan, "unknown", "numbers not checked: on"),
    ],
)
def test_an_arms_numbers_mark_all_of_its_points_and_its_name(right, cell, name):
    points = {key: np.array(cells) for key, cells in columns([64, 128], [1.0, 2.0]).items()}
    points |= {key: np.ones(2) for key in sweep._NUMBERS if key not in points}
    points["reason"] = np.array(["", ""], object)
    request = {"fields": ["settings.sequence"], "values_0": [64, 128], "arms": ["on"]}
    study = Study(sweep.KIND, "one", 0.0, request, {}, {sweep.POINTS: points})
    shown = sweep.points_table(study)
    column_index = [column.name for column in shown.columns].index("numbers")
    assert [row[column_index] for row in shown.rows] == ["", ""], "it is still to come"
    checked = {"arm": [0.0], "right": [right], "text": ["at sequence 64: because"]}
    study.tables[sweep.NUMBERS] = {key: np.array(cells) for key, cells in checked.items()}
    assert [row[column_index] for row in sweep.points_table(study).rows] == [cell, cell]
    assert [sweep.name_of(study, curve) for curve in sweep.curves(study)] == [name]
    assert sweep.wrong_arms(study) == (["on"] if right == 0 else [])
    assert sweep.numbers_lines(study) == [f"on: numbers {cell}: at sequence 64: because"]


def test_numbers_of_one_option_say_nothing_of_another_nor_of_what_was_not_measured():
    points = {"x": ["off", "on", "auto"], "arm": [0, 0, 0], "median_ms": [1.0, 0.5, np.nan]}
    points["outcome"] = ["measured", "measured", "refused"]
    points |= {"reason": [""] * 3, **dict.fromkeys(sweep._NUMBERS[1:], [1.0] * 3)}
    request = {"fields": ["toggles.fast"], "values_0": points["x"], "arms": ["defaults"]}
    checked = {"arm": [0, 0], "right": [1.0, 0.0], "text": ["close", "far"], "x": ["off", "on"]}
    tables = {
        name: {key: np.array(cells, object) for key, cells in table.items()}
        for name, table in ((sweep.POINTS, points), (sweep.NUMBERS, checked))
    }
    study = Study(sweep.KIND, "one", 0.0, request, {}, tables)
    assert [row[-2] for row in sweep.points_table(study).rows] == ["right", "WRONG", ""]
    (curve,) = sweep.curves(study)
    assert curve.right is False and sweep.wrong_arms(study) == ["defaults"]
    assert sweep.numbers_lines(study) == ["defaults: numbers right: close",
                                          "defaults: numbers WRONG: far"]  # fmt: skip
    tables[sweep.NUMBERS]["right"][1] = np.nan
    assert sweep.marked(sweep.curves(study)[0]) == "numbers not checked: defaults"


def test_a_point_that_was_not_asked_for_is_left_out():
    points = {name: np.array(cells) for name, cells in columns([64.0, 99.0], [1.0, 2.0]).items()}
    missing = ("low_ms", "high_ms", "tokens_per_s", "peak_bytes", "blocks")
    points |= {"reason": np.array(["", ""], object), **dict.fromkeys(missing, np.ones(2))}
    request = {"fields": ["settings.sequence"], "values_0": [64, 128], "arms": ["defaults"]}
    study = Study(sweep.KIND, "one", 0.0, request, {}, {sweep.POINTS: points})
    (curve,) = sweep.curves(study)
    assert curve.x.tolist() == [64.0] and sweep.fit_of(study, curve) is None
    assert len(sweep.points_table(study).rows) == 1


@pytest.mark.parametrize(
    ("source", "unit"), [("mine.py:build", "samples/s"), ("hf:qwen3-0.6b", "tokens/s")]
)
def test_a_sweep_of_a_persons_own_file_counts_samples(source, unit):
    base = Configuration(family="own", preset="file", model={"source": source})
    request = {"fields": ["settings.batch"], "values_0": [1, 2], "arms": ["defaults"]}
    request["base"] = msgspec.json.encode(base).decode()
    points = {key: np.array(cells) for key, cells in columns([1, 2], [1.0, 2.0]).items()}
    points |= {key: np.ones(2) for key in sweep._NUMBERS if key not in points}
    points["reason"] = np.array(["", ""], object)
    study = Study(sweep.KIND, "one", 0.0, request, {}, {sweep.POINTS: points})
    assert unit in [column.name for column in sweep.points_table(study).columns]
    assert unit_of("tokens_per_s", STEPS, study).text(2.0).endswith(f" {unit}")
