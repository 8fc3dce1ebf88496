"""HYDRA's three routings compute what their papers say, each alone and together."""

import dataclasses
import math
from fractions import Fraction

import pytest
import torch
from hydra_reference import Reference
from hypothesis import given
from hypothesis import strategies as st
from routed import COMBINATIONS, HYDRA, PLAIN, config_of, routed_model, some_tokens

from models import ConfigurationError
from models.layers.routing import RoutedState, admitted, everyone, packed
from models.layers.token_fraction import TokenFraction

every_combination = pytest.mark.parametrize("combination", COMBINATIONS)
EXACT = {"rtol": 1e-9, "atol": 1e-10}


@pytest.mark.sample(4)
@every_combination
def test_training_gives_the_loss_and_gradients_of_the_plain_transcription(combination):
    model = routed_model(combination)
    tokens_BS, targets_BS = some_tokens(), some_tokens(seed=2)
    leaves = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    reference = Reference(config_of(combination), leaves, training=True)
    logits_BSV, expected = reference.logits_and_loss(tokens_BS, targets_BS)
    torch.testing.assert_close(model(tokens_BS), logits_BSV, **EXACT)
    loss = model.loss(tokens_BS, targets_BS)
    torch.testing.assert_close(loss, expected, **EXACT)
    loss.backward()
    expected.backward()
    for name, parameter in model.named_parameters():
        assert leaves[name].grad.any(), name
        torch.testing.assert_close(parameter.grad, leaves[name].grad, **EXACT, msg=name)


@every_combination
def test_evaluation_routes_as_the_causal_transcription(combination):
    model = routed_model(combination).eval()
    tokens_BS = some_tokens()
    reference = Reference(config_of(combination), model.weights(), training=False)
    with torch.no_grad():
        expected, cross_entropy = reference.logits_and_loss(tokens_BS, tokens_BS)
        torch.testing.assert_close(model(tokens_BS), expected, **EXACT)
        # The routers' losses have no purpose where nothing is learned.
        torch.testing.assert_close(model.loss(tokens_BS, tokens_BS), cross_entropy, **EXACT)


@every_combination
def test_a_later_token_never_changes_earlier_logits_where_the_model_decodes(combination):
    model = routed_model(combination).eval()
    tokens_BS = some_tokens()
    with torch.no_grad():
        before = model(tokens_BS)
        for position in range(tokens_BS.shape[1]):
            changed_BS = tokens_BS.clone()
            changed_BS[:, position] = (changed_BS[:, position] + 100) % 256
            after = model(changed_BS)
            torch.testing.assert_close(after[:, :position], before[:, :position], **EXACT)
            assert not torch.allclose(after[:, position], before[:, position])


def looks_ahead(combination):
    model = routed_model(combination)
    with torch.no_grad():
        for seed in range(10):
            tokens_BS = some_tokens(seed=seed)
            changed_BS = torch.cat((tokens_BS[:, :-1], (tokens_BS[:, -1:] + 100) % 256), 1)
            before, after = model(tokens_BS)[:, :-1], model(changed_BS)[:, :-1]
            if not torch.allclose(before, after):
                return True
    return False


def test_training_looks_ahead_where_the_best_are_chosen_and_only_there():
    assert looks_ahead("depths") and looks_ahead("recursions")
    assert not looks_ahead("ccgqa") and not looks_ahead("recursions by token sharing keys")


@every_combination
@pytest.mark.parametrize("training", [True, False])
def test_sequences_of_a_batch_do_not_disturb_each_other(combination, training):
    model = routed_model(combination).train(training)
    tokens_BS = some_tokens(batch=3)
    with torch.no_grad():
        together = model(tokens_BS)
        for i in range(3):
            torch.testing.assert_close(model(tokens_BS[i : i + 1])[0], together[i], **EXACT)


