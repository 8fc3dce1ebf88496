"""Training with rounded weights: what is rounded, how it learns, and that errors in it are red."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

import kernels
from kernels.quantized_matmul import dequantize_weight
from models.layers.fake_quantized import (
    SCHEME,
    FakeQuantizedLinear,
    fake_quantize,
    fake_quantize_as,
    fake_quantized,
)
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.availability import blocked_options
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison

CPU = torch.device("cpu")


def trained(small, **toggles):
    """An arm of the small model that has made a training step, and its situation."""
    requested = {"quantized_training": "int8", **toggles}
    situation = resolve(msgspec.structs.replace(small, workload="train", toggles=requested), CPU)
    arm = VariantCache().get(situation, PhaseTracker(lambda phase: None))
    with arm.entered(), arm.watched():
        arm.step()
    return arm, situation


def evidence(arm):
    (quantized,) = [
        evidence for evidence in arm.find_evidence() if evidence.toggle == "quantized_training"
    ]
    return quantized


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_forward_pass_has_the_codes_values_and_the_backward_pass_the_weights_gradient(dtype):
    torch.manual_seed(0)
    weight = torch.randn(16, 24, dtype=dtype).requires_grad_()
    rounded = fake_quantized(weight)
    expected = dequantize_weight(*kernels.quantize_weight(weight.detach(), SCHEME), dtype)
    assert torch.allclose(rounded, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6)
    assert len(rounded[0].detach().unique()) <= 255 and not torch.equal(rounded, weight)
    upstream = torch.randn(16, 24, dtype=dtype)
    (gradient,) = torch.autograd.grad(rounded, weight, upstream)
    assert torch.equal(gradient, upstream), "straight through"


def test_layers_keep_their_parameters_and_names_and_parts_are_rounded_alike():
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    before = dict(model.named_parameters())
    fake_quantize(model)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == {
        name: id(parameter) for name, parameter in before.items()
    }
    assert isinstance(model[0], FakeQuantizedLinear)
    assert type(model[2]) is nn.Linear, "3 outputs are no multiple of 8"
    x = torch.randn(5, 16)
    assert torch.allclose(model[0].part(x, 2, 6), model[0](x)[:, 2:6], atol=1e-6)
    other = nn.Sequential(nn.Linear(16, 8))
    fake_quantize_as(other, nn.Linear(8, 8))
    assert type(other[0]) is nn.Linear
    fake_quantize_as(other, model)
    assert isinstance(other[0], FakeQuantizedLinear)


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_a_training_step_shows_its_effect_and_is_right(small, precision):
    arm, situation = trained(small, precision=precision)
    finding = evidence(arm)
    assert finding.status == "effective" and "linear layers used rounded weights" in finding.text
    judged = comparison.check(arm, situation)
    assert judged.ok, judged.text


def test_weights_that_have_nothing_to_round_show_no_effect(small):
    arm, _ = trained(small)
    with torch.no_grad():
        for module in arm.model.modules():
            if isinstance(module, FakeQuantizedLinear):
                module.weight.sign_()
    finding = evidence(arm)
    assert (finding.status, finding.text) == ("no effect", "the rounding changed no weight")


def test_a_rounding_that_stops_the_gradient_is_red(small, monkeypatch):
    def stopped(weight):
        original = weight.detach()
        return (
            dequantize_weight(*kernels.quantize_weight(original, SCHEME), original.dtype)
            + 0 * weight
        )

    arm, situation = trained(small)
    ours = [m for m in arm.model.modules() if isinstance(m, FakeQuantizedLinear)]
    for module in ours:
        module.forward = lambda x, m=module: nn.functional.linear(x, stopped(m.weight), m.bias)
    judged = comparison.check(arm, situation)
    assert judged.ok is False, judged.text


def test_training_lowers_the_loss_of_the_rounded_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    fake_quantize(model)
    x, y = torch.randn(64, 16), torch.randn(64, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert model[0].weight.unique().numel() > 300, "the weight itself is not rounded"


def test_it_is_for_training_on_whole_weights(small):
    blocked = blocked_options(resolve(msgspec.structs.replace(small, workload="forward"), CPU))
    assert "int8" in blocked["quantized_training"]
