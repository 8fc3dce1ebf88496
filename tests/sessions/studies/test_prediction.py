"""Predictions from two least times, and what a measurement leaves of them."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.ceilings import ceiling_words, utilization
from sessions.model import Configuration, PairedComparison, Prediction, Segment, Session
from sessions.storage import hdf5
from sessions.studies import prediction
from sessions.studies.prediction import Least, predict

TIMES = st.floats(1e-3, 1e9)


def compared(ratio, low, high, made=None):
    facts = {} if made is None else {"prediction": msgspec.to_builtins(made)}
    return PairedComparison(
        arms=["a", "b"], order=[], medians_ms=[], ratio=ratio, low=low, high=high,
        verdict="FASTER", facts=facts,
    )  # fmt: skip


MADE = Prediction(ratio=0.8, text="A needs 10 ms at least, B 8 ms", base_us=1e4, other_us=8e3)


@given(TIMES, TIMES, TIMES)
def test_less_work_never_predicts_a_slower_step(base, first, second):
    less, more = sorted((first, second))
    ratios = [predict(Least(base), Least(us)).ratio for us in (less, more)]
    assert ratios[0] <= ratios[1]
    assert predict(Least(base), Least(base)).ratio == 1.0


def test_the_prediction_back_is_the_inverse():
    there, back = predict(Least(30.0), Least(10.0)), predict(Least(10.0), Least(30.0))
    assert there.ratio * back.ratio == pytest.approx(1)


@pytest.mark.parametrize(
    "sides", [(Least(None, "why"), Least(1.0)), (Least(1.0), Least(None, "why"))]
)
def test_where_one_side_is_not_known_there_is_a_reason_and_no_number(sides):
    made = predict(*sides)
    assert made.ratio is None and made.text == "why"
    assert prediction.line(made) == "no prediction: why"


def test_cuda_graphs_are_predicted_from_the_time_that_a_profile_saw_the_gpu_wait():
    a, b = Least(100.0), Least(100.0, captured=True)
    assert predict(a, b, idle=0.25).ratio == pytest.approx(0.75)
    assert predict(a, b).ratio is None
    assert predict(b, a, idle=0.25).ratio is None
    assert predict(b, b).ratio == 1.0  # both are: nothing is waited for in either


def test_what_each_side_needs_is_told_in_a_unit_that_fits_and_what_waits_in_percent():
    made = predict(Least(99.0), Least(120.0, captured=True), idle=0.25)
    assert made.text == (
        "at the measured ceilings, A needs at least 99.0 us and B 0.120 ms; the GPU waits in 25 % "
        "of A's profile"
    )


def test_a_measured_ratio_below_the_prediction_is_better_and_above_it_worse():
    better, worse = compared(0.71, 0.70, 0.72, MADE), compared(0.95, 0.94, 0.96, MADE)
    assert prediction.residual(better) == pytest.approx(-0.09)
    assert prediction.residual(worse) == pytest.approx(0.15)
    assert prediction.outcome(better) == (
        "Predicted 0.80, measured 0.71 x step time: 0.09 better than the roofline estimate explains"
    )
    assert "0.15 worse than" in prediction.outcome(worse)


def test_nothing_is_left_to_explain_before_there_is_an_interval():
    one_pair = compared(3.64, math.nan, math.nan, MADE)
    assert (
        prediction.outcome(one_pair)
        == "Predicted 0.80, measured 3.64 x step time so far: no interval yet"
    )


def test_a_prediction_within_the_interval_leaves_nothing_to_explain():
    assert "within the interval" in prediction.outcome(compared(0.81, 0.79, 0.83, MADE))


def test_nothing_is_said_where_nobody_asked_and_the_reason_where_there_is_no_prediction():
    assert prediction.outcome(compared(0.8, 0.7, 0.9)) == ""
    assert prediction.residual(compared(0.8, 0.7, 0.9)) is None
    refused = compared(0.8, 0.7, 0.9, prediction.none("it compiles"))
    assert prediction.residual(refused) is None
    assert prediction.outcome(refused) == "No prediction: it compiles"


def test_a_prediction_and_its_residual_survive_the_session_file(tmp_path):
    session = Session(comparisons=[compared(0.71, 0.70, 0.72, MADE)])
    hdf5.save(session, tmp_path / "one.h5")
    (loaded,) = hdf5.load(tmp_path / "one.h5").comparisons
    assert prediction.of(loaded) == MADE
    assert prediction.residual(loaded) == prediction.residual(session.comparisons[0])


@pytest.mark.parametrize("odd", ["text", 7, {}, {"text": 1}, {"text": "a", "ratio": "b"}])
def test_a_foreign_prediction_in_a_file_is_none(odd):
    made = compared(0.8, 0.7, 0.9)
    made.facts["prediction"] = odd
    predicted = prediction.of(made)
    assert predicted is None or predicted.ratio is None


def segment(**ledger):
    return Segment(0, Configuration(family="hydra", preset="tiny"), "one", ledger=ledger)


def test_utilization_is_the_models_flops_over_time_and_measured_rate():
    made = segment(model_flops=4e12, matrix_flops_per_s=8e14, matrix_dtype="bfloat16")
    assert utilization(made, 10.0) == pytest.approx(0.5)
    assert utilization(made, 20.0) == pytest.approx(0.25)
    assert "800 TFLOP/s" in ceiling_words(made) and "measured bfloat16" in ceiling_words(made)


def test_utilization_is_not_known_without_flops_or_a_measured_rate():
    assert math.isnan(utilization(segment(model_flops=4e12), 10.0))
    assert math.isnan(utilization(segment(matrix_flops_per_s=8e14), 10.0))
    assert math.isnan(utilization(segment(model_flops=4e12, matrix_flops_per_s=8e14), math.nan))
    assert "not measured" in ceiling_words(segment(model_flops=4e12))
    assert "FLOPs are not known" in ceiling_words(segment(matrix_flops_per_s=8e14))
