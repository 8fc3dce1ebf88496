"""The reference's own noise: without more digits than the arm, another order of sums counts."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from built import stepped

from workbench.runner.numerics import training_curve
from workbench.runner.variants.variant import Variant


@pytest.fixture
def arm(small) -> Variant:
    """One that trains in FP32, on batches of four rows."""
    rows = msgspec.structs.replace(small, settings={"batch": 4, "sequence": 16})
    return stepped(rows, steps=2)


@pytest.fixture
def tight(monkeypatch) -> None:
    """Nothing is allowed beside what was measured."""
    bound = training_curve.bound

    def measured(plain: list[float], reference: list[float], largest: float) -> float:
        return bound(plain, reference, largest) - bound(reference, reference, largest)

    monkeypatch.setattr(training_curve, "bound", measured)


@pytest.fixture
def adds_otherwise(arm, monkeypatch) -> Variant:
    """Its losses are the sums of the same rows, which begin with the last one."""
    course = training_curve._train_plain

    def own(target: Variant, between: training_curve.Between) -> list[float]:
        with monkeypatch.context() as patched:
            patched.setattr(
                training_curve, "_reorder_rows", lambda batch: [x.roll(1, 0) for x in batch]
            )
            return course(target, torch.float32, between, fresh=False, reordered=True).losses

    monkeypatch.setattr(training_curve, "_variant_losses", own)
    return arm


def test_the_plain_model_in_the_references_own_digits_measures_nothing(arm):
    reference, plain = (
        training_curve._train_plain(arm, dtype, training_curve.go_on, fresh=False).losses
        for dtype in (torch.float32, None)
    )
    assert reference == plain


def test_an_arm_that_adds_the_same_numbers_in_another_order_is_no_farther_off_than_measured(
    adds_otherwise, tight, monkeypatch
):
    curve = training_curve.check(adds_otherwise, torch.float32)
    assert 0 < curve.difference <= curve.allowed < 1e-5
    monkeypatch.setattr(
        training_curve,
        "_losses_off_by_rounding",
        lambda arm, dtype, between, plain, *_, **__: plain.losses,
    )
    assert training_curve.check(adds_otherwise, torch.float32).allowed < curve.difference


def test_a_fault_is_seen_beside_the_noise_of_another_order(adds_otherwise, monkeypatch):
    own = training_curve._variant_losses
    monkeypatch.setattr(
        training_curve,
        "_variant_losses",
        lambda *given: [loss * (1 + 3e-6) for loss in own(*given)],
    )
    curve = training_curve.check(adds_otherwise, torch.float32)
    assert not curve.ok and curve.difference > curve.allowed


def test_a_model_to_which_the_order_of_rows_means_more_is_not_measured_by_it(arm, monkeypatch):
    plain = training_curve.check(arm, torch.float32)
    monkeypatch.setattr(
        training_curve, "_reorder_rows", lambda batch: [x.roll(1, 1) for x in batch]
    )
    turned = training_curve.check(arm, torch.float32)
    assert turned.allowed == pytest.approx(training_curve.rounding(max(turned.losses)), rel=1e-5)
    assert plain.allowed > turned.allowed


@pytest.mark.parametrize(("dtype", "precision"), [("float64", "fp32"), ("float32", "amp_bf16")])
def test_a_reference_of_more_digits_needs_no_other_order(small, monkeypatch, dtype, precision):
    arm = stepped(small, steps=1, precision=precision)
    turned = []
    course = training_curve._train_plain
    monkeypatch.setattr(
        training_curve,
        "_train_plain",
        lambda *given, **more: (
            turned.append(more.get("reordered", False)),
            course(*given, **more),
        )[1],
    )
    assert training_curve.check(arm, getattr(torch, dtype)).ok and turned == [False, False]


def test_updates_that_are_skipped_while_the_loss_scale_settles_are_no_error(arm):
    """In FP16, gradients of the arm can overflow where the plain model's do not."""
    scaler = arm.full_trainer.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(torch.zeros(()))
    weight = next(iter(arm.plain_weights().values()))
    weight.register_hook(lambda slope: slope * (math.inf if scaler.get_scale() > 32 else 1.0))
    curve = training_curve.check(arm, torch.float64)
    assert curve.ok, curve.text
    assert scaler.get_scale() == 256
