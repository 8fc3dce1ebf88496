"""Ranks that divide layers train as one device does, from rank 0's weights and back to them."""

from __future__ import annotations

import msgspec
import pytest
import torch
import torch.distributed as dist
from built import blocked, collect_evidence, left_by_a_step, stepped
from rank_checks import (
    CPU,
    assert_fault_is_noticed,
    assert_right,
    needs_cores,
    switch_on_and_off,
)
from runner_driver import Driver
from torch import nn

from models.parallel.tensor_parallel_plan import Cut
from sessions.model import Configuration
from sessions.sizes import size_text
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config import resolve
from workbench.runner.config.estimate import footprint
from workbench.runner.distributed import collectives, parallel, world
from workbench.runner.distributed.local_weights import LocalWeights
from workbench.runner.numerics import comparison
from workbench.runner.training.trainer import Trainer, plain_optimizer
from workbench.runner.variants.variant import Variant

SEQUENCE = {"tensor_parallel": "2", "sequence_parallel": "on"}


@pytest.fixture(scope="module")
def configuration(small) -> Configuration:
    model = {**small.model, "n_kv_heads": 2}
    return msgspec.structs.replace(small, model=model, settings={"batch": 2, "sequence": 16})


@pytest.fixture(scope="module")
def arms() -> VariantCache:
    return VariantCache()


@pytest.fixture
def divided(configuration, arms) -> Variant:
    """Return an arm of two ranks, after some steps."""
    return stepped(configuration, steps=3, arms=arms, tensor_parallel="2")


def weights_after(configuration: Configuration, *ranks: str) -> list[torch.Tensor]:
    """Return the full weights after two steps of each option, one after another."""
    arms = VariantCache()
    for option in ranks:
        # A step with its current batch, the first, and one with the second.
        arm = stepped(configuration, arms=arms, tensor_parallel=option)
        with arm.entered():
            arm.batches.go_to(2)
            arm.step()
            arm.batches.go_to(1)
    return [parameter.detach().clone() for parameter in arm.plain_weights().values()]


@needs_cores
@pytest.mark.parametrize("sequence_parallel", [pytest.param("off", marks=pytest.mark.slow), "on"])
def test_what_threads_of_collectives_free_is_not_left_behind(configuration, sequence_parallel):
    arm = stepped(configuration, tensor_parallel="2", sequence_parallel=sequence_parallel)
    with arm.entered():
        left_by_a_step(arm)  # the profiler knows only memory that was allocated while it looked
        assert {left_by_a_step(arm) for _ in range(4)} == {0}


