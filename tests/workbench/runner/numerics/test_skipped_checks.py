"""A check of single layers that cannot run says so, and nothing is right where neither can."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from built_arms import configuration, stepped

from sessions.model import Configuration
from workbench.runner.numerics import comparison, layer_errors, structure_check

ONE_WAY = """
import torch
from torch import nn


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.second(Twice.apply(self.first(x)))


def build():
    return Model(), lambda size: torch.randn(size, 16), lambda y, x: y.square().mean()
"""
STRUCTURE, LAYERS = "modules in FP32 not checked: ", "scales of single layers not checked: "


def check(requested: Configuration):
    arm = stepped(requested)
    return comparison.check(arm, arm.situation)


def own(folder: Path, text: str, **toggles: str) -> Configuration:
    path = folder / "one_way.py"
    path.write_text(text)
    return Configuration(
        family="own", preset="file", model={"source": f"{path}:build"}, workload="forward",
        settings={"batch": 4}, toggles=toggles,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("requested", "why"),
    [
        (configuration("adaattn", toggles={"precision": "bf16"}), "its heads adapt"),
        (configuration("hydra", toggles={"quantization": "int8_dynamic"}), "its weights are quant"),
    ],
    ids=["heads that adapt", "quantized weights"],
)
def test_modules_that_take_no_fp32_weights_are_said_to_be_unchecked(requested, why):
    numbers = check(requested)
    assert numbers.ok, numbers.text
    assert f"{STRUCTURE}{why}" in numbers.text and LAYERS not in numbers.text


def test_an_operator_without_a_backward_pass_leaves_scales_unchecked(tmp_path):
    numbers = check(own(tmp_path, ONE_WAY, precision="bf16"))
    assert numbers.ok, numbers.text
    assert LAYERS in numbers.text and STRUCTURE not in numbers.text


def test_a_plain_model_of_other_parameters_is_a_reason(monkeypatch):
    arm = stepped(configuration("hydra", toggles={"precision": "bf16"}))
    arm.model.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    numbers = comparison.check(arm, arm.situation)
    assert f"{STRUCTURE}the plain model has no parameter extra" in numbers.text, numbers.text


def test_where_neither_can_look_the_numbers_are_not_right(monkeypatch):
    def fail(*arguments):
        raise NotImplementedError("not for this device")

    monkeypatch.setattr(structure_check, "_error", fail)
    monkeypatch.setattr(layer_errors, "_find", fail)
    numbers = check(configuration("hydra", toggles={"precision": "bf16"}))
    assert numbers.ok is None
    assert numbers.text.startswith("not checked: no check can detect a wrong layer here: ")
    assert STRUCTURE in numbers.text and LAYERS in numbers.text
    assert numbers.text.count("not for this device") == 2


def test_memory_that_is_short_for_derivatives_is_a_reason(monkeypatch):
    def short(*arguments):
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")

    monkeypatch.setattr(layer_errors, "_find", short)
    numbers = check(configuration("hydra", toggles={"precision": "bf16"}))
    assert numbers.ok and LAYERS in numbers.text, numbers.text


def test_in_fp32_neither_is_needed_nor_named(monkeypatch):
    monkeypatch.setattr(structure_check, "_error", None)
    numbers = check(configuration("hydra"))
    assert numbers.ok and "not checked" not in numbers.text
