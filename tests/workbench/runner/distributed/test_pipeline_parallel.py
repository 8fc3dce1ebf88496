"""Ranks with stages of a model train as one device does, from rank 0's weights and back."""

from __future__ import annotations

import msgspec
import pytest
import torch
from built import blocked, collect_evidence, left_by_a_step, step_without_peer, stepped
from rank_checks import (
    assert_fault_is_noticed,
    assert_right,
    needs_cores,
    switch_on_and_off,
)
from runner_driver import Driver

from models import LanguageModel
from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.estimate import footprint
from workbench.runner.distributed import world
from workbench.runner.distributed.counted_stage import CountsCalls
from workbench.runner.distributed.local_weights import LocalWeights
from workbench.runner.distributed.pipeline import Pipeline
from workbench.runner.experiments import checks
from workbench.runner.failures import explain
from workbench.runner.toggles.micro_batches import suited
from workbench.runner.variants.variant import Variant

ON = {"pipeline_parallel": "2"}


@pytest.fixture(scope="module")
def configuration(small) -> Configuration:
    return msgspec.structs.replace(
        small, model={**small.model, "n_layers": 3}, settings={"batch": 4, "sequence": 16}
    )


@pytest.fixture(scope="module")
def arms() -> VariantCache:
    return VariantCache()


@pytest.fixture
def divided(configuration, arms) -> Variant:
    """Return an arm of two ranks, after some steps from weights that one device has trained."""
    stepped(configuration, steps=2, arms=arms)
    return stepped(configuration, steps=2, arms=arms, **ON)


def train_in_turn(
    configuration: Configuration, *ranks: str
) -> tuple[list[float], list[torch.Tensor]]:
    """Return losses, full weights and moments after two steps of each option, one after another."""
    arms, losses = VariantCache(), []
    for option in ranks:
        # A step with its current batch, the first, and one with the second.
        arm = stepped(configuration, arms=arms, pipeline_parallel=option)
        with arm.entered():
            arm.batches.go_to(2)
            losses.append(float(arm.step()))
            arm.batches.go_to(1)
    state = arm.full_trainer.optimizer.state
    parameters = list(arm.plain_weights().values())
    moments = [state[parameter]["exp_avg"] for parameter in parameters]
    return losses, [tensor.detach().clone() for tensor in (*parameters, *moments)]


