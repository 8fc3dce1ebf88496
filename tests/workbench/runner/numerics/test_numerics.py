"""The check of an arm's results: what passes, what is red, and what it is measured by."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from built_arms import configuration, stepped
from hypothesis import given
from hypothesis import strategies as st

from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.failures import RankError, explain
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.interfaces import Trait
from workbench.runner.numerics import comparison, distances, training_curve
from workbench.runner.numerics import reference as plain

CPU = torch.device("cpu")
DECODES = ("decode", "generate")


@pytest.fixture
def build(small):
    arms = VariantCache()

    def build(workload="forward", **toggles):
        settings = small.settings | ({"new_tokens": 4} if workload in DECODES else {})
        configuration = msgspec.structs.replace(
            small, workload=workload, settings=settings, toggles=toggles
        )
        situation = resolve(configuration, CPU)
        return arms.get(situation, PhaseTracker(lambda phase: None)), situation

    return build


@pytest.mark.parametrize("workload", ["forward", "train", "prefill", *DECODES])
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "bf16"])
def test_every_workload_is_right_in_every_precision(build, workload, precision):
    result = comparison.check(*build(workload, precision=precision))
    assert result.ok, result.text
    assert result.reference == "float64"
    assert result.relative_error < (1e-6 if precision == "fp32" else 0.02)
    assert result.cosine > 0.999 and result.mse > 0
    assert (result.loss_difference is None) == (workload != "train")


@pytest.mark.parametrize(
    "toggles", [{"attention": "chunked"}, {"checkpointing": "full"}, {"rope_cache": "shared"}]
)
def test_an_optimization_that_changes_no_numbers_passes(build, toggles):
    workload = "train" if "checkpointing" in toggles else "forward"
    result = comparison.check(*build(workload, **toggles))
    assert result.ok, result.text


@pytest.mark.parametrize(
    ("family", "fields"), [("mamba2", {}), ("hydra", {"ccgqa": True, "mixture_of_depths": True})]
)
def test_a_recurrent_state_that_has_gone_on_is_checked_where_the_prompt_ends(family, fields):
    requested = configuration(family, "decode", model=fields)
    arm = stepped(requested)
    result = comparison.check(arm, resolve(requested, CPU))
    assert result.ok, result.text


@pytest.mark.parametrize("workload", ["forward", "train", "prefill", *DECODES])
def test_an_error_of_a_few_roundings_of_fp32_is_red_in_fp32_and_fits_bf16(build, workload):
    for precision, fits in (("fp32", False), ("amp_bf16", True)):
        arm, situation = build(workload, precision=precision)
        arm.model.register_forward_hook(lambda module, inputs, output: output * (1 + 1e-5))
        assert comparison.check(arm, situation).ok is fits


def test_a_wrong_loss_is_red_though_the_outputs_are_right(build):
    arm, situation = build("train")
    compute = arm.compute
    arm.compute = lambda *batch: compute(*batch) * 1.01
    result = comparison.check(arm, situation)
    assert not result.ok and "loss differs by +0.0" in result.text
    assert result.relative_error < result.tolerance


def test_outputs_that_are_not_finite_are_red(build):
    arm, situation = build()
    arm.model.register_forward_hook(lambda module, inputs, output: output / 0)
    result = comparison.check(arm, situation)
    assert (result.ok, result.text) == (False, "some outputs are not finite")
    assert result.relative_error is None


def test_a_reference_that_does_not_fit_in_fp64_is_computed_in_fp32(build, monkeypatch):
    monkeypatch.setattr(plain.Plain, "_fits", lambda *_: False)
    result = comparison.check(*build())
    assert result.ok and result.reference == "float32"


def test_outputs_of_another_shape_are_wrong_and_not_unchecked(build):
    arm, situation = build()
    arm.model.register_forward_hook(lambda module, inputs, output: output[:, 1:])
    result = comparison.check(arm, situation)
    assert (result.ok, result.reference) == (False, "float64")
    assert result.text.startswith("outputs have shape (1, 15, ") and "expected" in result.text


def test_an_arm_that_crashes_in_the_check_is_not_checked(build):
    arm, situation = build()

    def step():
        raise IndexError("index 7 is out of range")

    arm.step = step
    result = comparison.check(arm, situation)
    assert result.ok is None
    assert result.text == "not checked: IndexError in the model: index 7 is out of range"


def test_an_arm_that_lacks_memory_in_the_check_is_not_checked(build):
    arm, situation = build()

    def step():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    arm.step = step
    result = comparison.check(arm, situation)
    assert result.ok is None and result.text.startswith("not checked: Out of memory")


def test_a_model_that_knows_no_fp64_is_checked_in_fp32(build, monkeypatch):
    given = plain.Plain._outputs_of

    def choosy(self, model, *more):
        if next(model.parameters()).dtype == torch.float64:
            raise TypeError("FP64 is not known here")
        return given(self, model, *more)

    monkeypatch.setattr(plain.Plain, "_outputs_of", choosy)
    result = comparison.check(*build())
    assert result.ok and result.reference == "float32"


def test_what_has_no_reference_is_not_checked(build, monkeypatch):
    def broken(*_):
        raise TypeError("no plain model")

    monkeypatch.setattr(plain.Plain, "model", broken)
    result = comparison.check(*build())
    assert (result.ok, result.reference) == (None, "") and "no plain model" in result.text


def test_what_cannot_be_checked_says_why(build, monkeypatch):
    def no_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(plain.Plain, "model", no_memory)
    result = comparison.check(*build())
    assert result.ok is None and result.reference == ""
    assert result.text.startswith("not checked: Out of memory")


SHORT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("error", [SHORT, RankError("rank 1 ended", 1, explain(SHORT))])
@pytest.mark.parametrize("lacking", [(torch.float64,), (torch.float64, torch.float32)])
def test_a_loss_curve_that_lacks_memory_is_followed_in_fp32_or_leaves_the_outputs_checked(
    build, monkeypatch, lacking, error
):
    course, dtypes = training_curve._train_plain, []

    def scarce(arm, dtype, *rest, **named):
        dtypes.append(dtype)
        if dtype in lacking:
            raise error
        return course(arm, dtype, *rest, **named)

    monkeypatch.setattr(training_curve, "_train_plain", scarce)
    arm, situation = build("train")
    step_some(arm)
    result = comparison.check(arm, situation)
    assert result.ok and result.reference == "float64", result.text
    assert dtypes[:2] == [torch.float64, torch.float32]
    followed = torch.float32 not in lacking
    assert (result.curve_steps == training_curve.STEPS) is followed
    assert ("loss curve not checked: " in result.text) is not followed
    assert ("Out of memory: 2.00 GiB more was needed" in result.text) is not followed


def test_what_a_curve_is_compared_with_keeps_no_block_s_activations(build, monkeypatch):
    arm, _ = build("train")
    no_ties = training_curve.routing_ties.NONE
    (model,), *_ = training_curve.copy_of(arm, torch.float32, no_ties, fresh=True)
    model.loss(*arm.batches.inputs, *arm.batches.targets)
    assert model.checkpointed_blocks == len(model.blocks)


@pytest.mark.parametrize(
    "toggles",
    [
        {},
        {"adamw": "fused"},
        {"adamw": "foreach", "precision": "amp_bf16"},
        {"precision": "bf16", "checkpointing": "full"},
    ],
)
def test_a_training_arm_is_followed_over_some_steps(build, toggles):
    arm, situation = build("train", **toggles)
    step_some(arm)
    result = comparison.check(arm, situation)
    assert result.ok, result.text
    assert result.curve_steps == training_curve.STEPS and 0 < result.curve_difference < 0.01
    assert "over 8 training steps" in result.text


def step_some(arm, count=2):
    with arm.entered():
        for _ in range(count):
            arm.step()


def change_rate(arm):
    for group in arm.trainer.optimizer.param_groups:
        group["lr"] *= 1.5


def forget_moments(arm):
    step = arm.step

    def forgetful():
        for state in arm.trainer.optimizer.state.values():
            state["exp_avg"].zero_()
        return step()

    arm.step = forgetful


def keep_gradients(arm):
    arm.trainer.optimizer.zero_grad = lambda set_to_none=True: None


@pytest.mark.sample(1)
@pytest.mark.parametrize("plant", [change_rate, forget_moments, keep_gradients])
def test_a_wrong_update_is_red_though_outputs_and_loss_are_right(build, plant):
    arm, situation = build("train")
    step_some(arm)
    plant(arm)
    result = comparison.check(arm, situation)
    assert not result.ok and result.curve_difference > 1e-5
    assert result.relative_error < result.tolerance and abs(result.loss_difference) < 1e-5


def update_nothing(arm):
    arm.trainer.optimizer.step = lambda *_: None


def turn_the_sign(arm):
    for group in arm.trainer.optimizer.param_groups:
        group["lr"] *= -1


def step_ten_times_as_far(arm):
    for group in arm.trainer.optimizer.param_groups:
        group["lr"] *= 10


def skip_a_group(arm):
    (group,) = groups = arm.trainer.optimizer.param_groups
    spared = [parameter for parameter in group["params"] if parameter.dim() == 1]
    group["params"] = [parameter for parameter in group["params"] if parameter.dim() > 1]
    groups.append({**group, "params": spared, "lr": 0.0})


@pytest.mark.parametrize(
    ("plant", "share"),
    [
        (update_nothing, (0.0, 0.0)),
        (turn_the_sign, (-1.1, -0.9)),
        (step_ten_times_as_far, (5.0, 10.0)),
        (skip_a_group, (0.0, 0.0)),
    ],
)
def test_a_wrong_update_is_red_in_mixed_precision_too(build, plant, share):
    arm, _ = build("train", precision="amp_bf16")
    step_some(arm)
    plant(arm)
    curve = training_curve.check(arm, torch.float64)
    worst = max(curve.updates.projections, key=lambda projection: abs(projection.value - 1))
    assert not curve.ok and not worst.ok and share[0] <= worst.value <= share[1]
    assert f"{worst.value:.2f} x the" in curve.text


def test_losses_may_be_off_by_what_the_precision_makes_them_and_not_by_more():
    reference = [5.5 - 0.01 * index for index in range(8)]
    plain = [loss + 0.001 * (-1) ** index for index, loss in enumerate(reference)]
    assert 0.004 < training_curve.bound(plain, reference) < 0.007
    assert training_curve.bound(reference, reference) == training_curve.rounding(5.5) < 1e-5


def test_large_outputs_that_are_no_logits_do_not_hide_a_wrong_loss():
    assert training_curve.rounding(0.1, 1e9) == training_curve.rounding(0.1, 1e3) < 0.1 * 2e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.float8_e4m3fn])
def test_the_largest_finite_output_of_all_is_known_in_every_dtype(dtype):
    masked = torch.tensor([1.0, -math.inf])
    outputs = plain.Outputs.of((masked, torch.tensor([0.5, -7.0]).to(dtype)), None)
    assert outputs.largest == 7.0


class EightBits(torch.optim.AdamW):
    """Stands for the libraries' optimizers: moments in few bits, under names of their own."""

    @torch.no_grad()
    def step(self):
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state.pop(f"{name}_8")
        super().step()
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                moment = state.pop(name)
                scale = moment.abs().max() / 448 + 1e-30
                rounded = (moment / scale).to(torch.float8_e4m3fn)
                state[f"{name}_8"] = rounded.to(moment.dtype) * scale


