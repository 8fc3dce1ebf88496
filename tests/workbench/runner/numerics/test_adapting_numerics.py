"""A model that adapts is judged in the state that is timed, by what its choices promise."""

from __future__ import annotations

import pytest
import torch
from built_arms import CPU, configuration
from recording_wire import RecordingWire

from sessions.model import Phase
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments import checks
from workbench.runner.experiments.attribute import AttributeRun
from workbench.runner.experiments.compare import CompareRun
from workbench.runner.experiments.paired.blocks import Contender, TimedBlock
from workbench.runner.experiments.paired.interleaving import Alternation
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison

SMALL = {"n_layers": 2, "dim": 64, "n_heads": 2, "refresh_every": 2}


@pytest.fixture
def build():
    def build(workload="forward", **toggles):
        situation = resolve(configuration("adaattn", workload, model=SMALL, toggles=toggles), CPU)
        return VariantCache().get(situation, PhaseTracker(lambda phase: None))

    return build


@pytest.fixture
def settled(build):
    def settled(*what, **toggles):
        arm = build(*what, **toggles)
        with arm.entered():
            checks.step(arm, arm.steps_to_settle())
        assert arm.model.adaptation.bits_LH.max() == 16, "all heads have gone down"
        return arm

    return settled


def state_of(arm):
    return {name: tensor.clone() for name, tensor in arm.model.adapted().items()}


def test_choices_that_follow_their_definition_are_right_and_their_price_is_told(settled):
    arm = settled()
    before = state_of(arm)
    result = comparison.check(arm, arm.situation)
    assert result.ok, result.text
    assert 1e-6 < result.relative_error < 1e-3
    assert "of ranks and precisions that change no score by more than 0.00" in result.text
    assert all(torch.equal(tensor, before[name]) for name, tensor in arm.model.adapted().items())


def test_what_is_off_by_more_than_the_choices_are_is_red(settled):
    arm = settled()
    arm.model.register_forward_hook(lambda module, inputs, output: output * 1.001)
    assert not comparison.check(arm, arm.situation).ok


def test_choices_may_not_be_worse_than_the_model_promises(settled):
    arm = settled()
    arm.model.adaptation.factor_LH.fill_(1.2)  # stretches every score: a promise of many nats
    assert comparison.check(arm, arm.situation).ok
    promised = type(arm.model).promise

    def modest(model):
        promise = promised(model)
        return type(promise)(1e-5, promise.text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(arm.model), "promise", modest)
        assert not comparison.check(arm, arm.situation).ok


def test_the_checklist_lets_a_model_adapt_before_it_looks(build):
    arm = build()
    assert arm.steps_to_settle() > 0
    assert checks.right_numbers(arm).status == "pass"
    assert arm.steps_to_settle() == 0


def test_what_never_adapts_has_nothing_to_wait_for(build):
    assert build(adaptive_rank="off", adaptive_precision="off").steps_to_settle() == 0
    assert build("prefill").steps_to_settle() == 0


class Order:
    """An alternation that only tells in which order it was asked."""

    def __init__(self):
        self.called = []

    def __getattr__(self, name):
        return lambda *_: self.called.append(name)


class Anything:
    """Takes whatever is set, called and looked up."""

    def __getattr__(self, name):
        return self

    def __getitem__(self, name):
        return self

    def __call__(self, *_, **__):
        return self


@pytest.mark.parametrize("kind", [CompareRun, AttributeRun])
def test_an_arm_is_checked_after_it_has_settled(kind, monkeypatch):
    run = kind.__new__(kind)
    run._alternation, run._context, run._arms = Order(), Anything(), Anything()
    run._index = run._study = 0
    run.numerics = []
    monkeypatch.setattr(kind, "_counts_memory", False, raising=False)
    monkeypatch.setattr("workbench.protocol.NumericsChecked", lambda **_: None)
    monkeypatch.setattr("workbench.runner.experiments.attribute.path_text", lambda *_: "")
    run._look_at(Anything())
    calls = [name for name in run._alternation.called if name in ("settle", "check")]
    assert calls == ["settle", "check"]


def test_warming_up_lets_a_model_adapt_and_ends_where_nothing_ever_can(build, monkeypatch):
    arm = build()
    wanted = arm.steps_to_settle()
    made = []

    def block(context, contender):
        made.append(5)
        return TimedBlock(1.0, None, "", 5, 1.0)

    monkeypatch.setattr("workbench.runner.experiments.paired.blocks.warm_up_block", block)
    context = RunnerContext(RecordingWire(), CPU)
    context.phases.phase = Phase.STEADY
    monkeypatch.setattr(context.phases, "restart", lambda: None)
    contender = Contender(0, 0, arm.situation, "A", variant=arm)
    Alternation(context, 1.0, 1, "").warm_up(contender)
    assert sum(made) >= wanted > sum(made) - 5