@needs_cores
def test_arms_of_one_and_of_two_ranks_continue_from_each_other(configuration):
    losses, expected = train_in_turn(configuration, "off", "off", "off")
    divided_losses, tensors = train_in_turn(configuration, "off", "2", "off")
    assert divided_losses == pytest.approx(losses, rel=1e-5)
    for ours, theirs in zip(tensors, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


@needs_cores
def test_what_threads_of_collectives_free_is_not_left_behind(configuration, arms):
    arm = stepped(configuration, arms=arms, **ON)
    with arm.entered():
        left_by_a_step(arm)  # the profiler knows only memory that was allocated while it looked
        assert {left_by_a_step(arm) for _ in range(8)} == {0}
    result = checks.steady_memory(arm, 4)
    assert result.status == "pass", result.evidence


@needs_cores
def test_two_ranks_have_the_blocks_one_after_another_and_say_so(configuration, divided):
    status, text = collect_evidence(divided)["pipeline_parallel"]
    assert status == "effective", text
    assert "blocks by pipeline rank: 2, 1; 4 micro-batches" in text
    assert "in flight at most: 2, 1;" in text
    # Of 1 x 16 x 32 FP32 each, four a way; the tied embedding's gradient once each way.
    assert "5 sends and 5 receives per step, 80.0 KiB in total" in text
    assert "rank 0's to the last bit" in text
    own, full = divided.divided.weights.own, divided.divided.weights.full_weights
    assert not [name for name in own.parameters if name.startswith("blocks.2")]
    elsewhere = [
        parameter.nbytes
        for name, parameter in full.parameters.items()
        if name.startswith("blocks.2") or name == "norm.weight"
    ]
    assert own.bytes == full.bytes - sum(elsewhere)
    assert divided.ledger["parameters"] == full.bytes // 4
    estimated = footprint(divided.situation)
    assert estimated.weights == estimated.gradients == own.bytes  # the first has more
    undivided = footprint(stepped(configuration, arms=VariantCache()).situation)
    assert estimated.optimizer == 2 * own.bytes < undivided.optimizer
    assert estimated.activations < undivided.activations and estimated.total < undivided.total


def lose_gradient(monkeypatch) -> None:
    """Let rank 0 replace the gradient that its neighbour sends back by zeros."""
    run = CountsCalls.backward_one_chunk

    def lost(self, *arguments, **options):
        for infos in self.grad_recv_info.values():
            for info in infos:
                if info.buffer is not None:
                    info.buffer.zero_()
        return run(self, *arguments, **options)

    monkeypatch.setattr(CountsCalls, "backward_one_chunk", lost)


def skip_blocks(monkeypatch) -> None:
    """Let rank 0 send its embeddings without running its blocks."""
    monkeypatch.setattr(LanguageModel, "_run_blocks", lambda self, x_BSE, *_: (x_BSE, None))


def shift_gradients(monkeypatch) -> None:
    """Let rank 0 add a constant to its gradients."""
    finish = Pipeline.finish_gradients

    def shifted(self):
        for parameter in self._weights.own.parameters.values():
            parameter.grad += 0.3 * parameter.grad.abs().mean()
        finish(self)

    monkeypatch.setattr(Pipeline, "finish_gradients", shifted)


def leave_weights_unstored(monkeypatch) -> None:
    """Do not store what the ranks trained."""
    store = LocalWeights.store

    def nothing(self, own, full_optimizer):
        parameters = self.full_weights.parameters.values()
        before = [parameter.detach().clone() for parameter in parameters]
        store(self, own, full_optimizer)
        with torch.no_grad():
            for parameter, copy in zip(parameters, before, strict=True):
                parameter.copy_(copy)

    monkeypatch.setattr(LocalWeights, "store", nothing)


def lose_own_part_of_the_tied_gradient(monkeypatch) -> None:
    """Let rank 0 leave its own part out of the gradient of the tied embedding."""
    finish = Pipeline.finish_gradients

    def own_part(self):
        before = {id(p): p.grad.clone() for p in self._weights.on_both_ends()}
        finish(self)
        for parameter in self._weights.on_both_ends():
            parameter.grad -= before[id(parameter)]

    monkeypatch.setattr(Pipeline, "finish_gradients", own_part)


FAULTS = [lose_gradient, skip_blocks, shift_gradients, leave_weights_unstored]


@pytest.mark.sample(2)
@needs_cores
@pytest.mark.parametrize("plant", [None, *FAULTS])
def test_the_check_of_numbers_notices_a_fault_of_a_stage(divided, plant, monkeypatch):
    assert_fault_is_noticed(divided, plant, monkeypatch)


@needs_cores
@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (skip_blocks, "rank 0 computed 0 of its 2 blocks"),
        (leave_weights_unstored, "rank 0 has different values of"),
        (lose_own_part_of_the_tied_gradient, "rank 0 has different values of 1 parameter"),
    ],
)
def test_evidence_names_what_the_stages_did_not_do(configuration, plant, problem, monkeypatch):
    arm = stepped(configuration, steps=1, arms=VariantCache(), **ON)
    plant(monkeypatch)
    with arm.entered():
        arm.step()
    status, text = collect_evidence(arm)["pipeline_parallel"]
    assert status == "no effect" and problem in text, text


@pytest.mark.slow
@needs_cores
def test_the_runner_divides_blocks_when_the_toggle_is_switched_while_it_runs(
    configuration, runner: Driver
):
    evidence = switch_on_and_off(runner, configuration, "pipeline_parallel", "2")
    assert evidence.status == "effective", evidence.text