def keep_eight_bits(arm, scale=1.0):
    plain = arm.trainer.optimizer
    arm.trainer.optimizer = EightBits(
        [{**group, "lr": scale * group["lr"]} for group in plain.param_groups]
    )
    return arm.trainer.optimizer


def test_moments_in_8_bits_are_followed_too_from_a_beginning_and_put_back(build):
    arm, situation = build("train")
    optimizer = keep_eight_bits(arm)
    step_some(arm)
    before = {
        id(state): {name: tensor.clone() for name, tensor in state.items()}
        for state in optimizer.state.values()
    }
    result = comparison.check(arm, situation)
    assert result.ok, result.text
    assert result.curve_steps == training_curve.STEPS and result.curve_difference > 1e-7
    assert [id(state) for state in optimizer.state.values()] == list(before)
    for state in optimizer.state.values():
        for name, tensor in state.items():
            assert torch.equal(tensor, before[id(state)][name])


def test_a_wrong_update_is_red_with_moments_in_8_bits_too(build):
    arm, situation = build("train")
    keep_eight_bits(arm, 1.5)
    step_some(arm)
    assert not comparison.check(arm, situation).ok


def test_a_curve_that_is_not_checked_says_why(build, monkeypatch):
    result = comparison.check(*build())
    assert result.curve_steps is None and "curve" not in result.text
    monkeypatch.setattr(comparison, "free_bytes", lambda situation: 10**6)
    result = comparison.check(*build("train"))
    assert result.ok and result.curve_steps is None
    assert "loss curve not checked: the reference needs 1.68 MiB" in result.text