@needs_cores
def test_arms_of_one_and_of_two_ranks_continue_from_each_other(configuration):
    expected = weights_after(configuration, "off", "off", "off")
    for ours, theirs in zip(weights_after(configuration, "off", "2", "off"), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


@needs_cores
def test_two_ranks_have_half_of_what_is_divided_and_say_so(configuration, divided):
    status, text = collect_evidence(divided)["tensor_parallel"]
    assert status == "effective", text
    assert "4 layers sharded among 2 ranks" in text
    # Each sums 2 x 16 x 32 numbers in FP32.
    assert "8 all-reduces between the ranks per step, 32.0 KiB in total" in text
    assert "equal to the last bit" in text
    peaks = divided.divided.peaks
    assert len(peaks) == 2 and all(50e6 < peak < 20e9 for peak in peaks)
    most = size_text(max(peaks))
    assert f"; highest resident set: {most} on rank {peaks.index(max(peaks))}" in text
    own, full = divided.divided.weights.own, divided.divided.weights.full_weights
    cuts = divided.divided.weights.cuts
    weights = sum(parameter.numel() for parameter in divided.plain_weights().values())
    assert full.bytes == 4 * weights
    assert own.bytes == full.bytes - sum(full.parameters[name].nbytes for name in cuts) // 2
    assert divided.ledger["parameters"] == full.bytes // 4
    estimated = footprint(divided.situation)
    assert estimated.weights == estimated.gradients == own.bytes
    undivided = footprint(stepped(configuration, arms=VariantCache()).situation)
    assert estimated.optimizer == 2 * own.bytes < undivided.optimizer
    assert estimated.activations < undivided.activations and estimated.total < undivided.total


@needs_cores
def test_under_autocast_ranks_send_half_of_the_bytes(configuration, arms):
    for more, calls in (
        ({}, "8 all-reduces between"),
        (SEQUENCE, "8 all-gathers, 8 reduce-scatters, 2 all-reduces between"),
    ):
        toggles = {"precision": "amp_bf16", "tensor_parallel": "2", **more}
        arm = stepped(configuration, steps=2, arms=arms, **toggles)
        status, text = collect_evidence(arm)["tensor_parallel"]
        assert status == "effective" and calls in text
        # Of 2 x 16 x 32 in BF16 each; in FP32 the loss, and gradients of embedding and norms.
        in_fp32 = 1 + (256 + 5) * 32 if more else 0
        assert arm.divided.traffic.bytes == (16 if more else 8) * 2048 + 4 * in_fp32


@needs_cores
def test_the_forward_pass_is_divided_too(configuration, arms):
    arm = stepped(configuration, "forward", steps=2, arms=arms, tensor_parallel="2")
    status, text = collect_evidence(arm)["tensor_parallel"]
    assert status == "effective" and "4 all-reduces between the ranks per step" in text
    assert_right(arm)


def keep_own_outputs(monkeypatch) -> None:
    """Let rank 0 continue with its own part of the layers' outputs."""

    def forward(ctx, y, axis):
        torch.ops.workbench.sum_over_ranks(y, axis)
        return y.clone()

    monkeypatch.setattr(collectives._Leave, "forward", staticmethod(forward))


def keep_own_gradients(monkeypatch) -> None:
    """Let rank 0 continue with its own part of the gradients of the layers' inputs."""

    def backward(ctx, gradient):
        torch.ops.workbench.sum_over_ranks(gradient, ctx.axis)
        return gradient, None

    monkeypatch.setattr(collectives._Enter, "backward", staticmethod(backward))


def load_the_same_columns(monkeypatch) -> None:
    """Let rank 0 load the columns that rank 1 has."""
    shard = Cut.shard
    monkeypatch.setattr(Cut, "shard", lambda self, full, _, ranks: shard(self, full, 1, ranks))
    monkeypatch.setattr(LocalWeights, "is_current", lambda self, full_optimizer: False)


def store_zeros(monkeypatch) -> None:
    """Store zeros instead of the layers that ranks divide."""
    write_back = Cut.write_back

    def write_zeros(self, share, full, rank, ranks):
        write_back(self, torch.zeros_like(share), full, rank, ranks)

    monkeypatch.setattr(Cut, "write_back", write_zeros)


FAULTS = [keep_own_outputs, keep_own_gradients, load_the_same_columns, store_zeros]


@pytest.mark.sample(2)
@needs_cores
@pytest.mark.parametrize("plant", [None, *FAULTS])
def test_the_check_of_numbers_notices_a_fault_of_a_rank(divided, plant, monkeypatch):
    assert_fault_is_noticed(divided, plant, monkeypatch)


@needs_cores
def test_replicated_weights_that_diverge_are_no_effect(configuration, monkeypatch):
    arm = stepped(configuration, steps=2, arms=VariantCache(), tensor_parallel="2")
    keep_own_gradients(monkeypatch)  # so that the norms diverge
    with arm.entered():
        for _ in range(2):
            arm.step()
    status, text = collect_evidence(arm)["tensor_parallel"]
    assert status == "no effect" and "ranks differ in" in text


@needs_cores
def test_each_rank_has_its_tokens_of_the_stream_between_divided_layers(configuration, arms):
    arm = stepped(configuration, steps=3, arms=arms, **SEQUENCE)
    status, text = collect_evidence(arm)["sequence_parallel"]
    assert status == "effective", text
    assert "this rank has 8 of 16 tokens" in text
    # Each of 4 layers, both ways; the loss, and the gradients of what every rank has.
    assert "8 all-gathers, 8 reduce-scatters, 2 all-reduces between the ranks per step" in text
    assert_right(arm, "tensor_parallel")


@needs_cores
def test_ranks_do_not_diverge_by_roundings_of_replicated_layers(configuration, monkeypatch):
    configuration = msgspec.structs.replace(configuration, family="adaattn", model={})
    arm = stepped(configuration, arms=VariantCache(), tensor_parallel="2")
    finish = arm.trainer.after_backward

    def rounded() -> None:
        for parameter in arm.model.parameters():
            parameter.grad.mul_(1 + 1e-6)  # on rank 0 alone
        finish()

    monkeypatch.setattr(arm.trainer, "after_backward", rounded)
    with arm.entered():
        arm.step()
    status, text = collect_evidence(arm)["tensor_parallel"]
    assert status == "effective" and "1 broadcast between the ranks per step" in text, text


@needs_cores
def test_gradients_of_norms_and_head_that_are_not_summed_are_seen(configuration, monkeypatch):
    arm = stepped(configuration, steps=2, arms=VariantCache(), **SEQUENCE)
    summed = collectives.sum_all

    def sum_copies(gradients):
        summed([gradient.clone() for gradient in gradients])

    monkeypatch.setattr(parallel, "sum_all", sum_copies)
    with arm.entered():
        arm.step()
    status, text = collect_evidence(arm)["tensor_parallel"]
    assert status == "no effect" and "ranks differ in 6 parameters" in text


@needs_cores
def test_tokens_in_another_order_are_seen(configuration, arms, monkeypatch):
    arm = stepped(configuration, steps=2, arms=arms, **SEQUENCE)
    backward = collectives._Tokens.backward

    def turned(ctx, gradient):
        return backward(ctx, gradient.flip(1) if ctx.back == "gather_tokens" else gradient)

    monkeypatch.setattr(collectives._Tokens, "backward", staticmethod(turned))
    checked = comparison.check(arm, arm.situation)
    assert checked.ok is False, checked.text


def test_without_a_group_a_rank_computes_tensors_of_the_same_shapes():
    along = collectives.AlongSequence(2)
    x = torch.randn(2, 6, 3, requires_grad=True)
    own = along.split(x)
    assert own.shape == (2, 3, 3)
    for back in (along.enter(own), along.join(own)):
        assert back.shape == x.shape
    along.leave(x).sum().backward()
    assert x.grad.shape == x.shape


@needs_cores
def test_ranks_that_do_not_communicate_are_no_effect(divided, monkeypatch):
    monkeypatch.setattr(divided.divided, "traffic", collectives.Traffic())
    monkeypatch.setattr(divided, "evidence", None)
    assert collect_evidence(divided)["tensor_parallel"][0] == "no effect"


@needs_cores
def test_an_infinite_gradient_of_another_rank_skips_the_update_here_too(divided, monkeypatch):
    def infinite_elsewhere(flag, *_, **__):
        flag.fill_(1.0)

    weight = nn.Parameter(torch.ones(3))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    trainer = Trainer(plain_optimizer([weight]), scaler)
    trainer.update(weight.sum())
    moved = weight.detach().clone()
    assert not torch.equal(moved, torch.ones(3))
    monkeypatch.setattr(dist, "all_reduce", infinite_elsewhere)
    trainer.sync_found_inf = divided.divided._sync_found_inf
    trainer.update(weight.sum())
    assert torch.equal(weight, moved) and scaler.get_scale() == 4.0


@pytest.mark.slow
@needs_cores
def test_a_step_that_fails_on_rank_0_does_not_leave_the_others_waiting(configuration, monkeypatch):
    arms = VariantCache()
    arm = stepped(configuration, arms=arms, tensor_parallel="2")

    def fails(x):
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"), arm.entered(), monkeypatch.context() as m:
        m.setattr(collectives._Leave, "forward", staticmethod(lambda ctx, y, dimension: fails(y)))
        arm.step()
    assert world.current() is None
    again = stepped(configuration, arms=arms, steps=2, tensor_parallel="2")
    assert collect_evidence(again)["tensor_parallel"][0] == "effective"


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("moe", {"num_shared_experts": 1}),
        ("mamba2", {"n_groups": 2}),
        ("mamba2", {}),
        ("adaattn", {}),
        ("mahia", {"use_moe": True}),
        ("hydra", {"ccgqa": True, "n_kv_heads": 4, "mixture_of_recursions": True}),
    ],
)
def test_every_family_trains_right_divided(configuration, family, model):
    configuration = msgspec.structs.replace(configuration, family=family, model=model)
    arm = stepped(configuration, steps=2, arms=VariantCache(), tensor_parallel="2")
    assert_right(arm, "tensor_parallel")


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    "toggles",
    [
        {"checkpointing": "full"},
        {"checkpointing": "operators"},
        {"precision": "amp_bf16"},
        {"precision": "bf16"},
        {"adamw": "fused"},
        {"fused_loss": "chunked"},
        {"mixture_of_depths": "on"},
        {"compile": "default"},
        {"compile": "default", "compile_scope": "blocks"},
        {"compile": "default", "checkpointing": "full"},
        {"compile": "default", "sequence_parallel": "on"},
        {"checkpointing": "full", "sequence_parallel": "on"},
        {"precision": "amp_bf16", "sequence_parallel": "on"},
    ],
    ids=str,
)
def test_other_options_go_with_it(configuration, toggles):
    arm = stepped(configuration, steps=3, arms=VariantCache(), tensor_parallel="2", **toggles)
    evidence = collect_evidence(arm)
    statuses = {status for name, (status, _) in evidence.items() if name in toggles}
    assert statuses <= {"effective"}, evidence
    assert_right(arm, "tensor_parallel")


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    ("family", "model", "toggles"),
    [
        ("mamba2", {"n_groups": 2}, {}),
        ("mamba2", {}, {"fused_add_norm": "torch"}),
        ("hydra", {}, {"fused_add_norm": "torch"}),
        ("mamba2", {}, {"precision": "amp_bf16"}),
        ("hydra", {"ccgqa": True, "n_kv_heads": 4}, {}),
    ],
)
def test_every_stream_that_can_be_divided_trains_right(configuration, family, model, toggles):
    configuration = msgspec.structs.replace(configuration, family=family, model=model)
    arm = stepped(configuration, steps=2, arms=VariantCache(), **SEQUENCE, **toggles)
    assert_right(arm, "sequence_parallel")


