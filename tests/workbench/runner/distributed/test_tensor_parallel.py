"""Ranks that divide layers train as one device does, from rank 0's weights and back to them."""

from __future__ import annotations

import os

import msgspec
import pytest
import torch
import torch.distributed as dist
from built import blocked, collect_evidence, left_by_a_step, stepped
from runner_driver import Driver
from torch import nn

from models.parallel.tensor_parallel_plan import Cut
from sessions.model import Configuration
from sessions.sizes import size_text
from workbench import protocol
from workbench.runner.config import resolve
from workbench.runner.distributed import collectives, parallel, world
from workbench.runner.distributed.local_weights import LocalWeights
from workbench.runner.numerics import comparison
from workbench.runner.variants.training import Trainer, plain_optimizer
from workbench.runner.variants.variant import Arm, Arms

SEQUENCE = {"tensor_parallel": "2", "sequence_parallel": "on"}
needs_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks need two CPU cores"
)


@pytest.fixture(scope="module")
def asked(small) -> Configuration:
    model = {**small.model, "n_kv_heads": 2}
    return msgspec.structs.replace(small, model=model, settings={"batch": 2, "sequence": 16})


@pytest.fixture(scope="module")
def arms() -> Arms:
    return Arms()


@pytest.fixture
def divided(asked, arms) -> Arm:
    """Return an arm of two ranks, after some steps from what arms of one device have trained."""
    return stepped(asked, steps=3, arms=arms, tensor_parallel="2")


def weights_after(asked: Configuration, *ranks: str) -> list[torch.Tensor]:
    """Return the full weights after two steps of each in turn, from the same beginning."""
    arms = Arms()
    for one in ranks:
        arm = stepped(asked, arms=arms, tensor_parallel=one)  # of its current batch, the first
        with arm.entered():
            arm.batches.go_to(2)
            arm.step()
            arm.batches.go_to(1)
    return [each.detach().clone() for each in arm.plain_weights().values()]


@needs_cores
@pytest.mark.parametrize("sequence_parallel", ["off", "on"])
def test_what_threads_of_collectives_free_is_not_left_behind(asked, sequence_parallel):
    arm = stepped(asked, tensor_parallel="2", sequence_parallel=sequence_parallel)
    with arm.entered():
        left_by_a_step(arm)  # the profiler knows only memory that was allocated while it looked
        assert {left_by_a_step(arm) for _ in range(4)} == {0}


