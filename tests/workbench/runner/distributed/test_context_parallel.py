"""Ranks that split sequences train as one device does, in every family that can be split."""

from __future__ import annotations

import msgspec
import pytest
import torch
from built import blocked, collect_evidence, stepped
from hypothesis import given
from hypothesis import strategies as st
from rank_checks import assert_fault_is_noticed, assert_right, needs_cores
from torch.fx.experimental.proxy_tensor import make_fx

from models.parallel.context_parallel import combined_states
from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.estimate import footprint
from workbench.runner.distributed import collectives
from workbench.runner.distributed.collective_order import ordering_options
from workbench.runner.distributed.context import SplitContext
from workbench.runner.variants.variant import Variant

CONTEXT = {"context_parallel": "2"}
MAMBA = {"dim": 32, "n_layers": 2, "d_state": 16, "head_dim": 16, "n_heads": 2, "n_kv_heads": 1}
FAMILIES = [
    ("hydra", {}),
    ("mamba2", {**MAMBA, "attention_every": 2}),
    pytest.param("hydra", {"window": 5}, marks=pytest.mark.slow),
    pytest.param("hydra", {"ccgqa": True, "n_kv_heads": 2}, marks=pytest.mark.slow),
    pytest.param("mamba2", {}, marks=pytest.mark.slow),
    pytest.param("mamba2", {"n_groups": 2, "attention_every": 0}, marks=pytest.mark.slow),
    pytest.param("moe", {"num_shared_experts": 1}, marks=pytest.mark.slow),
    pytest.param(
        "adaattn", {"adaptive_rank": False, "adaptive_precision": False}, marks=pytest.mark.slow
    ),
]


@pytest.fixture(scope="module")
def configuration(small) -> Configuration:
    return msgspec.structs.replace(small, settings={"batch": 2, "sequence": 16})


@pytest.fixture(scope="module")
def split(configuration) -> Variant:
    """Return an arm whose sequences two ranks split, after some steps."""
    return stepped(configuration, steps=3, arms=VariantCache(), **CONTEXT)


@needs_cores
def test_two_ranks_have_half_of_each_sequence_and_say_so(configuration, split):
    status, text = collect_evidence(split)["context_parallel"]
    assert status == "effective", text
    # Keys and values of 2 layers, each 2 x 16 tokens of 2 x 16 numbers in FP32, both ways.
    assert "this rank has 8 of 16 tokens of each sequence" in text
    assert "2 all-gathers, 2 reduce-scatters between the ranks per step, 16.0 KiB in total" in text
    assert "equal to the last bit" in text
    estimated = footprint(split.situation)
    assert estimated.weights == split.divided.weights.own.bytes
    full = footprint(stepped(configuration, arms=VariantCache()).situation)
    assert full.activations / 2 < estimated.activations < full.activations


@needs_cores
@pytest.mark.parametrize(("family", "model"), FAMILIES)
def test_split_sequences_train_right_in_every_family(configuration, family, model):
    model = configuration.model | model if family == "hydra" else model
    configuration = msgspec.structs.replace(configuration, family=family, model=model)
    assert_right(stepped(configuration, steps=2, arms=VariantCache(), **CONTEXT), *CONTEXT)


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize("family", ["hydra", "mamba2"])
@pytest.mark.parametrize(
    "toggles",
    [
        {"compile": "default"},
        {"checkpointing": "full"},
        {"precision": "amp_bf16"},
        {"fused_loss": "chunked"},
    ],
    ids=str,
)
def test_other_options_combine_with_split_sequences(configuration, family, toggles):
    model = configuration.model if family == "hydra" else {**MAMBA, "attention_every": 2}
    configuration = msgspec.structs.replace(configuration, family=family, model=model)
    assert_right(
        stepped(configuration, steps=2, arms=VariantCache(), **CONTEXT, **toggles), *CONTEXT
    )


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("hydra", {"ccgqa": True, "n_kv_heads": 2}),
        ("moe", {"num_shared_experts": 1}),
        ("adaattn", {"adaptive_rank": False, "adaptive_precision": False}),
    ],
)
def test_compiled_layers_with_several_exchanges_train_right(configuration, family, model):
    model = configuration.model | model if family == "hydra" else model
    configuration = msgspec.structs.replace(configuration, family=family, model=model)
    toggles = {**CONTEXT, "compile": "default"}
    assert_right(stepped(configuration, steps=2, arms=VariantCache(), **toggles), *toggles)


def start_later(monkeypatch) -> None:
    """Let rank 0's tokens have the positions of rank 1's."""
    monkeypatch.setattr(SplitContext, "start", lambda self, length: length)


def see_later_keys(monkeypatch) -> None:
    """Let rank 0's tokens see those of rank 1."""
    seen = SplitContext.seen

    def all_of_them(self, k, v):
        with monkeypatch.context() as patch:
            patch.setattr(self, "rank", self.ranks - 1)
            return seen(self, k, v)

    monkeypatch.setattr(SplitContext, "seen", all_of_them)