@pytest.mark.slow
@needs_cores
def test_the_runner_divides_layers_when_the_toggle_is_switched_while_it_runs(
    configuration, runner: Driver
):
    evidence = switch_on_and_off(runner, configuration, "tensor_parallel", "2")
    assert evidence.status == "effective", evidence.text


@pytest.mark.parametrize(
    ("workload", "toggles", "reason", "change"),
    [
        ("decode", {}, "keys, values and states in a cache", {"workload": "train"}),
        ("train", {"data_parallel": "2"}, "combined with data parallelism it needs 4 CPU cores",
         {"data_parallel": "off"}),
        ("train", {"adamw": "8bit_torchao"}, "8-bit optimizer states", {"adamw": "fused"}),
        ("train", {"compile": "reduce-overhead"}, "captures CUDA graphs", {"compile": "default"}),
        ("train", {"compile": "max-autotune"}, "pick different kernels", {"compile": "default"}),
        ("train", {"kernel_tuning": "on"}, "pick different kernels", {"kernel_tuning": "cached"}),
        ("forward", {"quantization": "int8_weight_only"}, "cannot be", {"quantization": "none"}),
    ],
)  # fmt: skip
def test_what_does_not_go_together_says_why(
    configuration, two_cores, workload, toggles, reason, change
):
    block = blocked(configuration, workload, **toggles)["tensor_parallel"]["2"]
    assert reason in block.reason and block.fix and block.set == change


