"""Ranks that have stages of a model train as one device does, from rank 0's weights and back."""

from __future__ import annotations

import os

import msgspec
import pytest
import torch
from built import blocked, collect_evidence, left_by_a_step, step_without_peer, stepped
from runner_driver import Driver
from test_ranks import needs_cores, switched

from models import LanguageModel
from sessions.model import Configuration
from workbench.runner.config import resolve
from workbench.runner.distributed import world
from workbench.runner.distributed.counted_stage import CountsCalls
from workbench.runner.distributed.local_weights import LocalWeights
from workbench.runner.distributed.pipeline import Pipeline
from workbench.runner.experiments import checks
from workbench.runner.failures import explain
from workbench.runner.numerics import comparison
from workbench.runner.toggles.micro_batches import suited
from workbench.runner.variants.variant import Arm, Arms

ON = {"pipeline_parallel": "2"}


@pytest.fixture(scope="module")
def asked(small) -> Configuration:
    return msgspec.structs.replace(
        small, model={**small.model, "n_layers": 3}, settings={"batch": 4, "sequence": 16}
    )


@pytest.fixture(scope="module")
def arms() -> Arms:
    return Arms()


@pytest.fixture
def divided(asked, arms) -> Arm:
    """Return an arm of two ranks, after some steps from what arms of one device have trained."""
    stepped(asked, steps=2, arms=arms)
    return stepped(asked, steps=2, arms=arms, **ON)


def trained(asked: Configuration, *ranks: str) -> tuple[list[float], list[torch.Tensor]]:
    """Losses, and the whole weights and moments after two steps of each of these in turn."""
    arms, losses = Arms(), []
    for one in ranks:
        arm = stepped(asked, arms=arms, pipeline_parallel=one)  # of its current batch, the first
        with arm.entered():
            arm.batches.go_to(2)
            losses.append(float(arm.step()))
            arm.batches.go_to(1)
    state = arm.keeper.optimizer.state
    moments = [state[each]["exp_avg"] for each in arm.plain_weights().values()]
    return losses, [each.detach().clone() for each in (*arm.plain_weights().values(), *moments)]