def test_the_routers_that_are_compared_choose_some_tokens_and_leave_some():
    """Without this, the comparisons above could all be of models that take everybody or nobody."""
    for combination in COMBINATIONS:
        if "recursions" not in combination and "depths" not in combination:
            continue
        model = routed_model(combination).eval()
        with torch.no_grad():
            model(some_tokens())
        metrics = model.metrics()
        if "depth_share" in metrics:
            assert float(metrics["depth_share"].min()) > 0.05, combination
            assert float(metrics["depth_share"].max()) < 0.5, combination
        if "recursion_share" in metrics:
            assert int((metrics["recursion_share"] > 0.05).sum()) >= 2, combination


@given(
    asks=st.lists(st.booleans(), min_size=1, max_size=40),
    part=st.integers(1, 12),
    more=st.integers(0, 12),
    cut=st.integers(0, 40),
)
def test_the_running_budget_is_kept_token_by_token_also_across_calls(asks, part, more, cut):
    share, n_taken, expected = TokenFraction(part, part + more), 0, []
    for index, ask in enumerate(asks):
        fits = n_taken + 1 <= math.ceil(Fraction(part, part + more) * (index + 1))
        expected.append(ask and fits)
        n_taken += ask and fits
    actual, state = [], RoutedState(torch.zeros(1, dtype=torch.int64), [])
    for piece in (asks[:cut], asks[cut:]):
        if piece:
            position = torch.tensor(len(actual)) if actual else None
            rows = everyone(torch.zeros(1, len(piece), 1), position)
            taken_BS = admitted(torch.tensor([piece]), share, rows, state)
            packed(taken_BS, share, rows, state)
            actual += taken_BS[0].tolist()
            assert state.filled.tolist() == [sum(actual)]
    assert actual == expected


def test_a_token_that_found_no_room_in_a_recursion_goes_through_no_later_one():
    recursion = routed_model("recursions by token sharing keys").blocks[1]
    wanted_BS = torch.tensor([[1, 1, 2, 0, 2]])  # recursions after the first
    reached = recursion._admitted(wanted_BS, everyone(torch.zeros(1, 5, 1), None), None)
    # Of the first three tokens two may go on to the second recursion, where the third is missing,
    # although the last recursion would have room for it.
    expected = [[1, 1, 1, 1, 1], [1, 1, 0, 0, 1], [0, 0, 0, 0, 1]]
    assert torch.cat(reached).int().tolist() == expected


def test_a_share_is_the_same_number_on_the_host_and_on_the_device():
    counts = torch.arange(1, 3000)
    for capacity in (0.001, 0.1, 0.125, 0.3, 1 / 3, 0.7, 1.0):
        share = TokenFraction.nearest(capacity)
        assert share.of(counts).tolist() == [share.of(n) for n in counts.tolist()]
        assert share.of(1000) == math.ceil(Fraction(capacity).limit_denominator(1000) * 1000)
    assert TokenFraction.nearest(0.012345).of(200_000) == 2469, "decimals are exact"


@every_combination
def test_checkpointing_changes_nothing(combination):
    model, tokens_BS = routed_model(combination), some_tokens()
    expected = None
    for mode in ("none", "selective", "full"):
        model.zero_grad()
        model.set_checkpointing(mode)
        loss = model.loss(tokens_BS, tokens_BS)
        loss.backward()
        actual = [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        expected = actual if expected is None else expected
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("combination", ["ccgqa depths recursions", "depths recursions by token"])
def test_training_and_decoding_compile_whole(combination):
    torch.compiler.reset()
    model = routed_model(combination, n_layers=1, depth_every=1, recursions=2)
    tokens_BS = some_tokens()

    def compiled(function):
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    model.loss(tokens_BS, tokens_BS).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    metrics = {name: values.clone() for name, values in model.metrics().items()}
    model.zero_grad()
    for values in model.metrics().values():
        values.zero_()
    compiled(model.loss)(tokens_BS, tokens_BS).backward()
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, **EXACT)
    torch.testing.assert_close(model.metrics(), metrics)
    model.eval()
    cache, step = model.new_cache(2, 13), compiled(model)
    counters = torch._dynamo.utils.counters["stats"]
    with torch.no_grad():
        full = model(tokens_BS)
        torch.testing.assert_close(step(tokens_BS[:, :9], cache=cache), full[:, :9], **EXACT)
        for i in range(9, 13):
            graphs = counters["unique_graphs"] if i > 9 else None
            actual = step(tokens_BS[:, i : i + 1], cache=cache, position=torch.tensor(i))
            torch.testing.assert_close(actual[:, 0], full[:, i], **EXACT)
            assert graphs in (None, counters["unique_graphs"])  # one graph for all positions
    torch.compiler.reset()