def test_kinds_that_exceed_the_cores_together_name_the_other(configuration, two_cores):
    block = blocked(configuration, tensor_parallel="2")["data_parallel"]["2"]
    assert "combined with tensor parallelism it needs 4 CPU cores" in block.reason
    assert block.set == {"tensor_parallel": "off"}


@pytest.mark.parametrize(
    ("family", "model", "ranks", "reason"),
    [
        ("hydra", {}, "4", "the number of key/value heads, 2, is not a multiple"),
        ("mamba2", {"n_groups": 2}, "4", "the number of groups of a mixer's heads, 2, is not a"),
        ("mamba2", {"head_dim": 128}, "4", "the number of heads of a mixer, 2, is not a multiple"),
        ("moe", {"gating": "noisy_topk"}, "2", "different noise"),
    ],
)
def test_models_that_cannot_be_divided_say_why(
    configuration, many_cores, family, model, ranks, reason
):
    configuration = msgspec.structs.replace(configuration, family=family, model=model)
    assert reason in blocked(configuration)["tensor_parallel"][ranks].reason


@pytest.mark.parametrize(
    ("workload", "toggles"),
    [
        ("train", {"checkpointing": "full"}),
        ("train", {"mixture_of_depths": "on"}),
        ("forward", {"precision": "amp_bf16"}),
    ],
)
def test_the_estimate_falls_with_divided_layers_and_with_a_divided_stream(
    configuration, two_cores, workload, toggles
):
    model = {**configuration.model, "dim": 128}  # with blocks that take more than the loss

    def estimate(**more: str):
        variation = msgspec.structs.replace(
            configuration, model=model, workload=workload, toggles={**toggles, **more}
        )
        return footprint(resolve.resolve(variation, CPU))

    undivided, layers, stream = estimate(), estimate(tensor_parallel="2"), estimate(**SEQUENCE)
    assert layers.activations < undivided.activations and layers.weights < undivided.weights
    if workload == "train" and "checkpointing" in toggles:
        assert stream.activations < layers.activations
    else:  # there is no such stream, or none that is kept
        assert stream == layers


