"""Linear layers by codes: what is replaced, what shows that it ran, and how far off it may be."""

from __future__ import annotations

import msgspec
import pytest
import torch
from built_arms import configuration, stepped
from torch import nn

import kernels
from kernels.hardware import imagined
from models.layers.quantized_linear import QuantizedLinear, expected_error, quantize_linears
from workbench import protocol
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.availability import blocked_options
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison, deviation
from workbench.runner.toggles import all_toggles, quantization

CPU = torch.device("cpu")
SCHEMES = list(all_toggles()["quantization"].options)[1:]


@pytest.fixture
def build(small):
    """An arm of the small model that has stepped once, and its situation."""
    arms = VariantCache()

    def build(workload="forward", **toggles):
        settings = small.settings | ({"new_tokens": 4} if workload == "decode" else {})
        requested = msgspec.structs.replace(
            small, workload=workload, settings=settings, toggles=toggles
        )
        situation = resolve(requested, CPU)
        arm = arms.get(situation, PhaseTracker(lambda phase: None))
        with arm.entered(), arm.watched():
            arm.step()
        return arm, situation

    return build


def evidence(arm):
    arm.evidence = None
    (quantized,) = [
        evidence for evidence in arm.find_evidence() if evidence.toggle == "quantization"
    ]
    return quantized


def outputs(arm):
    with arm.entered():
        return arm.step().clone()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_layers_are_replaced_run_and_stay_within_what_the_scheme_allows(build, scheme):
    arm, situation = build(quantization=scheme)
    finding = evidence(arm)
    assert finding.status == "effective"
    # The feed-forward width of 88 is no multiple of 16.
    assert finding.text.startswith(f"{6 if 'fp8' in scheme else 8} of 8 linear layers")
    ran = {"int8_weight_only": "dequantize", "int8_dynamic": "int_mm"}.get(scheme, "torch")
    assert arm.record.usage["quantized_matmul"] == {ran: 6 if "fp8" in scheme else 8}
    judged = comparison.check(arm, situation)
    assert judged.ok, judged.text
    assert judged.relative_error > 1e-4, "nothing was rounded"
    assert judged.tolerance < (0.25 if "fp8" in scheme else 0.06)


@pytest.mark.parametrize("workload", ["prefill", "decode"])
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "bf16"])
def test_generation_is_right_in_every_precision(build, workload, precision):
    arm, situation = build(workload, precision=precision, quantization="int8_dynamic")
    assert {evidence.status for evidence in arm.find_evidence()} == {"effective"}
    judged = comparison.check(arm, situation)
    assert judged.ok, judged.text


def test_a_scheme_carried_out_wrongly_is_red(build):
    arm, situation = build(quantization="int8_dynamic")
    assert comparison.check(arm, situation).ok
    layer = next(m for m in arm.model.modules() if isinstance(m, QuantizedLinear))
    layer.scale *= 1.1
    assert not comparison.check(arm, situation).ok


def test_a_scheme_that_ruins_the_model_is_red_though_it_is_carried_out_rightly(build, monkeypatch):
    arm, situation = build(quantization="int8_weight_only")
    make = kernels.quantize_weight

    def coarse(weight, scheme):
        codes, scale = make(weight, scheme)
        return (codes.float() / 64).round().to(torch.int8) * 64, scale

    layers = sum(isinstance(module, QuantizedLinear) for module in arm.model.modules())
    bound, plain = deviation._most("int8_weight_only", layers, 0.0), arm.plain_weights()
    monkeypatch.setattr(kernels, "quantize_weight", coarse)
    monkeypatch.setattr(deviation, "_most", lambda scheme, layers, rounding: bound)
    for name, layer in arm.model.named_modules():
        if isinstance(layer, QuantizedLinear):
            layer.codes_NK, layer.scale = coarse(plain[f"{name}.weight"].detach(), layer.scheme)
    judged = comparison.check(arm, situation)
    assert judged.ok is False and judged.tolerance == bound
    monkeypatch.setattr(deviation, "_most", lambda scheme, layers, rounding: torch.inf)
    assert comparison.check(arm, situation).ok is not False, "it follows its own definition"


def test_layers_that_multiply_by_no_codes_are_told(build):
    arm, _ = build(quantization="int8_dynamic")
    arm.record.usage.pop("quantized_matmul")
    finding = evidence(arm)
    assert (finding.status, finding.text) == (
        "no effect",
        "none of 8 linear layers used quantized weights",
    )