def test_a_curve_that_does_not_fit_in_fp64_is_followed_in_fp32(build, monkeypatch):
    arm, situation = build("train")
    room = (
        2 * training_curve.bytes_needed(arm.plain_weights(), arm.weights_dtype, torch.float32) + 2
    )
    monkeypatch.setattr(plain.Plain, "_fits", lambda *_: True)
    monkeypatch.setattr(comparison, "free_bytes", lambda situation: room)
    result = comparison.check(arm, situation)
    assert result.ok and (result.reference, result.curve_steps) == ("float64", training_curve.STEPS)


def test_a_captured_step_counts_as_checked_only_with_its_optimizer(build, monkeypatch):
    arm, situation = build("train")
    has = type(situation).has
    captured = lambda self, *traits: Trait.CAPTURED in traits or has(self, *traits)  # noqa: E731
    monkeypatch.setattr(type(situation), "has", captured)
    result = comparison.check(arm, situation)
    assert result.ok and result.text.endswith("replayed the captured graph, with its optimizer")
    monkeypatch.setattr(comparison, "free_bytes", lambda situation: 10**6)
    result = comparison.check(arm, situation)
    assert result.ok is None
    assert result.text.startswith("not checked: the captured graph and the optimizer in it; ")


@pytest.mark.parametrize("adamw", ["loop", "fused"])
def test_checking_changes_neither_weights_nor_flags_nor_moments(build, adamw):
    arm, situation = build("train", precision="amp_bf16", adamw=adamw)
    step_some(arm)
    states = arm.trainer.optimizer.state
    moments = [tensor.clone() for state in states.values() for tensor in state.values()]
    before = {name: weight.clone() for name, weight in arm.model.weights().items()}
    comparison.check(arm, situation)
    now = [tensor for state in states.values() for tensor in state.values()]
    assert all(torch.equal(state, before) for state, before in zip(now, moments, strict=True))
    for name, weight in arm.model.weights().items():
        assert torch.equal(weight, before[name])
        assert weight.grad is None
    assert not torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()