@pytest.mark.parametrize(
    ("family", "model", "toggles", "reason"),
    [
        ("hydra", {}, {"tensor_parallel": "off"}, "needs tensor parallelism, which is off"),
        ("hydra", {"mixture_of_depths": True}, {}, "MixtureOfDepths needs the full sequence"),
        ("moe", {}, {}, "Block needs the full sequence"),
        ("adaattn", {}, {}, "all heads are measured and adapted jointly"),
        ("mahia", {}, {}, "attention with Fourier gates"),
    ],
)
def test_streams_that_cannot_be_divided_say_why(
    configuration, two_cores, family, model, toggles, reason
):
    configuration = msgspec.structs.replace(configuration, family=family, model=model)
    toggles = {"tensor_parallel": "2", **toggles}
    block = blocked(configuration, **toggles)["sequence_parallel"]["on"]
    assert reason in block.reason and block.fix
    assert (block.set == {"tensor_parallel": "2"}) is (toggles["tensor_parallel"] == "off")


def test_a_sequence_that_ranks_cannot_divide_is_blocked(configuration, two_cores):
    configuration = msgspec.structs.replace(configuration, settings={"batch": 1, "sequence": 15})
    block = blocked(configuration, tensor_parallel="2")["sequence_parallel"]["on"]
    assert block.reason == "a sequence of 15 cannot be divided among 2 ranks"