@needs_cores
@pytest.mark.parametrize(
    ("done", "problem"),
    [
        ({"backwards": 3}, "rank 1 ran 4 forward passes and 3 backward passes for 4"),
        ({"sends": 0, "receives": 0}, "all ranks sent 5 and received 5 times, but 8 are needed"),
        ({"receives": 4}, "all ranks sent 10 and received 9 times"),
        (None, "no step ran on all ranks"),
    ],
)
def test_missing_passes_and_messages_are_no_effect(divided, monkeypatch, done, problem):
    first, last = divided.divided.pipeline.step_counts
    counts = [] if done is None else [first, last._replace(**done)]
    monkeypatch.setattr(divided.divided.pipeline, "step_counts", counts)
    monkeypatch.setattr(divided, "evidence", None)
    status, text = collect_evidence(divided)["pipeline_parallel"]
    assert status == "no effect" and problem in text, text


@needs_cores
@pytest.mark.parametrize(
    ("micro_batches", "shown"), [("1", "1 micro-batch;"), ("2", "2 micro-batches;")]
)
def test_stages_take_a_batch_in_the_configured_number_of_micro_batches(
    configuration, arms, micro_batches, shown
):
    arm = stepped(configuration, arms=arms, micro_batches=micro_batches, **ON)
    status, text = collect_evidence(arm)["micro_batches"]
    assert status == "effective" and f"4 rows in {shown}" in text
    assert collect_evidence(arm)["pipeline_parallel"][0] == "effective"


@needs_cores
def test_another_number_of_micro_batches_than_configured_is_no_effect(
    configuration, arms, monkeypatch
):
    arm = stepped(configuration, arms=arms, micro_batches="2", **ON)
    counts = [c._replace(forwards=4) for c in arm.divided.pipeline.step_counts]
    monkeypatch.setattr(arm.divided.pipeline, "step_counts", counts)
    monkeypatch.setattr(arm, "evidence", None)
    status, text = collect_evidence(arm)["micro_batches"]
    assert status == "no effect" and "4 rows in 4 micro-batches" in text


@needs_cores
def test_live_metrics_are_of_all_stages_and_the_full_batch(configuration, arms):
    model = {**configuration.model, "n_layers": 2, "mixture_of_depths": True, "depth_every": 1}
    configuration = msgspec.structs.replace(configuration, model=model)
    plain = stepped(configuration, arms=VariantCache())
    arm = stepped(configuration, arms=VariantCache(), **ON)
    expected = plain.model.metrics()
    assert set(expected) == {"depth_share", "depth_router"}
    for name, values in arm.model.metrics().items():
        assert values.shape == (2, 1) and bool(values.all())
        torch.testing.assert_close(values, expected[name])


@needs_cores
def test_evidence_includes_the_calls_of_other_stages(configuration, arms):
    arm = stepped(configuration, arms=arms, fused_loss="chunked", **ON)
    status, text = collect_evidence(arm)["fused_loss"]
    assert status == "effective" and "all 4 recorded calls used chunked" in text
    assert arm.divided.rank == 0 and not hasattr(arm.model, "norm")  # it computes no loss


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
def test_every_family_that_has_stages_trains_right(configuration, family, model):
    own = {**configuration.model, **model} if family == "hydra" else model
    configuration = msgspec.structs.replace(configuration, family=family, model=own)
    assert_right(stepped(configuration, steps=2, arms=VariantCache(), **ON), "pipeline_parallel")


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
def test_other_options_go_with_it(configuration, toggles):
    arm = stepped(configuration, steps=3, arms=VariantCache(), **ON, **toggles)
    evidence = collect_evidence(arm)
    statuses = {status for name, (status, _) in evidence.items() if name in toggles}
    assert statuses == {"effective"}, evidence
    assert_right(arm, "pipeline_parallel")


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize("model", [{"n_layers": 5}, {"n_layers": 4, "mixture_of_depths": True}])
def test_four_ranks_train_right_however_few_cores_they_share(configuration, many_cores, model):
    configuration = msgspec.structs.replace(
        configuration, model={**configuration.model, **model}, settings={"batch": 8, "sequence": 16}
    )
    arm = stepped(configuration, steps=3, arms=VariantCache(), pipeline_parallel="4")
    status, text = collect_evidence(arm)["pipeline_parallel"]
    assert status == "effective" and "in flight at most: 4, 3, 2, 1;" in text, text
    assert_right(arm)


