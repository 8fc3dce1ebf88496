"""Rounding may decide what a router chooses: that is no error, and hides none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from built_arms import configuration

import kernels
from kernels.core.dispatch import watched
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison, deviation, routing_ties, training_curve

CPU = torch.device("cpu")
TOKEN = 5


@pytest.fixture
def build():
    def build(workload="forward"):
        situation = resolve(configuration("moe", workload, batch=2, model={"n_layers": 1}), CPU)
        return VariantCache().get(situation, PhaseTracker(lambda phase: None)), situation

    return build


def routers(model):
    return [module for name, module in model.named_modules() if name.endswith("router")]


def plant_tie(arm, gap=1e-7):
    """Place one token's last chosen expert ``gap`` before the next one, in FP64.

    The gap is about one rounding of FP32: the plain model does not cross it, a nudge does.
    """
    (router,) = routers(arm.model)
    seen = []

    def watch(op, name, args):
        if op.name == "moe_gating":
            seen.append(args[0])
        return op.implementations[name].call(*args)

    with torch.no_grad(), watched(watch):
        arm.model(*arm.batches.inputs)
    x_E = seen[0].reshape(-1, seen[0].shape[-1])[TOKEN].double()
    with torch.no_grad():
        logits = router.weight.double() @ x_E
        order = logits.argsort(descending=True)
        last, following = order[router.k - 1], order[router.k]
        # FP32 weights cannot say so small a difference but in a few of the many places.
        off = (logits[last] - gap - logits[following]) / x_E.dot(x_E)
        router.weight[following] += (off * x_E).float()
    return last, following


def take_the_other(arm):
    """Return an arm whose rounding goes the other way at the tie, and that is right otherwise."""
    last, following = plant_tie(arm)
    dispatched = kernels.moe_gating

    def rounded(x, weight, k, renormalise=True, noise=None):
        lean = torch.zeros(*x.shape[:-1], weight.shape[0])
        lean.view(-1, weight.shape[0])[TOKEN, last] = -3e-6
        lean.view(-1, weight.shape[0])[TOKEN, following] = 3e-6
        return dispatched(x, weight, k, renormalise=renormalise, noise=lean)

    return rounded


@pytest.fixture
def leaning(build, monkeypatch):
    """Return a function that makes an arm which takes the other expert at a planted tie."""

    def make(workload="forward"):
        arm, situation = build(workload)
        rounded, own = take_the_other(arm), comparison._variant_outputs

        def leaning(*more):
            with monkeypatch.context() as patch:
                patch.setattr(kernels, "moe_gating", rounded)
                return own(*more)

        monkeypatch.setattr(comparison, "_variant_outputs", leaning)
        return arm, situation

    return make


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_an_expert_that_rounding_has_chosen_is_not_red(leaning, workload, monkeypatch):
    arm, situation = leaning(workload)
    result = comparison.check(arm, situation)
    assert result.ok, result.text
    assert result.relative_error > 1e-4 and deviation.TIED in result.text
    monkeypatch.setattr(routing_ties.Nudges, "reach", (0.0, 0.0))
    assert comparison.check(arm, situation).ok is False


def test_what_is_off_by_more_than_a_tie_explains_is_red(leaning):
    arm, situation = leaning()
    arm.model.register_forward_hook(lambda module, inputs, output: output * 1.02)
    result = comparison.check(arm, situation)
    assert result.ok is False and deviation.TIED in result.text


def test_a_few_roundings_too_many_are_red_where_no_tie_is_near(build):
    arm, situation = build()
    arm.model.register_forward_hook(lambda module, inputs, output: output * (1 + 1e-5))
    result = comparison.check(arm, situation)
    assert result.ok is False and deviation.TIED not in result.text


@pytest.mark.parametrize(("moved", "right"), [(1e-3, True), (1e-6, False)])
def test_losses_are_off_by_no_more_than_a_tie_on_the_way_moves_them(
    build, moved, right, monkeypatch
):
    arm, situation = build("train")
    own, plain = training_curve._variant_losses, training_curve._train_plain

    def farther(course, distance):
        return [loss + distance for loss in course]

    def course(*more, nudge=routing_ties.NONE, **options):
        course_run = plain(*more, nudge=nudge, **options)
        return replace(course_run, losses=farther(course_run.losses, moved if nudge[0] else 0.0))

    monkeypatch.setattr(training_curve, "_variant_losses", lambda *more: farther(own(*more), 1e-3))
    monkeypatch.setattr(training_curve, "_train_plain", course)
    assert comparison.check(arm, situation).ok is right


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("off", "right"),
    [
        ({0, 1}, True),
        ({0}, False),  # not repeatable: the error occurs only sometimes
        ({0, 1, 2}, False),
        ({0, 1, 3}, False),
        ({0, 1, 2, 3}, False),
    ],
)
def test_losses_that_are_off_from_one_set_of_weights_only_are_not_red(
    build, off, right, monkeypatch
):
    arm, situation = build("train")
    own, runs = training_curve._variant_losses, []

    def weights():
        return torch.cat([weight.detach().flatten() for weight in arm.plain_weights().values()])

    def leaning(*given):
        distance = 1e-3 if len(runs) in off else 0.0
        runs.append(weights())
        return [loss + distance for loss in own(*given)]

    monkeypatch.setattr(training_curve, "_variant_losses", leaning)
    before = weights()
    result = comparison.check(arm, situation)
    assert result.ok is right, result.text
    assert ("which did not recur" in result.text) is right
    assert (result.curve_difference <= result.curve_allowed) is right
    assert len(runs) == (2 if 1 not in off else 3 if 2 in off else 4)
    assert all(torch.equal(weights, before) for weights in runs[:2])
    assert not any(torch.equal(nudged, before) for nudged in runs[2:])
    assert torch.equal(weights(), before)


def test_without_memory_for_another_comparison_losses_that_are_off_are_red(build, monkeypatch):
    arm, situation = build("train")
    own, runs = training_curve._variant_losses, []

    def leaning(*given):
        if len(runs) == 2:
            raise torch.OutOfMemoryError("planted")
        runs.append([loss + 1e-3 for loss in own(*given)])
        return runs[-1]

    monkeypatch.setattr(training_curve, "_variant_losses", leaning)
    assert comparison.check(arm, situation).ok is False


def test_a_nudge_is_of_its_size_repeats_and_leaves_the_tensor_alone():
    weight = torch.randn(1000, dtype=torch.float64)
    before = weight.clone()
    first, again, other = (routing_ties.nudged(weight, (1e-7, seed), 3) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert 0.9e-7 < float((first / weight - 1).std()) < 1.1e-7
    assert (
        torch.equal(weight, before) and routing_ties.nudged(weight, routing_ties.NONE, 3) is weight
    )