@needs_cores
def test_arms_of_one_and_of_two_ranks_go_on_from_each_other(asked):
    losses, expected = trained(asked, "off", "off", "off")
    divided_losses, tensors = trained(asked, "off", "2", "off")
    assert divided_losses == pytest.approx(losses, rel=1e-5)
    for ours, theirs in zip(tensors, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


@needs_cores
def test_what_threads_of_collectives_free_is_not_left_behind(asked, arms):
    arm = stepped(asked, arms=arms, **ON)
    with arm.entered():
        left_by_a_step(arm)  # the profiler knows only memory that was allocated while it looked
        assert {left_by_a_step(arm) for _ in range(8)} == {0}
    result = checks.steady_memory(arm, 4)
    assert result.status == "pass", result.evidence


@needs_cores
def test_two_ranks_have_the_blocks_one_after_another_and_say_so(asked, divided):
    status, text = collect_evidence(divided)["pipeline_parallel"]
    assert status == "effective", text
    assert "2, 1 blocks on 2 stages, which 4 micro-batches passed" in text
    assert "these had 2, 1 in flight at most" in text
    # Of 1 x 16 x 32 FP32 each, four a way; the tied embedding's gradient once each way.
    assert "5 sends and 5 receives a step, 80.0 KiB in total" in text
    assert "rank 0's to the last bit" in text
    own, full = divided.divided.weights.own, divided.divided.weights.full
    assert not [name for name in own.parameters if name.startswith("blocks.2")]
    elsewhere = [
        parameter.nbytes
        for name, parameter in full.parameters.items()
        if name.startswith("blocks.2") or name == "norm.weight"
    ]
    assert own.bytes == full.bytes - sum(elsewhere)
    assert divided.ledger["parameters"] == full.bytes // 4
    estimated = resolve.footprint(divided.situation)
    assert estimated.weights == estimated.gradients == own.bytes  # the first has more
    whole = resolve.footprint(stepped(asked, arms=Arms()).situation)
    assert estimated.optimizer == 2 * own.bytes < whole.optimizer
    assert estimated.activations < whole.activations and estimated.total < whole.total


def gradient_lost(monkeypatch) -> None:
    """Let rank 0 not see what its neighbour sends back."""
    run = CountsCalls.backward_one_chunk

    def lost(self, *arguments, **options):
        for received in self.grad_recv_info.values():
            for each in received:
                if each.buffer is not None:
                    each.buffer.zero_()
        return run(self, *arguments, **options)

    monkeypatch.setattr(CountsCalls, "backward_one_chunk", lost)


def blocks_skipped(monkeypatch) -> None:
    """Let rank 0 pass on what it embeds."""
    monkeypatch.setattr(LanguageModel, "_run_blocks", lambda self, x_BSE, *_: (x_BSE, None))


def gradients_scaled(monkeypatch) -> None:
    """Let rank 0 have four times the gradients."""
    finish = Pipeline.finish_gradients

    def scaled(self):
        for parameter in self._weights.own.parameters.values():
            parameter.grad += 0.3 * parameter.grad.abs().mean()
        finish(self)

    monkeypatch.setattr(Pipeline, "finish_gradients", scaled)


def kept_by_the_stages(monkeypatch) -> None:
    """Do not store what the ranks trained."""
    store = LocalWeights.store

    def nothing(self, own, keeper):
        kept = {name: each.detach().clone() for name, each in self.full.parameters.items()}
        store(self, own, keeper)
        with torch.no_grad():
            for name, each in self.full.parameters.items():
                each.copy_(kept[name])

    monkeypatch.setattr(LocalWeights, "store", nothing)


def ends_apart(monkeypatch) -> None:
    """Let rank 0 lose its own part of the gradient of what is both embedding and head."""
    finish = Pipeline.finish_gradients

    def own_part(self):
        before = {id(p): p.grad.clone() for p in self._weights.on_both_ends()}
        finish(self)
        for parameter in self._weights.on_both_ends():
            parameter.grad -= before[id(parameter)]

    monkeypatch.setattr(Pipeline, "finish_gradients", own_part)


FAULTS = [gradient_lost, blocks_skipped, gradients_scaled, kept_by_the_stages]


@needs_cores
@pytest.mark.parametrize("plant", [None, *FAULTS])
def test_the_check_of_numbers_sees_what_is_not_the_whole_model(divided, plant, monkeypatch):
    if plant is not None:
        plant(monkeypatch)
    checked = comparison.check(divided, divided.situation)
    assert checked.ok is (plant is None), checked.text


def no_blocks(arm: Arm, monkeypatch) -> str:
    blocks_skipped(monkeypatch)
    return "rank 0 computed 0 of its 2 blocks"


def not_put_back(arm: Arm, monkeypatch) -> str:
    kept_by_the_stages(monkeypatch)
    return "rank 0 has other numbers of"


def ends_part(arm: Arm, monkeypatch) -> str:
    ends_apart(monkeypatch)
    return "rank 0 has other numbers of 1 parameter"


@needs_cores
@pytest.mark.parametrize("plant", [no_blocks, not_put_back, ends_part])
def test_evidence_tells_what_the_stages_did_not_do(asked, plant, monkeypatch):
    arm = stepped(asked, steps=1, arms=Arms(), **ON)
    problem = plant(arm, monkeypatch)
    with arm.entered():
        arm.step()
    status, text = collect_evidence(arm)["pipeline_parallel"]
    assert status == "no effect" and problem in text, text


@pytest.mark.slow
@needs_cores
def test_the_runner_divides_blocks_when_the_toggle_is_switched_while_it_runs(runner: Driver):
    of_ranks = switched(runner, "pipeline_parallel", "2")
    assert of_ranks.status == "effective", of_ranks.text


@needs_cores
@pytest.mark.parametrize(
    ("done", "problem"),
    [
        ({"backwards": 3}, "rank 1 went 4 times forward and 3 times backward"),
        ({"sends": 0, "receives": 0}, "5 sends and 5 receives of all ranks, where 8 are needed"),
        ({"receives": 4}, "10 sends and 9 receives of all ranks"),
        (None, "no step was made by all ranks"),
    ],
)
def test_turns_that_were_not_taken_are_no_effect(divided, monkeypatch, done, problem):
    first, last = divided.divided.pipeline.turns
    turns = [] if done is None else [first, last._replace(**done)]
    monkeypatch.setattr(divided.divided.pipeline, "turns", turns)
    monkeypatch.setattr(divided, "evidence", None)
    status, text = collect_evidence(divided)["pipeline_parallel"]
    assert status == "no effect" and problem in text, text


@needs_cores
@pytest.mark.parametrize("micro_batches", ["1", "2"])
def test_a_batch_goes_through_in_as_many_micro_batches_as_were_asked_for(
    asked, arms, micro_batches
):
    arm = stepped(asked, arms=arms, micro_batches=micro_batches, **ON)
    status, text = collect_evidence(arm)["micro_batches"]
    assert status == "effective" and f"4 rows in {micro_batches} micro-batches" in text
    assert collect_evidence(arm)["pipeline_parallel"][0] == "effective"


@needs_cores
def test_another_number_of_micro_batches_than_asked_for_is_no_effect(asked, arms, monkeypatch):
    arm = stepped(asked, arms=arms, micro_batches="2", **ON)
    turns = [turn._replace(forwards=4) for turn in arm.divided.pipeline.turns]
    monkeypatch.setattr(arm.divided.pipeline, "turns", turns)
    monkeypatch.setattr(arm, "evidence", None)
    status, text = collect_evidence(arm)["micro_batches"]
    assert status == "no effect" and "4 rows in 4 micro-batches" in text


@needs_cores
def test_live_metrics_are_of_all_stages_and_the_whole_batch(asked, arms):
    model = {**asked.model, "n_layers": 2, "mixture_of_depths": True, "depth_every": 1}
    one = msgspec.structs.replace(asked, model=model)
    plain = stepped(one, arms=Arms())
    arm = stepped(one, arms=Arms(), **ON)
    expected = plain.model.metrics()
    assert set(expected) == {"depth_share", "depth_router"}
    for name, values in arm.model.metrics().items():
        assert values.shape == (2, 1) and bool(values.all())
        torch.testing.assert_close(values, expected[name])


@needs_cores
def test_what_the_other_stages_call_is_known(asked, arms):
    arm = stepped(asked, arms=arms, fused_loss="chunked", **ON)
    status, text = collect_evidence(arm)["fused_loss"]
    assert status == "effective" and "all 4 recorded calls ran chunked" in text
    assert arm.divided.rank == 0 and not hasattr(arm.model, "norm")  # nor does it compute a loss


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("hydra", {"tie_embeddings": False}),
        ("hydra", {"ccgqa": True, "dim": 64, "n_heads": 4, "n_kv_heads": 2}),
        ("hydra", {"mixture_of_depths": True}),
        ("mamba2", {}),
        ("moe", {"load_balance_weight": 0.0}),
        ("moe", {"gating": "dense"}),
    ],
)
def test_every_family_that_has_stages_trains_right(asked, family, model):
    own = {**asked.model, **model} if family == "hydra" else model
    one = msgspec.structs.replace(asked, family=family, model=own)
    arm = stepped(one, steps=2, arms=Arms(), **ON)
    assert collect_evidence(arm)["pipeline_parallel"][0] == "effective"
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    "toggles",
    [
        {"checkpointing": "full"},
        {"checkpointing": "selective"},
        {"checkpointing": "operators"},
        {"precision": "amp_bf16"},
        {"precision": "bf16"},
        {"adamw": "fused"},
        {"attention": "manual"},
        {"mixture_of_depths": "on"},
        {"compile": "default"},
        {"compile": "default", "compile_scope": "blocks"},
        {"micro_batches": "2", "checkpointing": "full", "precision": "amp_bf16"},
    ],
    ids=str,
)
def test_other_options_go_with_it(asked, toggles):
    arm = stepped(asked, steps=3, arms=Arms(), **ON, **toggles)
    status = {name: one for name, (one, _) in collect_evidence(arm).items() if name in toggles}
    assert set(status.values()) == {"effective"}
    assert collect_evidence(arm)["pipeline_parallel"][0] == "effective"
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize("model", [{"n_layers": 5}, {"n_layers": 4, "mixture_of_depths": True}])
def test_four_ranks_train_right_however_few_cores_they_share(asked, many_cores, model):
    one = msgspec.structs.replace(
        asked, model={**asked.model, **model}, settings={"batch": 8, "sequence": 16}
    )
    arm = stepped(one, steps=3, arms=Arms(), pipeline_parallel="4")
    status, text = collect_evidence(arm)["pipeline_parallel"]
    assert status == "effective" and "these had 4, 3, 2, 1 in flight at most" in text, text
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