@pytest.mark.parametrize(
    ("workload", "toggles", "reason", "change"),
    [
        ("forward", {}, "needs a backward pass", {"workload": "train"}),
        ("train", {"adamw": "8bit_torchao"}, "8-bit optimizer states", {"adamw": "fused"}),
        ("train", {"compile": "reduce-overhead"}, "captures CUDA graphs", {"compile": "default"}),
        ("train", {"kernel_tuning": "on"}, "no rank runs a complete", {"kernel_tuning": "cached"}),
        ("train", {"activation_offload": "on"}, "counts the tensors of one call",
         {"activation_offload": "off", "checkpointing": "full"}),
        ("train", {"mixture_of_recursions": "on"}, "reuse one stack of layers",
         {"mixture_of_recursions": "off"}),
    ],
)  # fmt: skip
def test_what_does_not_go_together_says_why(
    configuration, many_cores, workload, toggles, reason, change
):
    block = blocked(configuration, workload, **toggles)["pipeline_parallel"]["2"]
    assert reason in block.reason and block.fix and block.set == change


@pytest.mark.parametrize("other", ["data_parallel", "tensor_parallel"])
def test_kinds_that_exceed_the_cores_together_name_the_other(configuration, two_cores, other):
    model = {**configuration.model, "n_kv_heads": 2}
    configuration = msgspec.structs.replace(configuration, model=model)
    block = blocked(configuration, **ON)[other]["2"]
    assert "combined with pipeline parallelism it needs 4 CPU cores" in block.reason
    assert block.set == {"pipeline_parallel": "off"}


@pytest.mark.parametrize(
    ("family", "model", "settings", "ranks", "reason"),
    [
        ("hydra", {}, {}, "4", "3 blocks cannot form 4 stages"),
        ("hydra", {}, {"batch": 1}, "2", "a batch of 1 is a single micro-batch"),
        ("moe", {}, {}, "2", "balancing loss needs the full batch"),
        ("moe", {"gating": "noisy_topk"}, {}, "2", "would draw different router noise"),
        ("mahia", {}, {}, "2", "not a plain chain of blocks"),
        ("adaattn", {}, {}, "2", "its heads adapt once per step, to the full batch"),
    ],
)
def test_models_and_batches_that_cannot_be_divided_say_why(
    configuration, many_cores, family, model, settings, ranks, reason
):
    own = configuration.model if family == "hydra" else model
    settings = {**configuration.settings, **settings}
    configuration = msgspec.structs.replace(
        configuration, family=family, model=own, settings=settings
    )
    block = blocked(configuration)["pipeline_parallel"][ranks]
    assert reason in block.reason and block.fix


def test_micro_batches_need_stages_and_rows(configuration, many_cores):
    options = blocked(configuration)["micro_batches"]
    assert "auto" not in options and options["4"].set == {"pipeline_parallel": "2"}
    options = blocked(configuration, **ON)["micro_batches"]
    assert set(options) == {"8", "16", "32"}
    assert options["8"].reason == "a batch of 4 cannot be divided into 8 micro-batches"


def test_a_batch_is_divided_into_up_to_four_micro_batches_per_stage():
    cases = {(4, 2): 4, (32, 2): 8, (32, 4): 16, (6, 2): 6, (7, 2): 7, (13, 2): 13, (1, 2): 1}
    assert {(batch, stages): suited(batch, stages) for batch, stages in cases} == cases


@needs_cores
def test_a_peer_that_is_killed_ends_the_step_with_a_sentence_and_the_weights_survive(configuration):
    arms = VariantCache()
    arm = stepped(configuration, steps=2, arms=arms, **ON)
    before = [parameter.detach().clone() for parameter in arm.plain_weights().values()]
    with (
        pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL") as raised,
        arm.entered(),
    ):
        arm.step()
        step_without_peer(arm)
    sentence = explain(raised.value).sentence
    assert sentence.startswith("Rank 1 (in step ")
    assert sentence.endswith(" was ended by SIGKILL, as the system does when memory runs out")
    assert world.current() is None
    for parameter, copy in zip(arm.plain_weights().values(), before, strict=True):
        assert torch.equal(parameter, copy)
    assert float(stepped(configuration, arms=arms).step()) == pytest.approx(5.5, abs=1.0)  # ln 256
