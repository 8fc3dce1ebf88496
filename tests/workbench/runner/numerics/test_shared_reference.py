"""Checks that share a reference: the same results as without, in less time, and no wrong pass."""

from __future__ import annotations

import gc
import hashlib

import msgspec
import pytest
import torch
from built_arms import configuration, stepped

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.numerics import comparison, shared_reference, training_curve
from workbench.runner.numerics.routing_ties import NUDGED_RUNS
from workbench.runner.numerics.shared_reference import SharedReference
from workbench.runner.variants.variant import Variant

CPU = torch.device("cpu")
OPTIONS = ({}, {"adamw": "fused"}, {"checkpointing": "full"}, {"adamw": "foreach"})


@pytest.fixture
def runs(monkeypatch) -> list[torch.dtype | None]:
    """Return the dtypes of the plain models that are trained, which a check adds to."""
    train, dtypes = training_curve._train_plain, []

    def counted(variant, dtype, between, **options):
        dtypes.append(dtype)
        return train(variant, dtype, between, **options)

    monkeypatch.setattr(training_curve, "_train_plain", counted)
    return dtypes


def request(precision: str = "amp_bf16", **toggles: str) -> Configuration:
    toggles = {"precision": precision, **toggles}
    return configuration("mamba2", "train", batch=2, model={"n_layers": 2}, toggles=toggles)


def check(variant: Variant, shared: SharedReference | None = None):
    return comparison.check(variant, variant.situation, shared=shared)


def train_on(variant: Variant, steps: int = 3) -> None:
    with variant.entered():
        for _ in range(steps):
            variant.ready()
            variant.step()


@pytest.mark.sample(1)
@pytest.mark.parametrize("precision", ["amp_bf16", "fp32", "bf16"])
def test_a_check_with_stored_runs_gives_the_result_of_a_complete_check(precision, runs):
    arms, shared = VariantCache(), SharedReference()
    for number, toggles in enumerate(OPTIONS):
        variant = stepped(request(precision, **toggles), arms)
        train_on(variant)
        runs.clear()
        result = check(variant, shared)
        assert result.ok is not False, result.text  # in BF16 some updates are too small to tell
        assert bool(runs) == (number == 0)
        runs.clear()
        variant.batches.go_to(1)
        complete = check(variant)  # from the weights that the shared check has left
        assert runs and result == complete


def test_weights_moments_and_counts_are_those_of_the_first_check(runs):
    arms, shared = VariantCache(), SharedReference()
    first = stepped(request(adamw="loop"), arms)
    check(first, shared)
    state = first.trainer.optimizer.state
    before = [x.clone() for p, s in state.items() for x in (p.detach(), *s.values())]
    second = stepped(request(adamw="fused"), arms)
    train_on(second)
    train_on(first)
    changed = [x for p, s in state.items() for x in (p, *s.values())]
    assert not all(map(torch.equal, before, changed))
    advances = second.batches.advances
    check(second, shared)
    after = [x for p, s in state.items() for x in (p.detach(), *s.values())]
    assert all(map(torch.equal, before, after)) and second.batches.advances == advances
    steps = {float(s["step"]) for s in second.trainer.optimizer.state.values()}
    assert steps == {float(s["step"]) for s in state.values()}


def rescale(variant: Variant) -> None:
    step = variant.trainer.optimizer.step
    variant.trainer.optimizer.step = lambda: [step() for _ in range(2)]


def scale_outputs(variant: Variant) -> None:
    variant.model.register_forward_hook(lambda module, inputs, output: output * 1.05)


def scale_layer(variant: Variant) -> None:
    norm = variant.model.blocks[1].norm
    norm.register_forward_hook(lambda module, inputs, output: output * 1.08)


def freeze(variant: Variant) -> None:
    variant.trainer.optimizer.step = lambda: None


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", [rescale, scale_outputs, scale_layer, freeze])
def test_a_wrong_variant_does_not_pass_with_the_stored_results_of_a_right_one(fault, runs):
    arms, shared = VariantCache(), SharedReference()
    assert check(stepped(request(), arms), shared).ok
    runs.clear()
    wrong = stepped(request(adamw="fused"), arms)
    fault(wrong)
    assert check(wrong, shared).ok is False
    from_other_weights = runs[NUDGED_RUNS:]  # after the runs that look for routers' ties
    assert None not in runs[:NUDGED_RUNS] and len(from_other_weights) in (0, 2)