@pytest.fixture
def many_cores(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("workload", "toggles", "reason", "change"),
    [
        ("forward", {}, "acts on the backward pass", {"workload": "train"}),
        ("train", {"adamw": "8bit_torchao"}, "moments in 8 bits", {"adamw": "fused"}),
        ("train", {"compile": "reduce-overhead"}, "captures CUDA graphs", {"compile": "default"}),
        ("train", {"cuda_graphs": "on"}, "a group of ranks", {"cuda_graphs": "off"}),
        ("train", {"kernel_tuning": "on"}, "no rank has one", {"kernel_tuning": "cached"}),
        ("train", {"activation_offload": "on"}, "counted by call",
         {"activation_offload": "off", "checkpointing": "full"}),
        ("train", {"mixture_of_recursions": "on"}, "reuse one stack of layers",
         {"mixture_of_recursions": "off"}),
    ],
)  # fmt: skip
def test_what_does_not_go_together_says_why(asked, many_cores, workload, toggles, reason, change):
    told = blocked(asked, workload, **toggles)["pipeline_parallel"]["2"]
    assert reason in told.reason and told.fix and told.set == change


@pytest.mark.parametrize("other", ["data_parallel", "tensor_parallel"])
def test_kinds_that_exceed_the_cores_together_name_the_other(asked, monkeypatch, other):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    wanted = msgspec.structs.replace(asked, model={**asked.model, "n_kv_heads": 2})
    told = blocked(wanted, **ON)[other]["2"]
    assert "together with pipeline parallelism it needs 4 CPU cores" in told.reason
    assert told.set == {"pipeline_parallel": "off"}


