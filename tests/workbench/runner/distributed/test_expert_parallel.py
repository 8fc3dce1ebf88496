"""Ranks that have different experts train as one device does."""

from __future__ import annotations

import msgspec
import pytest
import torch
from built import blocked, collect_evidence, stepped
from rank_checks import assert_fault_is_noticed, assert_right, needs_cores

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.estimate import footprint
from workbench.runner.distributed import experts
from workbench.runner.distributed.collectives import EXPERT
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.variants.variant import Variant

EXPERTS = {"expert_parallel": "2"}
TINY = {"input_dim": 32, "hidden_dim": 32, "n_layers": 2, "num_experts": 4, "top_k": 2}
TINY |= {"n_heads": 2, "n_kv_heads": 2}


@pytest.fixture(scope="module")
def configuration(small) -> Configuration:
    settings = {"batch": 4, "sequence": 16}
    return msgspec.structs.replace(small, family="moe", model=TINY, settings=settings)


@pytest.fixture(scope="module")
def divided(configuration) -> Variant:
    """Return an arm whose experts two ranks have, after some steps."""
    return stepped(configuration, steps=3, arms=VariantCache(), **EXPERTS)


@needs_cores
def test_two_ranks_have_half_of_the_experts_and_say_so(configuration, divided):
    status, text = collect_evidence(divided)["expert_parallel"]
    assert status == "effective", text
    assert "this rank has 2 of 4 experts of each mixture" in text
    assert "10 all-to-alls between the ranks per step" in text  # of sizes, and twice there and back
    assert "equal to the last bit" in text
    own, full = divided.divided.weights.own, divided.divided.weights.full_weights
    cuts = divided.divided.weights.cuts_of(EXPERT)
    assert own.bytes == full.bytes - sum(full.parameters[name].nbytes for name in cuts) // 2
    estimated = footprint(divided.situation)
    assert estimated.weights == estimated.gradients == own.bytes


@needs_cores
@pytest.mark.parametrize(
    "model",
    [
        {},
        pytest.param({"num_shared_experts": 1, "renormalise": False}, marks=pytest.mark.slow),
        pytest.param({"capacity_factor": 1.0}, marks=pytest.mark.slow),
        {"gating": "dense"},  # a token chooses more experts than a rank has
    ],
)
def test_divided_experts_train_right(configuration, model):
    configuration = msgspec.structs.replace(configuration, model=TINY | model)
    assert_right(stepped(configuration, steps=2, arms=VariantCache(), **EXPERTS), *EXPERTS)


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    "toggles",
    [
        {"checkpointing": "full"},
        {"precision": "amp_bf16"},
        {"compile": "default"},
        {"compile": "default", "compile_scope": "blocks"},
        {"compile": "default", "compile_scope": "blocks", "checkpointing": "full"},
    ],
    ids=str,
)
def test_other_options_combine_with_divided_experts(configuration, toggles):
    arm = stepped(configuration, steps=2, arms=VariantCache(), **EXPERTS, **toggles)
    for name, (status, text) in collect_evidence(arm).items():
        assert status == "effective", (name, text)
    assert_right(arm, *EXPERTS)


def keep_sums(monkeypatch) -> None:
    """Let rank 0 take the sum of its experts' gradients for their mean."""
    average = Parallel._average_experts

    def sums(self):
        average(self)
        for name in self.weights.cuts:
            self.weights.by_name[name].grad *= self.layout.averaged

    monkeypatch.setattr(Parallel, "_average_experts", sums)


def swap_experts(monkeypatch) -> None:
    """Let rank 0 compute the tokens of one expert with another one."""
    run = experts.RankExchange.run

    def swapped(self, compute, *tokens):
        return run(self, lambda x, index, weight: compute(x, 1 - index, weight), *tokens)

    monkeypatch.setattr(experts.RankExchange, "run", swapped)


@needs_cores
@pytest.mark.parametrize("plant", [keep_sums, pytest.param(swap_experts, marks=pytest.mark.slow)])
def test_the_check_of_numbers_notices_a_fault_of_a_rank(divided, plant, monkeypatch):
    assert_fault_is_noticed(divided, plant, monkeypatch)


@needs_cores
def test_a_rank_whose_experts_no_token_chooses_takes_part(configuration):
    model = {"num_experts": 2, "top_k": 1, "load_balance_weight": 0.0, "n_layers": 1}
    configuration = msgspec.structs.replace(configuration, model=TINY | model)
    arm = stepped(configuration, arms=VariantCache(), **EXPERTS)
    with torch.no_grad():
        for name, weight in arm.plain_weights().items():
            if name.endswith("router.weight"):
                weight.zero_()  # the first of equal experts is taken
    with arm.entered():
        arm.step()
    status, text = collect_evidence(arm)["expert_parallel"]
    assert status == "effective", text


@pytest.mark.parametrize(
    ("change", "toggles", "reason"),
    [
        ({"workload": "forward"}, {}, "needs a backward pass"),
        ({"family": "hydra", "model": {}}, {}, "HYDRA has no mixture"),
        ({"family": "mahia", "model": {"use_moe": True}}, {}, "MAHIA-X has no mixture"),
        ({"model": TINY | {"num_experts": 3}}, {}, "3 experts cannot be divided among 2 ranks"),
        ({"settings": {"batch": 3, "sequence": 16}}, {}, "a batch of 3 cannot be divided among 2"),
        ({}, {"tensor_parallel": "2"}, "tensor parallelism already shards the columns"),
        (
            {},
            {"compile": "default", "compile_scope": "fullgraph"},
            "a graph breaks where ranks exchange tokens",
        ),
        ({}, {"cuda_graphs": "on"}, "CUDA graphs needs fixed sizes"),
    ],
)
def test_what_cannot_be_divided_gives_a_reason(configuration, many_cores, change, toggles, reason):
    changed = msgspec.structs.replace(configuration, **{"workload": "train", **change})
    why = blocked(changed, changed.workload, **toggles)["expert_parallel"]["2"]
    assert reason in why.reason