def test_a_router_whose_weight_another_operator_reads_keeps_it():
    requested = configuration(
        "mahia", model={"use_moe": True}, toggles={"quantization": "int8_dynamic"}
    )
    arm = stepped(requested)
    made = [name for name, m in arm.model.named_modules() if isinstance(m, QuantizedLinear)]
    routers = [name for name, _ in arm.model.named_modules() if name.endswith("router")]
    linears = sum(isinstance(module, nn.Linear) for module in arm.model.modules())
    assert len(routers) == 2 and not set(routers) & set(made)
    assert evidence(arm).text.startswith(f"{len(made)} of {linears} linear layers")


def test_codes_follow_weights_that_training_has_changed(build):
    arm, _ = build(quantization="int8_weight_only")
    before, address = outputs(arm), arm.model.blocks[0].mlp.down.codes_NK.data_ptr()
    plain, _ = build()
    with torch.no_grad():
        weight = plain.model.blocks[0].mlp.down.weight  # one tensor for all arms
        weight.copy_(5 * weight.flip(0, 1))
    after = outputs(arm)
    assert not torch.equal(after, before), "the codes are those of the weights before"
    expected = outputs(plain)
    assert (after - expected).norm() < 0.02 * expected.norm() < (after - before).norm()
    assert arm.model.blocks[0].mlp.down.codes_NK.data_ptr() == address, "a captured graph reads it"


def test_training_is_blocked_with_the_workload_that_is_not(small):
    requested = msgspec.structs.replace(small, workload="train")
    why = blocked_options(resolve(requested, CPU))["quantization"]
    assert set(why) == set(SCHEMES)
    assert why["fp8_row"].set == {"workload": "forward"}
    free = msgspec.structs.replace(small, workload="forward")
    assert "quantization" not in blocked_options(resolve(free, CPU))


@pytest.mark.parametrize(
    ("capability", "scheme", "dtype", "reason"),
    [
        ((9, 0), "fp8_row", torch.bfloat16, ""),
        ((9, 0), "fp8_row", torch.float16, "fp8_row returns only bfloat16, not float16"),
        ((9, 0), "fp8_tensor", torch.float16, ""),
        ((9, 0), "fp8_tensor", torch.float32, "returns only bfloat16 or float16, not float32"),
        ((8, 9), "fp8_row", torch.bfloat16, "scales per row need compute capability 9.0"),
        ((8, 0), "fp8_tensor", torch.bfloat16, "needs compute capability 8.9, not 8.0"),
        ((7, 0), "int8_dynamic", torch.float16, "needs compute capability 7.5, not 7.0"),
        ((7, 0), "int8_weight_only", torch.float32, ""),
    ],
)
def test_what_a_gpu_cannot_multiply_is_known_beforehand(capability, scheme, dtype, reason):
    quantization._refusals.cache_clear()
    with imagined(capability):
        reasons = quantization._refusals(scheme, dtype)
    quantization._refusals.cache_clear()
    assert reasons.endswith(reason) and bool(reasons) == bool(reason)


def test_a_model_of_ones_own_is_quantized_and_shared_layers_stay_shared():
    shared = nn.Linear(16, 16)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(16, 5), nn.Linear(5, 16))
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    names = set(model.state_dict())
    exact = model(x)
    (made,) = quantize_linears(model, "int8_dynamic")
    assert model[0] is model[2] is made
    assert names - set(model.state_dict()) == {"0.weight", "2.weight"}
    assert 0 < (model(x) - exact).norm() < 0.05 * exact.norm()


def test_independent_roundings_add_up_to_the_root_of_their_number():
    for scheme in SCHEMES:
        error = expected_error(scheme, 1)
        assert expected_error(scheme, 16) == pytest.approx(4 * error)
        assert (0.02 < error < 0.05) if "fp8" in scheme else (0.005 < error < 0.015)


def test_the_runner_quantizes_while_a_model_runs_and_goes_back(runner, small):
    runner.start(msgspec.structs.replace(small, workload="forward"))
    runner.until(protocol.EvidenceFound)
    runner.send(protocol.Apply(toggles={"quantization": "int8_dynamic"}))
    message = runner.until(protocol.EvidenceFound)
    assert ("quantization", "effective") in [(e.toggle, e.status) for e in message.evidence]
    runner.send(protocol.Apply(toggles={"quantization": "none"}))
    assert runner.until(protocol.SegmentStarted).reused
    runner.finish(protocol.Stop())