@pytest.mark.parametrize(
    ("family", "model", "settings", "ranks", "reason"),
    [
        ("hydra", {}, {}, "4", "3 blocks cannot be stages on 4 ranks"),
        ("hydra", {}, {"batch": 1}, "2", "a batch of 1 is one micro-batch"),
        ("moe", {}, {}, "2", "balancing loss needs the full batch"),
        ("moe", {"gating": "noisy_topk"}, {}, "2", "would draw other noise"),
        ("mahia", {}, {}, "2", "not a plain chain of blocks"),
        ("adaattn", {}, {}, "2", "its heads adapt to the whole batch"),
    ],
)
def test_models_and_batches_that_cannot_be_divided_say_why(
    asked, many_cores, family, model, settings, ranks, reason
):
    own = asked.model if family == "hydra" else model
    settings = {**asked.settings, **settings}
    wanted = msgspec.structs.replace(asked, family=family, model=own, settings=settings)
    told = blocked(wanted)["pipeline_parallel"][ranks]
    assert reason in told.reason and told.fix


def test_micro_batches_need_stages_and_rows(asked, many_cores):
    told = blocked(asked)["micro_batches"]
    assert "auto" not in told and told["4"].set == {"pipeline_parallel": "2"}
    there = blocked(asked, **ON)["micro_batches"]
    assert set(there) == {"8", "16", "32"}
    assert there["8"].reason == "a batch of 4 cannot be divided into 8 micro-batches"


def test_a_batch_is_divided_into_up_to_four_a_stage():
    cases = {(4, 2): 4, (32, 2): 8, (32, 4): 16, (6, 2): 6, (7, 2): 7, (13, 2): 13, (1, 2): 1}
    assert {(batch, stages): suited(batch, stages) for batch, stages in cases} == cases


@needs_cores
def test_a_peer_that_is_killed_ends_the_step_with_a_sentence_and_the_weights_survive(asked):
    arms = Arms()
    arm = stepped(asked, steps=2, arms=arms, **ON)
    before = [each.detach().clone() for each in arm.plain_weights().values()]
    with (
        pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL") as over,
        arm.entered(),
    ):
        arm.step()
        step_without_peer(arm)
    sentence = explain(over.value).sentence
    assert sentence.startswith("Divided step: rank 1 (in step ")
    assert sentence.endswith(" was ended by SIGKILL, as the system does when memory runs out")
    assert world.current() is None
    for each, kept in zip(arm.plain_weights().values(), before, strict=True):
        assert torch.equal(each, kept)
    assert float(stepped(asked, arms=arms).step()) == pytest.approx(5.5, abs=1.0)  # ln 256