def test_stored_results_of_a_wrong_variant_do_not_make_a_right_one_wrong(runs):
    arms, shared = VariantCache(), SharedReference()
    wrong = stepped(request(adamw="fused"), arms)
    scale_outputs(wrong)
    assert check(wrong, shared).ok is False
    assert check(stepped(request(), arms), shared).ok


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"batch": 1, "sequence": 16}},
        {"toggles": {"precision": "fp32"}},
        {"toggles": {"precision": "bf16"}},
        {"seed": 1},
        {"model": {"n_layers": 3}},
    ],
    ids=str,
)
def test_another_configuration_shares_nothing(change, runs):
    arms, shared = VariantCache(), SharedReference()
    check(stepped(request(), arms), shared)
    runs.clear()
    other = msgspec.structs.replace(request(), **change)
    check(stepped(other, arms), shared)
    assert {torch.float64, None} <= set(runs)


def test_other_buffers_or_batches_share_nothing(runs):
    arms, shared = VariantCache(), SharedReference()
    variant = stepped(request(), arms)
    check(variant, shared)
    before = shared_reference.digest(variant)
    assert before == shared_reference.digest(stepped(request(adamw="fused"), arms))
    variant.model.register_buffer("added", torch.zeros(3))
    variant.model.carried = lambda: {"added": variant.model.added}
    with_buffer = shared_reference.digest(variant)
    variant.model.added += 1
    digests = {before, with_buffer, shared_reference.digest(variant)}
    (_, ring), *_ = variant.batches._buffers
    ring[2] += 1
    assert len(digests | {shared_reference.digest(variant)}) == 4


def test_without_room_on_the_host_each_check_is_complete_and_changes_no_weights(monkeypatch, runs):
    monkeypatch.setattr(shared_reference, "has_host_room", lambda copied: False)
    arms, shared = VariantCache(), SharedReference()
    variant = stepped(request(), arms)
    check(variant, shared)
    train_on(variant)
    before = [p.detach().clone() for p in variant.model.parameters()]
    runs.clear()
    assert check(variant, shared).ok and len(runs) >= 2
    assert all(map(torch.equal, before, variant.model.parameters()))


def test_weights_that_are_not_finite_are_not_the_start_of_later_checks():
    arms, shared = VariantCache(), SharedReference()
    variant = stepped(request(), arms)
    parameter = next(variant.model.parameters())
    before = parameter.detach().clone()
    with torch.no_grad():
        parameter.fill_(torch.nan)
    assert not check(variant, shared).ok
    with torch.no_grad():
        parameter.copy_(before)
    assert check(variant, shared).ok


def test_results_are_freed_with_the_weights():
    arms, shared = VariantCache(), SharedReference()
    check(stepped(request(), arms), shared)
    assert len(shared._starts) == 1
    arms.forget_all()
    gc.collect()
    assert not shared._starts


def test_inputs_of_every_layout_and_dtype_have_a_digest_that_one_number_changes():
    dense = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    views = [
        lambda x: x, lambda x: x.to_sparse(), lambda x: x.t(), lambda x: x.expand(3, 2, 2),
        lambda x: torch.nested.nested_tensor([x, x[:1]]), lambda x: torch.complex(x, x).conj(),
        lambda x: torch.complex(x, x).conj().imag, lambda x: x > 1.5, lambda x: x.bfloat16(),
        lambda x: x.to(torch.float8_e4m3fn), lambda x: x[1, 1], lambda x: x.long(),
    ]  # fmt: skip
    changed = dense.clone()
    changed[1, 1] = -1.0
    for number, view in enumerate(views):
        digests = [hashlib.sha256() for _ in range(3)]
        for result, numbers in zip(digests, (dense, dense.clone(), changed), strict=True):
            shared_reference._add(result, [view(numbers)])
        first, equal, other = (result.digest() for result in digests)
        assert first == equal != other, number
