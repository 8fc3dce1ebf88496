"""Findings of a check about two segments: memory, results, and when they are not known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions import numerics
from sessions.columns import Columns
from sessions.model import STEP_COLUMNS, Configuration, Phase, Segment
from sessions.verdicts.ratios import SegmentRatio
from sessions.verdicts.regression import (
    BUCKETS,
    DRAWS,
    EARLY_LOSS,
    SKETCH,
    compare_memory,
    compare_results,
    compare_unpaired,
    decode_sketch,
    encode_sketch,
    sketch_difference,
)

NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=BUCKETS, max_size=BUCKETS)


def segment(**ledger):
    steps = Columns(STEP_COLUMNS)
    steps.append({"t_s": [0.0], "wall_ms": [1.0], "phase": [Phase.STEADY]})
    return Segment(0, Configuration(family="own", preset="own"), "", ledger=ledger, steps=steps)


@given(NUMBERS)
def test_a_sketch_is_read_as_it_was_written(numbers):
    assert decode_sketch(encode_sketch(numbers)).tolist() == numbers


@pytest.mark.parametrize("text", ["", "no base64!", "AAAA", None, encode_sketch([math.nan] * 64)])
def test_what_is_no_sketch_is_none(text):
    assert decode_sketch(text) is None


def test_the_difference_is_relative_to_the_baseline():
    base = np.ones(BUCKETS)
    assert sketch_difference(base, base) == 0
    assert sketch_difference(base, 1.5 * base) == pytest.approx(0.5)
    assert sketch_difference(0 * base, base) == math.inf
    assert sketch_difference(0 * base, 0 * base) == 0


@pytest.mark.parametrize(
    ("sizes", "regressed"),
    [((100, 104), False), ((100, 106), True), ((100, 50), False), ((0, 5), None)],
)
def test_memory_regresses_where_it_grows_by_more_than_the_region(sizes, regressed):
    base, current = (segment(own_peak_bytes=float(size)) for size in sizes)
    assert compare_memory(base, current).regressed is regressed


@pytest.mark.parametrize(
    ("current", "shown"),
    [
        (10104, "+1.04 %"),
        (10096, "+0.96 %"),
        (10001, "+0.01 %"),
        (9999, "-0.01 %"),
        (10000, "0.0 %"),
    ],
)
def test_a_growth_of_memory_is_shown_on_its_own_side_of_what_counts(current, shown):
    base, grown = segment(own_peak_bytes=1e4), segment(own_peak_bytes=float(current))
    finding = compare_memory(base, grown, region=0.01)
    assert finding.change.startswith(f"{shown} (±1 %") and finding.regressed is (current > 10100)


@pytest.mark.parametrize("unchecked", ["none", "baseline", "current"])
def test_results_may_differ_by_what_both_sides_are_allowed(unchecked):
    """An unchecked side has the tolerance of the checked side, as both have one configuration."""
    sketches = [encode_sketch(np.full(BUCKETS, value)) for value in (1.0, 1.00019, 1.00021)]
    facts = {numerics.RIGHT: True, numerics.TEXT: "right", numerics.TOLERANCE: 1e-4}
    before, after = ({} if unchecked == side else facts for side in ("baseline", "current"))
    base = segment(**before, **{SKETCH: sketches[0]})
    near, far = (segment(**after, **{SKETCH: sketch}) for sketch in sketches[1:])
    assert compare_results(base, near).regressed is False
    assert compare_results(base, far).regressed is True


def test_results_that_were_never_checked_may_differ_by_two_percent():
    base, near, far = (
        segment(**{SKETCH: encode_sketch(np.full(BUCKETS, value))}) for value in (1.0, 1.019, 1.021)
    )
    assert compare_results(base, near).regressed is False
    assert compare_results(base, far).regressed is True


def test_results_without_a_sketch_are_not_known_unless_they_are_wrong():
    assert compare_results(segment(), segment()).regressed is None
    wrong = segment(**{numerics.RIGHT: False, numerics.TEXT: "relative error 1"})
    assert compare_results(segment(), wrong).regressed is True


def test_results_that_depend_on_drawn_numbers_are_never_a_regression_by_their_difference():
    base, same, other = (
        segment(**{SKETCH: encode_sketch(np.full(BUCKETS, value)), DRAWS: True})
        for value in (1.0, 1.0, 2.0)
    )
    assert compare_results(base, same).regressed is False
    assert compare_results(base, other).regressed is None
    wrong = segment(**other.ledger, **{numerics.RIGHT: False, numerics.TEXT: "relative error 1"})
    assert compare_results(base, wrong).regressed is True


def test_a_loss_that_went_another_way_is_a_regression():
    sketch = {SKETCH: encode_sketch(np.ones(BUCKETS)), numerics.TOLERANCE: 1e-6}
    base, same, other = (segment(**sketch, **{EARLY_LOSS: loss}) for loss in (2.0, 2.001, 2.01))
    assert compare_results(base, same).regressed is False
    assert compare_results(base, other).regressed is True


@pytest.mark.parametrize(("loss", "regressed"), [(-1e-6, False), (1e-4, True)])
def test_a_loss_close_to_0_may_differ_by_what_the_checks_allow(loss, regressed):
    checked = {numerics.TOLERANCE: 1e-6, numerics.LOSSES_TOLERANCE: 1e-6}
    sketch = {SKETCH: encode_sketch(np.ones(BUCKETS)), **checked}
    base, current = (segment(**sketch, **{EARLY_LOSS: value}) for value in (1e-7, loss))
    assert compare_results(base, current).regressed is regressed


@pytest.mark.parametrize("losses", [(2.0, math.nan), (2.0, math.inf), (math.inf, 2.0)])
def test_a_loss_that_is_not_finite_is_a_regression(losses):
    sketch = {SKETCH: encode_sketch(np.ones(BUCKETS)), numerics.TOLERANCE: 1e-6}
    base, current = (segment(**sketch, **{EARLY_LOSS: value}) for value in losses)
    assert compare_results(base, current).regressed is True


def test_an_unpaired_ratio_claims_nothing():
    finding = compare_unpaired(10.0, 20.0, SegmentRatio(2.0))
    assert finding.regressed is None
    assert finding.change == "2.00 x step time, unpaired"
