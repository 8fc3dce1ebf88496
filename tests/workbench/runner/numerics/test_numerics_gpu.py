"""What a captured training step is compared by on a GPU: its replays, optimizer and all."""

from __future__ import annotations

import msgspec
import pytest
import torch

from workbench.runner.config.resolve import resolve
from workbench.runner.experiments import checks
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison
from workbench.runner.variants.variant import Arms

pytestmark = pytest.mark.gpu


@pytest.fixture
def build(small):
    def build(family="hydra", model=None, **toggles):
        asked = msgspec.structs.replace(small, workload="train", toggles=toggles, family=family)
        asked = msgspec.structs.replace(asked, model=small.model if model is None else model)
        arm = Arms().get(resolve(asked, torch.device("cuda", 0)), PhaseTracker(lambda phase: None))
        with arm.entered():
            checks.step(arm, max(2, arm.steps_to_settle()))
        return arm

    return build


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "amp_fp16"])
def test_a_captured_step_is_followed_with_its_optimizer(build, precision):
    arm = build(cuda_graphs="on", adamw="fused", precision=precision)
    found = comparison.check(arm, arm.situation)
    assert found.ok, found.text
    assert found.text.endswith("replays of the captured graph, with its optimizer")


def test_a_replay_that_updates_nothing_is_red(build):
    arm = build(cuda_graphs="on", adamw="fused", precision="amp_bf16")
    output = arm.step()
    arm.step = lambda: output
    found = comparison.check(arm, arm.situation)
    assert not found.ok and ": 0.00 x the" in found.text


@pytest.mark.parametrize("toggles", [{}, {"triton": "on", "precision": "amp_bf16"}])
def test_a_model_that_has_adapted_is_right_by_what_its_choices_promise(build, toggles):
    arm = build("adaattn", {"dim": 64, "n_layers": 2, "n_heads": 2}, **toggles)
    assert int(arm.model.adaptation.bits_LH.max()) == 16
    found = comparison.check(arm, arm.situation)
    assert found.ok, found.text