def keep_own_gradients(monkeypatch) -> None:
    """Let rank 0 continue with the gradients of keys and values that its own tokens made."""
    operators = torch.ops.workbench

    def backward(ctx, gradient):
        operators.scatter_sum(gradient, ctx.ranks, ctx.axis)
        return operators.own_tokens(gradient, ctx.ranks, ctx.axis), None, None, None, None

    monkeypatch.setattr(collectives._Tokens, "backward", staticmethod(backward))


@pytest.mark.sample(1)
@needs_cores
@pytest.mark.parametrize("plant", [start_later, see_later_keys, keep_own_gradients])
def test_the_check_of_numbers_notices_a_fault_of_a_rank(split, plant, monkeypatch):
    assert_fault_is_noticed(split, plant, monkeypatch)


@given(ranks=st.integers(1, 5), seed=st.integers(0, 99))
def test_states_of_all_ranks_combine_to_that_of_a_walk_over_them(ranks, seed):
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(2, ranks, 3, 4, generator=generator, dtype=torch.float64)
    falls = -torch.rand(2, ranks, 3, generator=generator, dtype=torch.float64)
    before = torch.zeros(2, 3, 4, dtype=torch.float64)
    for rank in range(ranks):
        before_W = collectives.ranks_before(states, states.shape[1], rank)
        torch.testing.assert_close(combined_states(states, falls, rank, before_W), before)
        before = before * falls[:, rank, :, None].exp() + states[:, rank]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"workload": "forward"}, "needs a backward pass"),
        ({"settings": {"batch": 2, "sequence": 15}}, "a sequence of 15 cannot be divided"),
        ({"family": "mamba2", "settings": {"batch": 2, "sequence": 6}}, "a layer looks back 4"),
        ({"family": "mahia"}, "does not make a prediction for each token"),
        ({"family": "adaattn"}, "its heads adapt to queries and keys of the full sequence"),
        (
            {"family": "moe", "model": {"gating": "noisy_topk"}},
            "each rank would draw different router noise",
        ),
        ({"family": "moe", "model": {"capacity_factor": 1.0}}, "an expert's capacity counts"),
        ({"model": {"mixture_of_depths": True}}, "mixture of depths chooses among all tokens"),
        ({"model": {"mixture_of_recursions": True}}, "mixture of recursions chooses among all"),
    ],
)
def test_what_cannot_be_split_gives_a_reason(configuration, two_cores, change, reason):
    change = {"workload": "train", **change}
    if change.get("family", "hydra") != "hydra":
        change = {"model": {}, **change}
    changed = msgspec.structs.replace(configuration, **change)
    why = blocked(changed, changed.workload)["context_parallel"]["2"]
    assert reason in why.reason


@pytest.mark.parametrize("rank", [0, 1])
def test_no_rank_shows_a_compiler_that_it_multiplies_what_it_receives_by_zero(rank):
    context, x = SplitContext(2, rank), torch.randn(2, 6, 4)
    states, falls = torch.randn(2, 3, 5), torch.randn(2, 3)
    traced = make_fx(lambda x, *state: (context.before(x, 2), context.state_before(*state)))
    nodes = traced(x, states, falls).graph.nodes
    products = [node for node in nodes if "mul" in str(node.target)]
    assert len(products) == 3  # with the rows before, and with the states of two ranks
    assert all(isinstance(factor, torch.fx.Node) for node in products for factor in node.args)
    gathers = [node for node in nodes if node.target is torch.ops.workbench.gather_tokens.default]
    assert len(gathers) == 2


def communicate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Communicate three times; the third call needs nothing of the others."""
    first = collectives.all_tokens(x.sin(), 2, "first")
    second = collectives.all_tokens((first.cos() * 3)[:, :8] + 1, 2, "second")
    third = collectives.all_tokens(y.exp()[:, :4], 2, "third")
    return second.sum() + collectives.total_over_ranks(third.mean(), "fourth")


@pytest.mark.slow
def test_compiled_collectives_run_in_the_order_of_the_program(monkeypatch):
    calls: list[str] = []

    def alone(axis: str) -> collectives.Traffic:
        calls.append(axis)
        return collectives._ALONE

    monkeypatch.setattr(collectives, "_along", alone)

    def order(compute) -> list[str]:
        """Return the axes of calls, forward and backward."""
        calls.clear()
        x = torch.randn(64, 16, 64, requires_grad=True)
        compute(x, torch.randn(64, 16, 256, requires_grad=True)).backward()
        return list(calls)

    program = order(communicate)
    assert list(dict.fromkeys(program)) == ["first", "second", "third", "fourth"]
    assert order(torch.compile(communicate)) != program  # otherwise the test shows nothing
    torch._dynamo.reset()
    assert order(torch.compile(communicate, options=ordering_options())) == program
