"""Sizes of memory: one unit a column, three digits, never a small number of a large unit."""

import math

import pytest

from sessions.numbers import text
from sessions.sizes import UNITS, size_text, sized


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (0, "0 B"),
        (712, "712 B"),
        (2**20, "1.00 MiB"),
        (1023.9 * 2**20, "1024 MiB"),
        (13.64 * 2**30, "13.6 GiB"),
        (-3.5 * 2**20, "-3.50 MiB"),
        (math.nan, "–"),
    ],
)
def test_a_size_is_told_in_the_largest_unit_of_which_there_is_one(size_bytes, expected):
    assert size_text(size_bytes) == expected


def test_no_size_is_told_as_less_than_one_or_more_than_1024_of_its_unit():
    for exponent in range(50):
        number, unit = size_text(2.0**exponent * 1.3).split()
        assert 1 <= float(number) <= 1024
        assert math.isclose(float(number) * 1024 ** UNITS.index(unit), 2.0**exponent * 1.3,
                            rel_tol=5e-3)  # fmt: skip


def test_a_column_has_the_unit_of_its_largest_size():
    unit, cells = sized([40.28 * 2**30, 512 * 2**20, math.nan])
    assert unit == "GiB" and [text(cell) for cell in cells] == ["40.3", "0.500", "–"]
    assert sized([-2.0 * 2**30, 2**20])[0] == "GiB"
    assert sized([]) == ("", []) and sized([math.nan]) == ("", [None]), "of nothing known"
    assert sized([0.0]) == ("B", [0])
