import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench.charts.units import (
    BYTES,
    MILLISECONDS,
    PERCENT,
    SECONDS,
    STEPS,
    THROUGHPUTS,
    WATTS,
    Logarithmic,
    clock,
)

UNITS = (BYTES, MILLISECONDS, PERCENT, SECONDS, STEPS, THROUGHPUTS["tokens"], WATTS)


@given(
    st.sampled_from(UNITS),
    st.floats(-1e9, 1e12),
    st.floats(1e-6, 1e12),
    st.integers(2, 10),
)
def test_ticks_lie_in_the_range_are_even_and_are_told_apart(unit, low, span, most):
    high = low + span
    assume(high > low and span > 1e-9 * abs(low))
    assume(unit is not BYTES or span >= 1)
    places, texts, _ = unit.ticks(low, high, most)
    slack = 1e-6 * span
    assert all(low - slack <= tick <= high + slack for tick in places)
    assert len(places) <= most + 1
    if len(places) > 2:
        steps = [b - a for a, b in itertools.pairwise(places)]
        assert max(steps) == pytest.approx(min(steps), rel=1e-3)
    if span > 1e-5 * abs(high):
        assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (MILLISECONDS, 12.345, "12.3 ms"),
        (MILLISECONDS, 0.0123, "12.3 µs"),
        (MILLISECONDS, 1500.0, "1.50 s"),
        (BYTES, 1.25 * 2**30, "1.25 GiB"),
        (BYTES, 512.0, "512 B"),
        (BYTES, 1023.9 * 2**20, "1024 MiB"),
        (PERCENT, 97.64, "97.6\u202f%"),
        (PERCENT, 0.0, "0\u202f%"),
        (THROUGHPUTS["tokens"], 1_234_567.0, "1.23 M tokens/s"),
        (WATTS, 523.4, "523 W"),
        (SECONDS, 14.0, "14.0 s"),
        (SECONDS, 3675.0, "1:01:15"),
        (MILLISECONDS, math.nan, "–"),
        (WATTS, -3.0, "−3.00 W"),
        (STEPS, 1.84e-7, "1.84e−07"),
        (STEPS, -1.84e-7, "−1.84e−07"),
    ],
)
def test_readings_carry_their_unit_and_three_digits(unit, value, text):
    assert unit.text(value) == text


def test_memory_ticks_are_powers_of_two_of_a_binary_unit():
    places, texts, symbol = BYTES.ticks(0, 70 * 2**30, 6)
    assert symbol == "GiB"
    assert texts == ["0", "16", "32", "48", "64"]
    assert places[1] == 16 * 2**30


def test_ticks_of_tiny_numbers_have_an_exponent():
    _, texts, _ = STEPS.ticks(1.5e-7, 1.9e-7, 3)
    assert texts == ["1.6e−07", "1.8e−07"]
    assert STEPS.ticks(0.0, 1e-6, 3)[1] == ["0", "5.0e−07", "1.0e−06"]


def test_long_times_are_read_as_a_clock():
    _, texts, symbol = SECONDS.ticks(0, 600, 6)
    assert symbol == "min:s"
    assert texts == ["0:00", "2:00", "4:00", "6:00", "8:00", "10:00"]


@given(st.floats(0, 1e6))
def test_the_clock_text_reads_back_as_the_time(seconds):
    parts = [float(part) for part in clock(seconds).split(":")]
    total = sum(part * 60**power for power, part in enumerate(reversed(parts)))
    assert total == pytest.approx(seconds, abs=6e-4)


@given(st.floats(-320, 320), st.floats(-9, 3), st.integers(2, 12))
def test_logarithmic_ticks_lie_in_the_range_and_read_as_what_they_stand_for(low, width, most):
    unit = Logarithmic("s", 1e-3)
    high = low + 10**width
    places, texts, symbol = unit.ticks(low, high, most)
    assert len(places) == len(texts) <= most + 1
    if not -300 < low < high < 300:
        assert not places
        return
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in places)
    assert places == sorted(places)
    middle = 10.0 ** ((low + high) / 2)
    factor, known = unit.scaling(middle, middle)
    assert symbol == known
    for tick, text in zip(places, texts, strict=True):
        assert float(text) == pytest.approx(10.0**tick * factor, rel=1e-4)


def test_logarithmic_ticks_are_round_and_enough():
    unit = Logarithmic("s", 1e-3)
    assert unit.ticks(0.0, 2.0, 10)[1:] == (["1", "2", "5", "10", "20", "50", "100"], "ms")
    decades = ["0.1", "1", "10", "100", "1000", "10000", "100000"]
    assert unit.ticks(-1.0, 5.0, 7)[1:] == (decades, "ms")
    assert unit.ticks(math.log10(21), math.log10(29), 8)[1] == ["21", "23", "25", "27", "29"]
    assert unit.text(1.5) == "31.6 ms" and unit.text(math.nan) == "–"