@needs_cores
def test_arms_of_one_and_of_two_ranks_go_on_from_each_other(asked):
    expected = weights_after(asked, "off", "off", "off")
    for ours, theirs in zip(weights_after(asked, "off", "2", "off"), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


@needs_cores
def test_two_ranks_have_half_of_what_is_divided_and_say_so(asked, divided):
    status, text = collect_evidence(divided)["tensor_parallel"]
    assert status == "effective", text
    assert "4 layers divided among 2 ranks" in text
    assert "8 sums over the ranks a step, 32.0 KiB in all" in text  # of 2 x 16 x 32 FP32
    assert "equal to the last bit" in text
    peaks = divided.divided.peaks
    assert len(peaks) == 2 and all(50e6 < each < 20e9 for each in peaks)
    most = size_text(max(peaks))
    assert f"; resident set {most} on rank {peaks.index(max(peaks))}, the most of all" in text
    own, full = divided.divided.weights.own, divided.divided.weights.full
    cuts = divided.divided.weights.cuts
    assert full.bytes == 4 * sum(each.numel() for each in divided.plain_weights().values())
    assert own.bytes == full.bytes - sum(full.parameters[name].nbytes for name in cuts) // 2
    assert divided.ledger["parameters"] == full.bytes // 4
    estimated = resolve.footprint(divided.situation)
    assert estimated.weights == estimated.gradients == own.bytes
    whole = resolve.footprint(stepped(asked, arms=Arms()).situation)
    assert estimated.optimizer == 2 * own.bytes < whole.optimizer
    assert estimated.activations < whole.activations and estimated.total < whole.total


@needs_cores
def test_under_autocast_ranks_tell_each_other_half_of_the_bytes(asked, arms):
    for more, text in (({}, "8 sums over"), (SEQUENCE, "10 gathers, 8 scattered sums, 1 sum over")):
        toggles = {"precision": "amp_bf16", "tensor_parallel": "2", **more}
        arm = stepped(asked, steps=2, arms=arms, **toggles)
        status, told = collect_evidence(arm)["tensor_parallel"]
        assert status == "effective" and text in told
        # Of 2 x 16 x 32 in BF16 each; the ends of the stream and the norms' gradients in FP32.
        ends = 2 * 4096 + 4 * 32 * 4 if more else 0
        assert arm.divided.traffic.bytes == (16 if more else 8) * 2048 + ends


@needs_cores
def test_the_forward_pass_is_divided_too(asked, arms):
    arm = stepped(asked, "forward", steps=2, arms=arms, tensor_parallel="2")
    status, text = collect_evidence(arm)["tensor_parallel"]
    assert status == "effective" and "4 sums over the ranks a step" in text
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


def own_part_forward(monkeypatch) -> None:
    """Rank 0 goes on with its own part of what layers give."""

    def forward(ctx, y):
        torch.ops.workbench.sum_over_ranks(y)
        return y.clone()

    monkeypatch.setattr(collectives._Leave, "forward", staticmethod(forward))


def own_part_backward(monkeypatch) -> None:
    """Rank 0 goes on with its own part of the gradient of what layers took."""

    def backward(ctx, gradient):
        torch.ops.workbench.sum_over_ranks(gradient)
        return gradient

    monkeypatch.setattr(collectives._Enter, "backward", staticmethod(backward))


def one_share_for_all(monkeypatch) -> None:
    """Let rank 0 load the columns that rank 1 has."""
    take = Cut.take
    monkeypatch.setattr(Cut, "take", lambda self, full, _, ranks: take(self, full, 1, ranks))
    monkeypatch.setattr(LocalWeights, "is_current", lambda self, keeper: False)


def keep_the_shares(monkeypatch) -> None:
    """Keep what the ranks trained out of the full weights, but for what every rank has."""
    put = Cut.put

    def put_nothing(self, share, full, rank, ranks):
        put(self, torch.zeros_like(share), full, rank, ranks)

    monkeypatch.setattr(Cut, "put", put_nothing)


FAULTS = [own_part_forward, own_part_backward, one_share_for_all, keep_the_shares]


@needs_cores
@pytest.mark.parametrize("plant", [None, *FAULTS])
def test_the_check_of_numbers_sees_what_is_not_the_whole_model(divided, plant, monkeypatch):
    if plant is not None:
        plant(monkeypatch)
    checked = comparison.check(divided, divided.situation)
    assert checked.ok is (plant is None), checked.text


@needs_cores
def test_what_every_rank_has_and_no_longer_is_alike_is_no_effect(asked, monkeypatch):
    arm = stepped(asked, steps=2, arms=Arms(), tensor_parallel="2")
    own_part_backward(monkeypatch)  # so that the norms' gradients part
    with arm.entered():
        for _ in range(2):
            arm.step()
    status, text = collect_evidence(arm)["tensor_parallel"]
    assert status == "no effect" and "ranks differ in" in text


@needs_cores
def test_each_rank_has_its_tokens_of_the_stream_between_divided_layers(asked, arms):
    arm = stepped(asked, steps=3, arms=arms, **SEQUENCE)
    status, text = collect_evidence(arm)["sequence_parallel"]
    assert status == "effective", text
    assert "this rank has 8 of 16 tokens" in text
    # Each of 4 layers and the ends of the stream, both ways; and once the gradients of the norms.
    assert "10 gathers, 8 scattered sums, 1 sum over the ranks a step" in text
    assert collect_evidence(arm)["tensor_parallel"][0] == "effective"
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


@needs_cores
def test_roundings_of_layers_that_stay_whole_do_not_make_the_ranks_part(asked, monkeypatch):
    one = msgspec.structs.replace(asked, family="adaattn", model={})
    arm = stepped(one, arms=Arms(), tensor_parallel="2")
    finish = arm.trainer.after_backward

    def rounded() -> None:
        for each in arm.model.parameters():
            each.grad.mul_(1 + 1e-6)  # on rank 0 alone
        finish()

    monkeypatch.setattr(arm.trainer, "after_backward", rounded)
    with arm.entered():
        arm.step()
    status, text = collect_evidence(arm)["tensor_parallel"]
    assert status == "effective" and "1 broadcast over the ranks a step" in text, text


@needs_cores
def test_gradients_of_norms_that_are_not_summed_are_seen(asked, monkeypatch):
    arm = stepped(asked, steps=2, arms=Arms(), **SEQUENCE)
    summed = collectives.sum_over_ranks

    def own_part(x):
        summed(x)
        return x

    monkeypatch.setattr(parallel, "sum_over_ranks", own_part)
    with arm.entered():
        arm.step()
    status, text = collect_evidence(arm)["tensor_parallel"]
    assert status == "no effect" and "ranks differ in 4 parameters" in text


@needs_cores
def test_tokens_in_another_order_are_seen(asked, arms, monkeypatch):
    arm = stepped(asked, steps=2, arms=arms, **SEQUENCE)
    backward = collectives._Tokens.backward

    def turned(ctx, gradient):
        return backward(ctx, gradient.flip(1) if ctx.back == "own_tokens" else gradient)

    monkeypatch.setattr(collectives._Tokens, "backward", staticmethod(turned))
    checked = comparison.check(arm, arm.situation)
    assert checked.ok is False, checked.text


def test_what_one_rank_computes_alone_has_the_shapes_of_all():
    along = collectives.AlongSequence(2)
    x = torch.randn(2, 6, 3, requires_grad=True)
    own = along.split(x)
    assert own.shape == (2, 3, 3)
    for back in (along.enter(own), along.join(own)):
        assert back.shape == x.shape
    along.leave(x).sum().backward()
    assert x.grad.shape == x.shape


@needs_cores
def test_ranks_that_tell_each_other_nothing_are_no_effect(divided, monkeypatch):
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
    trainer.agree = divided.divided._agree
    trainer.update(weight.sum())
    assert torch.equal(weight, moved) and scaler.get_scale() == 4.0


@pytest.mark.slow
@needs_cores
def test_a_step_that_fails_on_rank_0_does_not_leave_the_others_waiting(asked, monkeypatch):
    arms = Arms()
    arm = stepped(asked, arms=arms, tensor_parallel="2")

    def fails(x):
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"), arm.entered(), monkeypatch.context() as m:
        m.setattr(collectives._Leave, "forward", staticmethod(lambda ctx, y: fails(y)))
        arm.step()
    assert world.current() is None
    again = stepped(asked, arms=arms, steps=2, tensor_parallel="2")
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
def test_every_family_trains_right_divided(asked, family, model):
    one = msgspec.structs.replace(asked, family=family, model=model)
    arm = stepped(one, steps=2, arms=Arms(), tensor_parallel="2")
    assert collect_evidence(arm)["tensor_parallel"][0] == "effective"
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


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
def test_other_options_go_with_it(asked, toggles):
    arm = stepped(asked, steps=3, arms=Arms(), tensor_parallel="2", **toggles)
    status = {name: one for name, (one, _) in collect_evidence(arm).items() if name in toggles}
    assert set(status.values()) <= {"effective"}
    assert collect_evidence(arm)["tensor_parallel"][0] == "effective"
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    ("family", "model", "toggles"),
    [
        ("mamba2", {"n_groups": 2}, {}),
        ("mamba2", {}, {"fused_add_norm": "torch"}),
        ("mamba2", {}, {"precision": "amp_bf16"}),
        ("hydra", {"ccgqa": True, "n_kv_heads": 4}, {}),
    ],
)
def test_every_stream_that_can_be_divided_trains_right(asked, family, model, toggles):
    one = msgspec.structs.replace(asked, family=family, model=model)
    arm = stepped(one, steps=2, arms=Arms(), **SEQUENCE, **toggles)
    assert collect_evidence(arm)["sequence_parallel"][0] == "effective"
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


