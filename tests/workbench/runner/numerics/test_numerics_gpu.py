"""The check of a captured training step on a GPU: by its replays, optimizer and all."""

from __future__ import annotations

import msgspec
import pytest
import torch

from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.experiments import checks
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison

pytestmark = pytest.mark.gpu


@pytest.fixture
def build(small):
    def build(family="hydra", model=None, **toggles):
        requested = msgspec.structs.replace(small, workload="train", toggles=toggles, family=family)
        requested = msgspec.structs.replace(
            requested, model=small.model if model is None else model
        )
        arm = VariantCache().get(
            resolve(requested, torch.device("cuda", 0)), PhaseTracker(lambda phase: None)
        )
        with arm.entered():
            checks.step(arm, max(2, arm.steps_to_settle()))
        return arm

    return build


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "amp_fp16"])
def test_a_captured_step_is_followed_with_its_optimizer(build, precision):
    arm = build(cuda_graphs="on", adamw="fused", precision=precision)
    result = comparison.check(arm, arm.situation)
    assert result.ok, result.text
    assert result.text.endswith("replayed the captured graph, with its optimizer")


def test_a_replay_that_updates_nothing_is_red(build):
    arm = build(cuda_graphs="on", adamw="fused", precision="amp_bf16")
    output = arm.step()
    arm.step = lambda: output
    result = comparison.check(arm, arm.situation)
    assert not result.ok and ": 0.00 x the" in result.text


@pytest.mark.parametrize("toggles", [{}, {"triton": "on", "precision": "amp_bf16"}])
def test_a_model_that_has_adapted_is_right_by_what_its_choices_promise(build, toggles):
    arm = build("adaattn", {"dim": 64, "n_layers": 2, "n_heads": 2}, **toggles)
    assert int(arm.model.adaptation.bits_LH.max()) == 16
    result = comparison.check(arm, arm.situation)
    assert result.ok, result.text
