"""Numbers are shown with no more digits than their error allows."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions import numbers, tables


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (12.3456, 0.21, "12.3"),
        (12.3456, 0.12, "12.35"),
        (12.3456, 0.03, "12.35"),
        (12.3456, 3.0, "12"),
        (12.3456, 30.0, "10"),
        (1234.5, None, "1230"),
        (0.0012345, None, "0.00123"),
        (99.96, None, "100"),
        (0.0001, None, "0.000100"),
        (-0.000001, None, "-1.00e-06"),
        (0.0, None, "0.00"),
        (-0.0001, 0.3, "0.0"),
        (1.0, math.nan, "1.00"),
        (1.0, 0.0, "1.00"),
        (math.nan, 0.1, "–"),
        (math.inf, None, "–"),
        (1e300, None, "1.00e+300"),
        (1e-300, None, "1.00e-300"),
        (0.0, 5e-324, "0.00e+00"),
    ],
)
def test_numbers_end_where_their_error_begins(value, error, expected):
    assert tables.number(value, error) == expected


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (1.04, 0.23, "1.04"),  # not 1.0, which is within the region
        (1.5, 0.23, "1.5"),
        (0.996, 0.2, "0.996"),  # not 1.0, nor 0.99 beyond the region
        (1.0, 0.2, "1.0"),
        (0.0004, 0.2, "0.0004"),  # never rounded to nothing
        (1.0000001, 0.2, "1.000000"),  # six decimals at most
    ],
)
def test_the_end_of_an_interval_shows_on_which_side_of_the_edges_it_lies(value, error, expected):
    assert tables.number(value, error, numbers.edges_of(0.01)) == expected


ratios = st.floats(0.01, 100)


@given(ratios, ratios, ratios, st.sampled_from([0.0, 0.01, 0.05]))
def test_the_words_of_a_ratio_claim_what_its_interval_shows(first, second, third, region):
    low, ratio, high = sorted((first, second, third))
    sentence = numbers.ratio_words(ratio, low, high, region)
    assert ("faster" in sentence) == (high < 1) and ("slower" in sentence) == (low > 1)
    shown = [float(number) for number in re.findall(r"(\d+(?:\.\d+)?)(?= to|\))", sentence)]
    ends = [1 / high, 1 / low] if high < 1 else [low, high]
    for end, text in zip(ends, shown, strict=True):
        for edge in numbers.edges_of(region):
            # Rounding may move an end that lies within a millionth of an edge onto it.
            if abs(end - edge) > 1e-6:
                assert (text > edge) == (end > edge)


@given(st.floats(1e-6, 1e9), st.floats(1e-6, 1e6))
def test_rounding_moves_a_number_by_no_more_than_its_error(value, error):
    assert abs(float(tables.number(value, error)) - value) <= error / 2 * (1 + 1e-6)


@given(st.floats(-1e12, 1e12))
def test_a_number_of_unknown_error_keeps_three_digits(value):
    shown = float(tables.number(value))
    assert abs(shown - value) <= 0.005 * abs(value)
    mantissa = re.sub(r"e.*|[-.]", "", tables.number(value)).strip("0")
    assert len(mantissa) <= tables.DIGITS


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (12345, "12,345 steps")]
)
def test_a_counted_noun_is_singular_only_after_1(count, expected):
    assert numbers.counted(count, "step") == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, "0 %"),
        (1e-9, "below 1 %"),
        (0.005, "below 1 %"),
        (0.37, "37 %"),
        (0.996, "over 99 %"),
        (1.0, "100 %"),
        (1.2, "120 %"),
    ],
)
def test_a_part_is_not_nothing_and_not_all(share, expected):
    assert numbers.percent_text(share) == expected


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.01, "1 %"),
        (0.07, "7 %"),  # 100 times it is more than 7
        (0.0125, "1.25 %"),
        (0.012345, "1.24 %"),
        (0.00100001, "0.101 %"),
        (2.0, "200 %"),
        (0.0, "0 %"),
    ],
)
def test_a_margin_is_shown_in_few_digits_and_never_smaller(share, shown):
    assert numbers.margin_text(share) == shown


@given(st.floats(1e-6, 10))
def test_a_shown_margin_holds_the_one_that_decided(share):
    shown = float(numbers.margin_text(share).removesuffix(" %"))
    assert 100 * share * (1 - 1e-8) <= shown <= 100 * share * 1.01 * (1 + 1e-8)
    assert numbers.margin_text(math.expm1(math.log1p(share))) == numbers.margin_text(share)
