"""Memory of a quantized arm, and that nothing is lost of what it does not keep."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from built_arms import configuration, evidence_of, stepped

from kernels.quantized_matmul import quantize_weight
from models import FAMILIES
from models.layers.quantized_linear import QuantizedLinear, quantizable, quantize_linears
from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.estimate import footprint
from workbench.runner.failures import Mistake
from workbench.runner.numerics import comparison

OPTION = "int8_weight_only"
MIB = 2**20


def requested(
    option: str, family: str = "hydra", workload: str = "forward", **more
) -> Configuration:
    toggles = {"quantization": option, **more.pop("toggles", {})}
    return configuration(family, workload, toggles=toggles, **more)


def output(arm) -> torch.Tensor:
    with arm.entered():
        return arm.step().clone()


def wide_tensors(shapes: set[torch.Size]) -> list[torch.Tensor]:
    """Tensors of numbers of these shapes that take memory, codes aside."""
    gc.collect()
    return [
        tensor
        for tensor in gc.get_objects()
        if issubclass(type(tensor), torch.Tensor)
        and tensor.shape in shapes
        and tensor.is_floating_point()
        and tensor.itemsize > 1
        and tensor.untyped_storage().nbytes() >= tensor.nbytes
    ]


def test_a_quantized_model_keeps_no_weight_that_codes_stand_for():
    odd = {"dim": 72, "n_heads": 3, "n_kv_heads": 1}  # sizes that nothing else here has
    arms = VariantCache()
    arm = stepped(requested(OPTION, model=odd), arms)
    shapes = {m.codes_NK.shape for m in arm.model.modules() if isinstance(m, QuantizedLinear)}
    assert len(shapes) == 4 and not wide_tensors(shapes)
    plain = stepped(requested("none", model=odd), arms)
    assert len(wide_tensors(shapes)) == 4 * plain.situation.config.n_layers
    del plain


@pytest.mark.sample(5)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_take_what_is_estimated_and_the_evidence_tells_it(family, precision):
    options = ("none", "int8_dynamic", "fp8_tensor", "fp8_row")
    arms, weights_bytes = VariantCache(), {}
    for option in options:
        arm = stepped(requested(option, family, toggles={"precision": precision}), arms)
        weights_bytes[option] = arm.ledger["weights_bytes"]
        assert weights_bytes[option] == footprint(arm.situation).weights
        tensors = {t.data_ptr(): t.nbytes for t in arm.plain_weights().values()}
        assert weights_bytes["none"] == sum(tensors.values())
        if option != "none":
            codes, plain = (weights_bytes[name] / MIB for name in (option, "none"))
            shown = f"{codes:.3g} MiB instead of {plain:.3g}"
            assert f"the weights need {shown}" in evidence_of(arm, "quantization").text
    assert max(weights_bytes[option] for option in options[1:]) < weights_bytes["none"]
    assert arm.ledger["parameters"] == FAMILIES[family].parameter_count(arm.situation.config)


def test_weights_that_other_configurations_use_stay_and_are_told_until_those_are_gone():
    arms = VariantCache()
    plain = stepped(requested("none"), arms)
    arm = stepped(requested(OPTION), arms)
    codes = arm.weights.plain_bytes / MIB
    why = f"but {codes:.3g} MiB of original weights are in memory too: other configurations"
    assert why in evidence_of(arm, "quantization").text
    arms.forget(plain.situation)
    weight = weakref.ref(plain.model.blocks[0].mlp.down.weight)
    del plain
    other = stepped(requested(OPTION, toggles={"triton_rms_norm": "torch"}), arms)
    gc.collect()
    assert weight() is None
    for quantized in (arm, other):
        assert "in memory too" not in evidence_of(quantized, "quantization").text
    assert other.weights is arm.weights, "one set of codes is for all arms of its scheme"


def test_going_back_to_a_configuration_without_codes_finds_the_same_weights():
    arms = VariantCache()
    arm = stepped(requested(OPTION), arms)
    before = output(arm)
    plain = stepped(requested("none"), arms)
    assert plain.model.embedding.weight is arm.model.embedding.weight
    assert torch.equal(output(plain), output(stepped(requested("none"))))
    assert torch.equal(output(arm), before)
    judged = [comparison.check(arm, arm.situation) for arm in (arm, plain)]
    assert all(finding.ok for finding in judged), [finding.text for finding in judged]


def test_arms_that_take_turns_alone_in_memory_hold_either_weights_or_codes():
    arms, given = VariantCache(), {"none": [], OPTION: []}
    for option in ("none", OPTION, "none", OPTION):
        arms.forget_variants()
        arm = stepped(requested(option), arms)
        given[option].append(output(arm))
        assert len(arms._weights) == 1, "what the other needs is in memory too"
    for first, second in given.values():
        assert torch.equal(first, second)


@pytest.mark.parametrize("workload", ["forward", "decode"])
def test_a_check_draws_the_weights_it_needs_and_keeps_none(workload):
    alone, beside = VariantCache(), VariantCache()
    stepped(requested("none", workload=workload), beside)
    checked = [
        comparison.check(arm, arm.situation)
        for arm in (stepped(requested(OPTION, workload=workload), arms) for arms in (alone, beside))
    ]
    assert checked[0].ok and checked[0] == checked[1]
    assert [len(arms._weights) for arms in (alone, beside)] == [1, 2]


def test_weights_that_were_trained_are_kept_and_quantized_as_they_are():
    arms = VariantCache()
    first = stepped(requested(OPTION), arms)
    before = output(first)
    trained = stepped(requested("none", workload="train"), arms)
    weight = trained.model.blocks[0].mlp.down.weight
    arms.forget_variants()
    arm = stepped(requested(OPTION, toggles={"triton_rms_norm": "torch"}), arms)
    assert "in memory too: they were trained" in evidence_of(arm, "quantization").text
    layer = arm.model.blocks[0].mlp.down
    assert torch.equal(layer.codes_NK, quantize_weight(weight.detach(), OPTION)[0])
    assert arm.model.embedding.weight is trained.model.embedding.weight
    again = stepped(requested("none"), arms)
    assert again.model.blocks[0].mlp.down.weight is weight
    after = output(first)
    assert not torch.equal(after, before), "the codes are those of the weights before"
    assert comparison.check(first, first.situation).ok


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("hydra", {"mixture_of_recursions": True, "mixture_of_depths": True}),
        ("hydra", {"mixture_of_recursions": True, "recursion_kv": "share"}),
        ("mahia", {"use_moe": True}),
        ("adaattn", {}),
        ("mamba2", {}),
        ("moe", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("scheme", ["int8_dynamic", "fp8_tensor"])
def test_no_family_multiplies_by_a_weight_that_it_would_have_to_make_anew(
    family, fields, scheme, monkeypatch
):
    def widened(layer):
        raise AssertionError("the weight is made anew for each product")

    monkeypatch.setattr(QuantizedLinear, "weight", property(widened))
    stepped(requested(scheme, family, model=fields))


def test_a_part_of_a_quantized_layer_is_the_part_of_what_it_gives():
    linear = torch.nn.Linear(16, 24)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    for scheme in ("int8_dynamic", "fp8_tensor"):
        layer = QuantizedLinear(linear, scheme)
        torch.testing.assert_close(layer.part(x, 8, 16), layer(x)[:, 8:16])
        assert (layer.weight - linear.weight).abs().max() < 0.05 * linear.weight.abs().max()


def test_weights_are_quantized_as_they_are_drawn_so_that_they_are_never_all_in_memory():
    family = FAMILIES["hydra"]
    config = family.configure("tiny", {"n_layers": 24})
    layers = {f"{name}.weight" for name in quantizable(family.build(config), OPTION)}
    drawn: list[weakref.ref] = []
    most, lock = 0, threading.Lock()

    def take(name, parameter):
        nonlocal most
        if name not in layers:
            return parameter
        with lock:
            drawn.append(weakref.ref(parameter))
            most = max(most, sum(reference() is not None for reference in drawn))
        return torch.nn.Parameter(torch.zeros(()).expand(parameter.shape), requires_grad=False)

    made = family.weights(config, torch.device("cpu"), torch.float32, 0, take)
    assert set(made) == {name for name, _ in family.build(config).named_parameters()}
    assert len(drawn) == 24 * 4 and most <= 12


OWN = """
import numpy, torch
def build():
    shared = torch.nn.Linear(16, 16)
    {more}
    model = torch.nn.Sequential(shared, torch.nn.ReLU(), shared, torch.nn.Linear(16, 5))
    return model, lambda batch: torch.randn(batch, 16)
