"""Costs of HYDRA's routings in parameters, FLOPs and bytes, and how they fall."""

import dataclasses
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from routed import COMBINATIONS, HYDRA, PLAIN, config_of, routed_model, some_tokens
from torch.utils.flop_counter import FlopCounterMode

import kernels

BATCH, LENGTH = 2, 20


def counted_flops(work):
    with kernels.using(attention="manual"), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def passes(config):
    """Return the token fraction of each application of a layer, and whether its keys are of all."""
    if not config.mixture_of_recursions:
        runs = [(Fraction(1), False, range(config.n_layers))]
    else:
        n, shared = config.recursions, config.recursion_kv == "share"
        runs = [(Fraction(1), False, [0]), (Fraction(1), False, [0])]  # the first, the last
        runs += [(Fraction(n - r, n), shared and r > 0, range(config.n_layers)) for r in range(n)]
    for run, (share, shared, layers) in enumerate(runs):
        for i in layers:
            inside = run >= 2 or not config.mixture_of_recursions
            routed = config.mixture_of_depths and inside and (i + 1) % config.depth_every == 0
            capacity = Fraction(config.depth_capacity).limit_denominator(1000)
            yield share * (capacity if routed else 1), shared


def more_than_the_mathematics(config):
    """Count FLOPs of pairs above the diagonal, less those that torch's counter does not see.

    Attention by hand computes the former; the latter are the convolution over the sequence, done
    element by element.
    """
    q_dim = config.n_heads * config.head_dim
    mixed = (config.n_heads + config.n_kv_heads) * config.head_dim
    total = 0
    for share, shared in passes(config):
        tokens = math.ceil(share * LENGTH)
        by_hand = tokens * (LENGTH if shared else tokens)
        causal = tokens * (tokens + 1) // 2
        if shared:
            causal = math.ceil(share * (LENGTH * (LENGTH + 1) // 2))
        total += 4 * q_dim * (by_hand - causal)
        if config.ccgqa:
            total -= 2 * mixed * config.conv_width * tokens
    return BATCH * total


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_forward_flops_equal_what_torch_counts(combination, training):
    config = config_of(combination)
    model = routed_model(combination, dtype=torch.float32).train(training)
    with torch.no_grad():
        counted = counted_flops(lambda: model(some_tokens(BATCH, LENGTH)))
    assert counted == HYDRA.flops(config, BATCH, LENGTH) + more_than_the_mathematics(config)


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_the_formula_counts_the_parameters(combination):
    model = HYDRA.build(config_of(combination))
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert HYDRA.parameter_count(config_of(combination)) == counted


@settings(max_examples=15)
@given(
    head_dim=st.sampled_from([2, 4, 6]),
    n_kv_heads=st.sampled_from([2, 4]),
    copies=st.integers(1, 3),
    query_compression=st.integers(1, 4),
    conv_width=st.sampled_from([2, 3, 4]),
    n_layers=st.integers(1, 4),
    depth_every=st.integers(1, 4),
    recursions=st.integers(2, 5),
    switches=st.tuples(*[st.booleans()] * 3),
)
def test_the_formula_counts_the_parameters_of_any_routed_configuration(
    head_dim, n_kv_heads, copies, query_compression, switches, **fields
):
    n_heads = n_kv_heads * copies
    names = ("ccgqa", "mixture_of_depths", "mixture_of_recursions")
    overrides = dict(zip(names, switches, strict=True)) | fields
    overrides["depth_every"] = min(fields["depth_every"], fields["n_layers"])
    overrides |= {"query_compression": query_compression, "n_heads": n_heads}
    overrides |= {"n_kv_heads": n_kv_heads, "dim": max(8, head_dim * n_heads * query_compression)}
    config = HYDRA.configure("tiny", overrides)
    counted = sum(parameter.numel() for parameter in HYDRA.build(config).parameters())
    assert HYDRA.parameter_count(config) == counted


def test_the_published_default_has_this_many_parameters():
    config = HYDRA.presets["published"]
    embedding, norms = 50304 * 2048, 2 * 2048
    attention = 2 * 2048**2 // 2 + 2 * 2048**2 // 16  # 2 E^2 / C1 + 2 E^2 / C2
    columns = (32 + 4) * 32
    convolutions = columns * 2 * 32 + columns * 2 + 2 * columns
    layer = attention + convolutions + 4 + 3 * 2048 * 5504 + norms
    routers = (4 + 4) * 2048
    assert HYDRA.parameter_count(config) == 10 * layer + embedding + 2048 + routers == 489_217_064


def test_compressed_attention_keeps_what_its_compression_says():
    plain, ccgqa = PLAIN, config_of("ccgqa")
    e, c1, c2 = PLAIN.dim, 2, 4
    assert e // c2 == ccgqa.n_kv_heads * ccgqa.head_dim
    costs = HYDRA.costs(ccgqa)
    assert costs.cached_per_token == ccgqa.n_layers * 2 * e // c2
    assert costs.score_width == ccgqa.n_layers * e // c1
    caches = [
        HYDRA.footprint(config, workload="decode", batch=1, sequence=10_000).cache
        for config in (ccgqa, plain)
    ]
    assert caches[0] / caches[1] == pytest.approx(
        1 / c1, rel=0.01
    )  # the heads are C1 times thinner


def test_flops_fall_with_the_capacity_by_what_the_routed_blocks_are():
    sequence = 1000
    config = dataclasses.replace(PLAIN, mixture_of_depths=True, max_sequence=sequence)
    step = {"batch": 1, "sequence": sequence}
    result = [
        HYDRA.flops(dataclasses.replace(config, depth_capacity=capacity), **step)
        for capacity in (0.125, 0.25, 0.5, 1.0)
    ]
    assert result == sorted(set(result))
    plain = HYDRA.flops(dataclasses.replace(config, mixture_of_depths=False), **step)
    router = 2 * config.dim * sequence
    assert result[-1] == plain + router
    layer = HYDRA.costs(config).linear_parameters // 2
    linears, pairs = 2 * layer * 875, 4 * config.dim * (1000 * 1001 - 125 * 126) // 2
    assert result[-1] - result[0] == linears + pairs


def test_recursions_cost_what_their_shares_say_and_no_parameters_but_the_routers():
    sequence = 1200
    config = dataclasses.replace(PLAIN, mixture_of_recursions=True, max_sequence=sequence)
    every = [dataclasses.replace(config, recursions=n) for n in (2, 3, 4)]
    parameters = [HYDRA.parameter_count(c) for c in every]
    assert parameters[1] - parameters[0] == parameters[2] - parameters[1] == config.dim
    layers = HYDRA.costs(config).linear_parameters // 4  # two of the stack, the first and the last
    for c, n in zip(every, (2, 3, 4), strict=True):
        costs = HYDRA.costs(c)
        per_token = costs.matmul_per_token + sum(
            Fraction(*part.share) * part.matmul_per_token for part in costs.routed
        )
        routers = c.dim * (1 + Fraction(n + 1, 2) - Fraction(1, n))
        assert per_token == layers * (2 + 2 * Fraction(n + 1, 2)) + routers
    sharing = dataclasses.replace(config, recursion_kv="share")
    step = {"workload": "decode", "batch": 1, "sequence": sequence}
    caches = [HYDRA.footprint(c, **step).cache for c in (sharing, config)]
    # The first, the last and the stack's two layers; there, 1 against 1 + 2/3 + 1/3.
    assert caches[0] / caches[1] == pytest.approx((2 + 2) / (2 + 2 * 2), rel=0.01)


def test_the_estimate_of_activations_falls_with_the_capacity_and_grows_with_recursions():
    step = {"workload": "train", "batch": 4, "sequence": 32}

    def activations(**fields):
        config = dataclasses.replace(PLAIN, n_layers=8, **fields)
        return HYDRA.footprint(config, **step).activations

    plain = activations()
    depths = [activations(mixture_of_depths=True, depth_capacity=c) for c in (0.125, 0.5)]
    assert depths[0] < depths[1] < plain
    recursions = [activations(mixture_of_recursions=True, recursions=n) for n in (2, 4)]
    assert plain < recursions[0] < recursions[1]


def saved_for_backward(config):
    """Return the bytes that autograd saves for the blocks' backward passes, without weights."""
    model = HYDRA.materialise(config)
    own = {
        weight.untyped_storage().data_ptr() for weight in [*model.parameters(), *model.buffers()]
    }
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(some_tokens(BATCH, 128))
    return sum(size for size, _ in saved.values())


def test_activations_that_are_really_kept_fall_with_the_capacity():
    config = dataclasses.replace(
        PLAIN, dim=64, n_layers=4, depth_every=1, mixture_of_depths=True, max_sequence=128
    )
    saved = [
        saved_for_backward(dataclasses.replace(config, depth_capacity=capacity))
        for capacity in (0.125, 0.25, 0.5)
    ]
    assert saved[2] - saved[1] == pytest.approx(2 * (saved[1] - saved[0]), rel=0.05)
    assert saved[0] < 0.5 * saved[2]
