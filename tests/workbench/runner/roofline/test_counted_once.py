"""Configurations whose steps are counted alike are counted once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sessions.model import Ceilings, Configuration
from workbench.runner.config.resolve import resolve
from workbench.runner.context import counted_step
from workbench.runner.roofline.predict import Predictor
from workbench.runner.toggles import Stage, all_toggles, toggles_before
from workbench.runner.variants import fake_step

CPU = torch.device("cpu")
ROOF = Ceilings(
    device="fixed", driver="", torch="", created=0.0, bytes_per_s=4e12,
    flops_per_s={"float32": 5e13, "bfloat16": 7e14},
)  # fmt: skip


def configured(**toggles: str) -> Configuration:
    return Configuration(
        family="hydra", preset="tiny", workload="train", settings={"batch": 2, "sequence": 32},
        toggles={"adamw": "fused", **toggles},
    )  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "toggles",
    [
        {"rope_cache": "shared"},
        {"allocator": "expandable"},
        {"kernel_tuning": "off"},
        {"kernel_tuning": "on"},
        {"cudnn_benchmark": "on"},
        {"cuda_graphs": "on"},
        {"compile_shapes": "dynamic"},
        {"gradient_compression": "bf16"},
    ],
)
def test_a_toggle_that_changes_no_counted_work_is_not_counted_again(toggles):
    counted = []

    def count(situation):
        counted.append(situation)
        return counted_step(situation)

    roof = SimpleNamespace(device=CPU, ceilings=ROOF)
    predictor = Predictor(roof, all_toggles(), resolve, count)
    base, other = (resolve(configured(**options), CPU) for options in ({}, toggles))
    least = predictor.least(base)
    assert least.us and predictor.least(other).us == least.us
    assert len(counted) == 1
    assert counted_step(other).calls == counted_step(base).calls, "counting it gives the same"


def test_options_of_the_same_work_count_alike_where_they_are_applied():
    """Other toggles need a GPU; their tests are in the GPU tests of the predictor."""
    applied = toggles_before(Stage.COMPILE)
    for option in ("shared", "per_layer"):
        situation = resolve(configured(rope_cache=option), CPU)
        assert fake_step.count(situation, applied).calls == counted_step(situation).calls


def test_the_idle_time_of_a_profiled_step_is_that_of_its_own_configuration():
    """The GPU waits longer or shorter with options that change no counted work."""
    predictor = Predictor(
        SimpleNamespace(device=CPU, ceilings=ROOF), all_toggles(), resolve, counted_step
    )
    predictor.profiled(resolve(configured(rope_cache="shared"), CPU), 0.5)
    unknown, known = (
        predictor.of(configured(**options), configured(cuda_graphs="on", **options)).ratio
        for options in ({}, {"rope_cache": "shared"})
    )
    assert known is not None and known < 0.9 and known != unknown