"""
UNSEEDED = "shared.weight.data = torch.from_numpy(numpy.random.default_rng().normal(size=(16, 16)))"


def own(tmp_path, option: str, more: str = "") -> Configuration:
    path = tmp_path / "mine.py"
    path.write_text(OWN.format(more=more))
    return Configuration(
        family="own",
        preset="file",
        workload="forward",
        model={"source": str(path)},
        toggles={"quantization": option},
    )


def test_a_shared_layer_of_ones_own_is_held_once_as_codes(tmp_path):
    arms = VariantCache()
    arm = stepped(own(tmp_path, "int8_dynamic"), arms)
    assert arm.ledger["weights_bytes"] == 16 * 16 + 4 * 16 + 4 * 16 + 4 * (16 * 5 + 5)
    assert arm.ledger["parameters"] == 16 * 16 + 16 + 16 * 5 + 5
    assert comparison.check(arm, arm.situation).ok
    plain = stepped(own(tmp_path, "none"), arms)
    assert (output(plain) - output(arm)).norm() < 0.1 * output(plain).norm()


def test_ones_own_weights_that_no_seed_brings_back_are_not_taken_for_the_same(tmp_path):
    arms = VariantCache()
    arm = stepped(own(tmp_path, "int8_dynamic", UNSEEDED), arms)
    judged = comparison.check(arm, arm.situation)
    assert judged.ok is None and "build() returned other weights than before" in judged.text
    with pytest.raises(Mistake, match="draw all weights from torch's own generator"):
        stepped(own(tmp_path, "none", UNSEEDED), arms)


def test_codes_that_are_given_stand_in_place_of_whatever_the_layers_hold():
    model = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False))
    codes = quantize_weight(torch.eye(16), "int8_dynamic")
    (layer,) = quantize_linears(model, "int8_dynamic", {"0": codes})
    assert layer.codes_NK is codes[0] and layer.scale is codes[1]