@given(st.integers(1, 40), st.floats(0.001, 10), st.integers(0, 99))
def test_distances_are_those_of_their_definitions(count, size, seed):
    generator = torch.Generator().manual_seed(seed)
    reference = size * torch.randn(count, generator=generator, dtype=torch.float64)
    values = reference + 0.1 * torch.randn(count, generator=generator, dtype=torch.float64)
    measured = distances.distance(values, reference)
    difference = values - reference
    assert measured.max_error == float(difference.abs().max())
    expected = [
        float(difference.norm() / reference.norm()),
        float((difference**2).mean()),
        float(torch.nn.functional.cosine_similarity(values, reference, dim=0, eps=0)),
    ]
    assert [measured.relative_error, measured.mse, measured.cosine] == pytest.approx(
        expected, rel=1e-9
    )


def test_infinities_that_both_have_dilute_no_error():
    values, reference = torch.tensor([1.5, 2.0]), torch.tensor([1.0, 2.0])
    mask = torch.full((9,), -torch.inf)
    alone = distances.distance(values, reference)
    assert distances.distance(torch.cat([values, mask]), torch.cat([reference, mask])) == alone


def test_distances_are_taken_in_pieces_without_a_difference(monkeypatch):
    values, reference = torch.randn(2, 100, dtype=torch.float64).unbind()
    undivided = distances.distance(values, reference)
    monkeypatch.setattr(distances, "_PIECE", 7)
    pieces = distances.distance(values, reference)
    assert pieces.max_error == undivided.max_error
    assert pieces.relative_error == pytest.approx(undivided.relative_error, rel=1e-12)
