"""MAHIA-X's parts, each alone: equal to their equations, with their guarantees."""

import math

import mahia_equations as equations
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import kernels
from models import ConfigurationError
from models.layers.attention import RotaryCache
from models.layers.graph_memory import normalised_entropy
from models.layers.neuro_fabric import chosen, depth_shares
from models.mahia import DynamicNeuroFabric, GraphDiffusionMemory, MetaAttentionKernel


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def part(make, seed=0):
    """Make a part in FP64 with every parameter away from its start, gains and biases too."""
    torch.manual_seed(seed)
    module = make().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def same_result_and_gradients(module, function, x):
    """Compare ``module(x)`` and ``function(weights, x)``: values, gradients of x and of weights."""
    results = []
    for compute in (lambda x: module(x), lambda x: function(dict(module.named_parameters()), x)):
        leaf = x.clone().requires_grad_()
        y = compute(leaf)
        direction = normal(*y.shape, seed=9)
        wanted = [leaf, *module.parameters()]
        results.append([y.detach(), *torch.autograd.grad((y * direction).sum(), wanted)])
    names = ["result", "x", *dict(module.named_parameters())]
    for name, ours, theirs in zip(names, *results, strict=True):
        assert theirs.abs().max() > 1e-4, f"{name} says nothing"
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10, msg=name)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("use_fourier", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_attention_equals_its_equations(causal, use_fourier, rotary):
    table = RotaryCache(4, 32, 100.0) if rotary else None
    module = part(
        lambda: MetaAttentionKernel(12, use_fourier, n_heads=3, causal=causal, rotary=table)
    )
    if rotary:  # its table is FP32 by design; here rounding would hide mistakes
        angles = torch.outer(torch.arange(32.0).double(), 100.0 ** -torch.tensor([0, 0.5]).double())
        table.cos_SR, table.sin_SR = angles.cos(), angles.sin()
    theta = 100.0 if rotary else None
    same_result_and_gradients(
        module, lambda w, x: equations.meta_attention(w, "", x, 3, causal, theta), normal(2, 9, 12)
    )


@pytest.mark.parametrize("causal", [False, True])
def test_a_later_token_reaches_an_earlier_one_unless_the_form_is_causal(causal):
    module = part(lambda: MetaAttentionKernel(12, n_heads=3, causal=causal))
    x = normal(2, 16, 12)
    changed = x.clone()
    changed[:, 11] += 1
    # The filter of the matrix is exact; transforms leave their rounding in every place.
    for filtering in ("torch", "matmul"):
        with torch.no_grad(), kernels.using(fourier_mix=filtering):
            change = (module(changed) - module(x)).abs().amax((0, 2))
        assert change[11:].min() > 1e-3
        if causal:
            assert change[:11].max() <= (1e-13 if filtering == "torch" else 0)
        else:
            assert change[:11].min() > 1e-4


def test_the_plain_filter_looks_ahead_where_attention_may_not(monkeypatch):
    """The causal form needs its own filter, because the plain filter undoes a causal mask."""
    module = part(lambda: MetaAttentionKernel(12, n_heads=3, causal=True))
    x = normal(1, 16, 12)
    changed = x.clone()
    changed[:, 11] += 1
    mix = kernels.fourier_mix
    monkeypatch.setattr(kernels, "fourier_mix", lambda v, causal: mix(v, causal=False))
    with torch.no_grad():
        change = (module(changed) - module(x)).abs().amax((0, 2))
    assert change[:11].min() > 1e-4


@pytest.mark.parametrize("length", [7, 1100])
@pytest.mark.parametrize("causal", [False, True])
def test_distillation_returns_the_statistics_of_the_map_that_was_used(causal, length):
    module = part(lambda: MetaAttentionKernel(4, True, True, n_heads=2, causal=causal))
    x = normal(2, length, 4).requires_grad_()
    y, statistics = module(x)
    module.during_distillation = False
    assert torch.equal(y, module(x))
    weights = dict(module.named_parameters())
    for b in range(2):
        for h, (map_SS, _) in enumerate(
            equations.attention_maps(weights, "", x[b], 2, causal, None)
        ):
            index = torch.arange(length)
            away = (index[:, None] - index).abs()
            expected = (torch.special.entr(map_SS), map_SS * away)
            for ours, theirs in zip((statistics[0], statistics[2]), expected, strict=True):
                torch.testing.assert_close(ours[b, h], theirs.sum(-1), rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(statistics.peak[b, h], map_SS.amax(-1))
    (grad,) = torch.autograd.grad(sum(s.sum() for s in statistics), x)
    assert grad.isfinite().all() and grad.abs().max() > 1e-3


@pytest.mark.parametrize(("top_k", "steps", "alpha"), [(0, 3, 0.85), (2, 1, 0.5), (7, 4, 1.0)])
def test_memory_equals_its_equations(top_k, steps, alpha):
    module = part(lambda: GraphDiffusionMemory(6, 7, steps=steps, alpha=alpha, top_k=top_k))
    same_result_and_gradients(
        module, lambda w, x: equations.graph_memory(w, "", x, steps, alpha, top_k), normal(5, 6)
    )


def test_rows_of_the_graph_sum_to_one_and_keep_what_they_are_told_to():
    p_MM = part(lambda: GraphDiffusionMemory(6, 20, top_k=3)).transitions()
    torch.testing.assert_close(p_MM.sum(-1), torch.ones(20).double())
    assert (p_MM > 0).sum(-1).eq(3).all()
    assert (part(lambda: GraphDiffusionMemory(6, 20)).transitions() > 0).all()


def test_every_sample_reads_the_memory_alone():
    module, x = part(lambda: GraphDiffusionMemory(6, 20)), normal(5, 6)
    alone = torch.cat([module(row[None]) for row in x])
    torch.testing.assert_close(module(x), alone, rtol=1e-12, atol=1e-14)


def test_a_forward_pass_writes_to_nothing_and_an_update_to_the_slots_alone():
    module, x = part(lambda: GraphDiffusionMemory(6, 20)), normal(5, 6)
    tensors = [*module.parameters(), *module.buffers()]
    before = [(t._version, t.detach().clone()) for t in tensors]
    module(x).sum().backward()
    for tensor, (version, values) in zip(tensors, before, strict=True):
        assert tensor._version == version and torch.equal(tensor, values)
    module.update(x)
    written = [name for name, t in module.named_parameters() if t._version != version]
    assert written == ["memory_ME"]


def test_an_update_moves_each_slot_to_what_retrieves_it_as_the_rule_says():
    module, x = part(lambda: GraphDiffusionMemory(6, 4)), normal(9, 6)
    before, h = module.memory_ME.detach().clone(), module.retrieval(x).detach()
    module.update(x, rate=0.3)
    for i in range(4):
        step = sum(h[b, i] * (x[b] - before[i]) for b in range(9)) / max(1, h[:, i].sum())
        torch.testing.assert_close(module.memory_ME[i].detach(), before[i] + 0.3 * step)


def test_what_is_written_at_full_rate_is_retrieved_again():
    module = part(lambda: GraphDiffusionMemory(16, 8))
    with torch.no_grad():
        module.memory_ME.copy_(20 * torch.eye(8, 16))
    x = 3 * torch.eye(16).double()[2:3] + 0.1 * normal(1, 16)
    module.update(x, rate=1.0)
    torch.testing.assert_close(module.memory_ME[2].detach(), x[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(module.memory_ME[5].detach(), 20 * torch.eye(8, 16).double()[5])
    before = module.memory_ME.detach().clone()
    module.update(x, rate=0.0)
    assert torch.equal(module.memory_ME.detach(), before)
    with pytest.raises(ConfigurationError, match=r"rate = 1\.5 is outside of 0 to 1"):
        module.update(x, rate=1.5)


def test_retrieval_entropy_goes_from_one_slot_to_all_alike():
    assert normalised_entropy(torch.full((3, 8), 1 / 8)) == pytest.approx(1)
    assert normalised_entropy(torch.eye(8)) == 0
    assert normalised_entropy(torch.ones(3, 1)) == 0
    half = torch.tensor([[0.5, 0.5, 0, 0]])
    assert normalised_entropy(half).item() == pytest.approx(math.log(2) / math.log(4))


@pytest.mark.parametrize("capacity", [0.1, 0.4, 1.0])
def test_the_fabric_equals_its_equations_for_both_ranks(capacity):
    module = part(lambda: DynamicNeuroFabric(6, 3, capacity=capacity))
    k = chosen(capacity, 5)
    assert k == {0.1: 1, 0.4: 2, 1.0: 5}[capacity]

    def equation(w, x):
        groups = [x] if x.dim() == 2 else x
        results = [equations.fabric(w, "", group, 3, k, 1e-6)[0] for group in groups]
        return results[0] if x.dim() == 2 else torch.stack(results)

    same_result_and_gradients(module, equation, normal(5, 6))
    same_result_and_gradients(module, equation, normal(2, 5, 6))


def test_one_compiled_graph_of_the_fabric_serves_all_batches():
    torch.compiler.reset()
    module = DynamicNeuroFabric(8, 2, capacity=0.3)
    compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for n in (5, 6, 10, 15):
        x = normal(n, 8, dtype=torch.float32)
        torch.testing.assert_close(compiled(x), module(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1
    torch.compiler.reset()


def test_the_documents_failing_shape_passes():
    torch.manual_seed(0)
    module = DynamicNeuroFabric(32)
    for shape in ((2, 32), (1, 32), (2, 16, 32), (1, 1, 32)):
        x = normal(*shape, dtype=torch.float32)
        y = module(x)
        assert y.shape == x.shape and y.isfinite().all() and not torch.equal(x, y)
    assert MetaAttentionKernel(32)(normal(2, 16, 32, dtype=torch.float32)).shape == (2, 16, 32)
    assert GraphDiffusionMemory(32)(normal(2, 32, dtype=torch.float32)).shape == (2, 32)


def test_depths_are_counted_and_differ_between_samples():
    module, x = part(lambda: DynamicNeuroFabric(6, 4, capacity=0.5)), normal(12, 6)
    y, depth_1B, weights_L = module.routed(x[None])
    expected, depth = equations.fabric(dict(module.named_parameters()), "", x, 4, 6, 1e-6)
    torch.testing.assert_close(y[0], expected)
    assert depth_1B[0].tolist() == depth and len(set(depth)) > 2
    shares = depth_shares(depth_1B, 4)
    assert shares.tolist() == pytest.approx([depth.count(d) / 12 for d in range(5)])
    assert weights_L.shape == (4,) and ((weights_L > 0) & (weights_L < 1)).all()


@given(seed=st.integers(0, 1000))
def test_a_sample_depends_on_its_batch_only_by_the_layers_that_it_is_left(seed):
    """Others may take a layer away; what the layers that it took make of it is its own affair."""
    module, x = part(lambda: DynamicNeuroFabric(6, 4, capacity=0.5)), normal(8, 6, seed=seed)
    with torch.no_grad():
        result, took = x[None], []
        for layer in module.layers:
            result, _, place_1K = layer(result)
            took.append(place_1K[0].tolist())
        for i in range(8):
            alone = x[None, i : i + 1]
            for layer, served in zip(module.layers, took, strict=True):
                if i in served:
                    alone, *_ = layer(alone)
            torch.testing.assert_close(result[0, i], alone[0, 0], rtol=1e-12, atol=1e-13)


def test_below_full_capacity_samples_of_a_batch_compete():
    module, x = part(lambda: DynamicNeuroFabric(6, 4, capacity=0.5)), normal(8, 6)
    alone = torch.cat([module(row[None]) for row in x])  # alone, a sample runs every layer
    assert (module(x) - alone).abs().amax(-1).max() > 0.01


def test_at_full_capacity_they_do_not_and_sequences_never_do():
    full, x = part(lambda: DynamicNeuroFabric(6, 4, capacity=1.0)), normal(8, 6)
    torch.testing.assert_close(full(x), torch.cat([full(row[None]) for row in x]))
    half, x = part(lambda: DynamicNeuroFabric(6, 4, capacity=0.5)), normal(3, 8, 6)
    torch.testing.assert_close(half(x), torch.cat([half(row[None]) for row in x]))


def test_the_order_of_the_samples_does_not_matter():
    module, x = part(lambda: DynamicNeuroFabric(6, 4, capacity=0.5)), normal(8, 6)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(module(x[order]), module(x)[order], rtol=1e-12, atol=1e-13)


def test_depth_that_is_saved_is_flops_that_are_saved():
    counted = {}
    for capacity in (0.25, 0.5, 1.0):
        module = DynamicNeuroFabric(32, 6, capacity=capacity)
        for x in (torch.zeros(16, 32), torch.zeros(2, 16, 32)):
            with FlopCounterMode(display=False) as counter:
                module(x).sum().backward()
            counted.setdefault(x.dim(), []).append(counter.get_total_flops())
    hidden = DynamicNeuroFabric(32, 6).layers[0].mlp.down.in_features
    for rank, samples in ((2, 16), (3, 32)):
        quarter, half, full = counted[rank]
        assert half - quarter == pytest.approx((full - half) / 2)
        # Of the backward pass, the first gate's and layer's share for x is not asked for.
        forward = 2 * 6 * samples * 3 * 32 * hidden
        assert full - half == pytest.approx(3 * forward / 2, rel=0.01)
