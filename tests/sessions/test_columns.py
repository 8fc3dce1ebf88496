"""Growable columns, and what a session's tables have in common."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions import schema
from sessions.columns import Columns, row_count
from sessions.model import STEP_COLUMNS, TELEMETRY_COLUMNS


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=8))
def test_batches_come_back_joined(batches):
    columns = Columns({"a": "i4", "b": "f8"}, capacity=2)
    for batch in batches:
        columns.append({"a": batch, "b": [value / 2 for value in batch]})
    joined = [value for batch in batches for value in batch]
    assert columns["a"].tolist() == joined
    assert columns["b"].tolist() == [value / 2 for value in joined]
    assert columns.rows == row_count(columns) == len(joined)


def test_column_left_out_of_a_batch_is_nan_or_zero():
    columns = Columns({"a": "f4", "b": "i4", "c": "f8"})
    columns.append({"c": [1.0, 2.0]})
    assert np.isnan(columns["a"]).all()
    assert columns["b"].tolist() == [0, 0]


@pytest.mark.filterwarnings("error")
def test_a_number_too_large_for_its_column_is_infinite():
    columns = Columns({"gpu_ms": "f4"})
    columns.append({"gpu_ms": [3.4028235677973366e38, -1e300, 1.0]})
    assert columns["gpu_ms"].tolist() == [math.inf, -math.inf, 1.0]


def test_batch_of_unequal_columns_is_refused_and_nothing_is_added():
    columns = Columns({"a": "f4", "b": "f4"})
    with pytest.raises(ValueError, match="differ in length"):
        columns.append({"a": [1.0], "b": [1.0, 2.0]})
    assert columns.rows == 0


def test_rows_may_be_matrices_of_one_shape():
    columns = Columns({"t_s": "f8", "values": "(2,3)f4"}, capacity=1)
    batches = [np.arange(6 * n).reshape(n, 2, 3) + n for n in (1, 3, 0, 2)]
    for batch in batches:
        columns.append({"t_s": np.arange(len(batch)), "values": batch})
    assert columns["values"].dtype == np.float32
    np.testing.assert_array_equal(columns["values"], np.concatenate(batches))
    for wrong in (np.ones((1, 3, 2)), np.ones((1, 6)), np.ones(1), np.ones((2, 2, 3))):
        with pytest.raises(ValueError, match="differ in length"):
            columns.append({"t_s": [0.0], "values": wrong})
    assert columns.rows == 6


def test_unknown_column_is_refused():
    with pytest.raises(ValueError, match=r"unknown columns \['z'\]"):
        Columns({"a": "f4"}).append({"z": [1.0]})


def test_row_count_of_plain_columns_is_that_of_the_first():
    assert row_count({"a": np.zeros(3)}) == 3
    assert row_count({}) == 0


def test_dtypes_of_live_columns_are_those_of_the_file():
    assert {name: info.dtype for name, info in schema.STEPS.items()} == STEP_COLUMNS
    assert {name: info.dtype for name, info in schema.TELEMETRY.items()} == TELEMETRY_COLUMNS
    assert all(info.text for table in (schema.STEPS, schema.TELEMETRY) for info in table.values())


def test_rows_so_far_stay_as_they_are_while_more_are_appended():
    columns = Columns({"a": "i4", "b": "f8"}, capacity=2)
    columns.append({"a": [1, 2], "b": [0.5, 1.5]})
    so_far = columns.so_far()
    for number in range(5):
        columns.append({"a": [number], "b": [9.0]})
    assert row_count(so_far) == 2 and set(so_far) == {"a", "b"} and len(so_far) == 2
    assert so_far["a"].tolist() == [1, 2] and so_far["b"].tolist() == [0.5, 1.5]