def test_all_routings_together_learn_a_batch_and_to_route_it_without_looking_ahead():
    config = dataclasses.replace(
        config_of("ccgqa depths recursions"), dim=64, router_loss=0.1, depth_capacity=0.5
    )
    model, tokens_BS = HYDRA.materialise(config, seed=5), some_tokens(length=17)
    inputs_BS, targets_BS = tokens_BS[:, :-1], tokens_BS[:, 1:]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        loss = model.loss(inputs_BS, targets_BS)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    with torch.no_grad():
        alone = model.eval().loss(inputs_BS, targets_BS)
    assert alone.item() < 0.3, "the routers' scores say by themselves what training chose"


def test_what_training_chooses_is_the_capacity_and_the_histogram_adds_up():
    model = routed_model("ccgqa depths recursions")
    model(some_tokens(length=30))
    metrics = model.metrics()
    assert set(metrics) <= {metric.name for metric in HYDRA.metrics}
    reached = [30, 20, 10]
    computed = [math.ceil(Fraction(2, 5) * n) / 30 for n in reached]
    torch.testing.assert_close(metrics["depth_share"], torch.tensor([[sum(computed) / 3]]))
    torch.testing.assert_close(metrics["recursion_share"], torch.full((1, 3), 1 / 3))
    assert ((metrics["recursion_router"] > 0) & (metrics["recursion_router"] < 1)).all()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            {"dim": 100, "ccgqa": True},
            "dim = 100 cannot be divided by n_heads = 4 times",
        ),
        ({"ccgqa": True, "n_kv_heads": 1}, "so n_kv_heads = 1 must be even"),
        ({"ccgqa": True, "kv_compression": 8}, "kv_compression = 8, but n_kv_heads = 2"),
        ({"ccgqa": True, "dim": 24}, "dim / n_heads / query_compression = 3 is odd"),
        ({"ccgqa": True, "conv_width": 5}, "conv_width = 5 is not one of (2, 3, 4)"),
        ({"mixture_of_depths": True, "depth_capacity": 0}, "depth_capacity = 0.0 is outside"),
        ({"mixture_of_depths": True, "depth_capacity": 1.5}, "depth_capacity = 1.5 is outside"),
        ({"mixture_of_depths": True, "depth_every": 9}, "depth_every = 9 is more than n_layers = "),
        ({"mixture_of_recursions": True, "recursions": 1}, "recursions = 1 is outside of 2"),
        ({"recursion_routing": "both"}, "recursion_routing = 'both' is not one of"),
        (
            {"mixture_of_recursions": True, "recursion_kv": "share", "mixture_of_depths": True},
            "recursion_kv = 'share' needs the first recursion's keys of every token",
        ),
    ],
)
def test_routings_that_cannot_be_built_are_refused_by_a_sentence(overrides, sentence):
    with pytest.raises(ConfigurationError) as caught:
        HYDRA.configure("tiny", overrides)
    assert str(caught.value).startswith("hydra: ") and sentence in str(caught.value)


def test_compression_that_follows_from_the_heads_may_be_said():
    config = HYDRA.configure("tiny", {"ccgqa": True, "kv_compression": 4})
    assert config.dim // config.kv_compression == config.n_kv_heads * config.head_dim
    assert PLAIN.head_dim == 8 and config_of("ccgqa").head_dim == 4
