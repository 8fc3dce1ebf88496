"""On a GPU: a step is counted on imagined CUDA tensors, kernels and all; nothing is allocated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sessions.model import Ceilings, Configuration
from workbench.runner.config.resolve import resolve
from workbench.runner.context import counted_step, make_predictor
from workbench.runner.toggles import Stage, all_toggles, toggles_before
from workbench.runner.variants import fake_step

ROOF = Ceilings(
    device="fixed", driver="", torch="", created=0.0, bytes_per_s=4.2e12,
    flops_per_s={"float32": 5e13, "tf32": 4e14, "float16": 7e14, "bfloat16": 7e14},
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(
    "family, change",
    [
        ("hydra", {"triton": "on"}),
        ("mamba2", {"triton": "on"}),
        ("moe", {"precision": "bf16", "triton": "on"}),
        ("hydra", {"precision": "amp_bf16", "triton": "off"}),
    ],
)
def test_what_saves_bytes_is_predicted_to_be_faster_without_taking_memory(family, change):
    device = torch.device("cuda", 0)
    predictor = make_predictor(SimpleNamespace(device=device, ceilings=ROOF))
    base = {"adamw": "fused", "triton": "on" if family == "moe" else "off"}
    before = torch.cuda.memory_allocated()
    a, b = (
        Configuration(family=family, preset="tiny", workload="train", toggles=toggles)
        for toggles in (base, {**base, **change})
    )
    made = predictor.of(a, b)
    assert made.ratio is not None, made.text
    assert made.ratio < 0.95
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["hydra", "moe"])
def test_options_of_the_same_work_count_alike_where_they_are_applied(family):
    device, applied = torch.device("cuda", 0), toggles_before(Stage.COMPILE)
    toggles = [toggle for toggle in all_toggles().values() if toggle.same_work]
    assert {toggle.name for toggle in toggles} >= {"allocator", "kernel_tuning", "rope_cache"}
    for toggle in toggles:
        for option in toggle.options:
            options = {"adamw": "fused", "triton": "on", toggle.name: option}
            configuration = Configuration(
                family=family, preset="tiny", workload="train", toggles=options
            )
            situation = resolve(configuration, device)
            calls = fake_step.count(situation, applied).calls
            assert calls == counted_step(situation).calls, (toggle.name, option)