@pytest.mark.slow
@needs_cores
def test_the_runner_divides_layers_when_the_toggle_is_switched_while_it_runs(asked, runner: Driver):
    begin = len(runner.messages)
    runner.send(protocol.Start(configuration=msgspec.structs.replace(asked, workload="train")))
    runner.until(protocol.EvidenceFound)
    runner.send(protocol.Apply(toggles={"tensor_parallel": "2"}))
    told = runner.until(
        lambda one: (
            isinstance(one, protocol.EvidenceFound)
            and any(each.toggle == "tensor_parallel" for each in one.evidence)
        )
    )
    (of_ranks,) = [one for one in told.evidence if one.toggle == "tensor_parallel"]
    assert of_ranks.status == "effective", of_ranks.text
    runner.send(protocol.Apply(toggles={"tensor_parallel": "off"}))
    runner.until(protocol.SegmentStarted)
    runner.finish(protocol.Stop())
    failures = [m for m in runner.messages[begin:] if isinstance(m, protocol.Failure)]
    assert not failures, failures


@pytest.mark.parametrize(
    ("workload", "toggles", "reason", "change"),
    [
        ("decode", {}, "keys, values and states of a cache", {"workload": "train"}),
        ("train", {"data_parallel": "2"}, "together with data parallelism it needs 4 CPU cores",
         {"data_parallel": "off"}),
        ("train", {"adamw": "8bit_torchao"}, "moments in 8 bits", {"adamw": "fused"}),
        ("train", {"compile": "reduce-overhead"}, "captures CUDA graphs", {"compile": "default"}),
        ("train", {"cuda_graphs": "on"}, "a group of ranks", {"cuda_graphs": "off"}),
        ("train", {"compile": "max-autotune"}, "timings of its own", {"compile": "default"}),
        ("train", {"kernel_tuning": "on"}, "timings of its own", {"kernel_tuning": "cached"}),
        ("forward", {"quantization": "int8_weight_only"}, "codes are", {"quantization": "none"}),
    ],
)  # fmt: skip
def test_what_does_not_go_together_says_why(asked, workload, toggles, reason, change, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    told = blocked(asked, workload, **toggles)["tensor_parallel"]["2"]
    assert reason in told.reason and told.fix and told.set == change


def test_kinds_that_exceed_the_cores_together_name_the_other(asked, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    wanted = msgspec.structs.replace(asked, settings={"batch": 2, "sequence": 16})
    told = blocked(wanted, tensor_parallel="2")["data_parallel"]["2"]
    assert "together with tensor parallelism it needs 4 CPU cores" in told.reason
    assert told.set == {"tensor_parallel": "off"}


@pytest.mark.parametrize(
    ("family", "model", "ranks", "reason"),
    [
        ("hydra", {}, "4", "2 key/value heads do not divide among 4 ranks"),
        ("mamba2", {"n_groups": 2}, "4", "2 groups of a mixer's heads do not divide among 4"),
        ("mamba2", {"head_dim": 128}, "4", "2 heads of a mixer do not divide among 4 ranks"),
        ("moe", {"gating": "noisy_topk"}, "2", "other noise"),
    ],
)
def test_models_that_cannot_be_divided_say_why(asked, family, model, ranks, reason, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    wanted = msgspec.structs.replace(asked, family=family, model=model)
    assert reason in blocked(wanted)["tensor_parallel"][ranks].reason


@pytest.mark.parametrize(
    ("workload", "toggles"),
    [
        ("train", {"checkpointing": "full"}),
        ("train", {"mixture_of_depths": "on"}),
        ("forward", {"precision": "amp_bf16"}),
    ],
)
def test_less_is_estimated_of_more_ranks_and_of_a_divided_stream(
    asked, workload, toggles, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = []
    for more in ({}, {"tensor_parallel": "2"}, SEQUENCE):
        one = msgspec.structs.replace(asked, workload=workload, toggles={**toggles, **more})
        found.append(resolve.footprint(resolve.resolve(one, torch.device("cpu"))))
    whole, share, along = found
    assert share.activations < whole.activations and share.weights < whole.weights
    if workload == "train" and "checkpointing" in toggles:
        assert along.activations < share.activations
    else:  # there is no such stream, or none that is kept
        assert along == share


@pytest.mark.parametrize(
    ("family", "model", "toggles", "reason"),
    [
        ("hydra", {}, {"tensor_parallel": "off"}, "layers that ranks divide, and none are"),
        ("hydra", {"mixture_of_depths": True}, {}, "MixtureOfDepths looks at the whole sequence"),
        ("moe", {}, {}, "Block looks at the whole sequence"),
        ("adaattn", {}, {}, "heads adapt, and are measured"),
        ("mahia", {}, {}, "attention with Fourier gates"),
    ],
)
def test_streams_that_stay_whole_say_why(asked, family, model, toggles, reason, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    wanted = msgspec.structs.replace(asked, family=family, model=model)
    told = blocked(wanted, **{"tensor_parallel": "2", **toggles})["sequence_parallel"]["on"]
    assert reason in told.reason and told.fix
    assert (told.set == {"tensor_parallel": "2"}) is ("tensor_parallel" in toggles)


def test_a_sequence_that_ranks_do_not_divide_says_so(asked, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    wanted = msgspec.structs.replace(asked, settings={"batch": 1, "sequence": 15})
    told = blocked(wanted, tensor_parallel="2")["sequence_parallel"]["on"]
    assert told.reason == "a sequence of 15 cannot be divided among 2 ranks"
