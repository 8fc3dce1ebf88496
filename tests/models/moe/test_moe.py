"""The mixture-of-experts family against a loop over experts, and by properties."""

import dataclasses
import math
from decimal import Decimal

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from moe_reference import mixture, reference_loss
from torch.utils.flop_counter import FlopCounterMode

import kernels
from models import FAMILIES, ConfigurationError
from models.layers.mixture import MixtureOfExperts, StreamBuffer, within_capacity
from models.layers.token_fraction import TokenFraction
from models.moe import active_parameters

MOE = FAMILIES["moe"]
SMALL = dataclasses.replace(
    MOE.presets["tiny"],
    input_dim=16,
    hidden_dim=12,
    n_layers=2,
    num_experts=5,
    n_heads=2,
    n_kv_heads=1,
    max_sequence=32,
)
FORMS = {
    "topk": {},
    "one expert": {"num_experts": 1, "top_k": 1},
    "not renormalised": {"renormalise": False, "top_k": 3},
    "dense": {"gating": "dense"},
    "noisy": {"gating": "noisy_topk"},
    "shared": {"num_shared_experts": 2, "tie_embeddings": False},
    "capacity": {"capacity_factor": 0.75},
    "noisy with capacity": {"gating": "noisy_topk", "capacity_factor": 0.75},
}


def small(seed=5, dtype=torch.float64, **fields):
    """Make a model with gains that are not all one and a router with clear preferences."""
    config = dataclasses.replace(SMALL, **fields)
    model = MOE.materialise(config, dtype=dtype, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(dtype)
            parameter.add_(noise, alpha=0.5 if "router" in name or "norm" in name else 0.1)
    return config, model


def gradients(model, loss, *batch):
    model.zero_grad()
    value = loss(*batch)
    value.backward()
    return [value.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("form", FORMS)
def test_loss_and_all_gradients_equal_a_loop_over_experts(form, tokens_BS, targets_BS):
    config, model = small(**FORMS[form])
    weights = {n: w.detach().clone().requires_grad_() for n, w in model.weights().items()}
    expected, load = reference_loss(config, weights, tokens_BS, targets_BS, seed=8)
    torch.manual_seed(8)
    loss = model.loss(tokens_BS, targets_BS)
    loss.backward()
    expected.backward()
    # The rotary tables are in FP32.
    torch.testing.assert_close(loss, expected, rtol=1e-7, atol=0)
    torch.testing.assert_close(model.metrics()["expert_load"], load.float())
    for name, parameter in model.named_parameters():
        error, size = (parameter.grad - weights[name].grad).norm(), weights[name].grad.norm()
        assert error <= 1e-5 * size + 1e-13, name  # of one expert, the router's is zero


def test_a_layer_by_itself_equals_the_loop_to_the_last_digits():
    torch.manual_seed(0)
    layer = MixtureOfExperts(SMALL).double()
    x_BSD = torch.randn(2, 9, 16, dtype=torch.float64)
    part = {f"mixture.{name}": weight for name, weight in layer.named_parameters()}
    expected, balance, _ = mixture(SMALL, part, x_BSD)
    actual = layer(x_BSD)
    torch.testing.assert_close(actual.x, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(actual.loss, SMALL.load_balance_weight * balance)


@given(position=st.integers(0, 16), seed=st.integers(0, 1000), form=st.sampled_from(list(FORMS)))
def test_a_later_token_never_changes_earlier_logits(position, seed, form):
    _, model = small(**FORMS[form])
    generator = torch.Generator().manual_seed(seed)
    tokens_BS = torch.randint(0, 256, (1, 17), generator=generator)
    changed_BS = tokens_BS.clone()
    changed_BS[:, position] = (tokens_BS[:, position] + 1) % 256
    logits = []
    for batch_BS in (tokens_BS, changed_BS):
        torch.manual_seed(3)  # in training mode, so that noise and capacity are at work
        with torch.no_grad():
            logits.append(model(batch_BS))
    before, after = logits
    torch.testing.assert_close(before[:, :position], after[:, :position], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(before[:, position], after[:, position], rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_does_not_depend_on_the_others_of_its_batch(form, tokens_BS):
    _, model = small(**FORMS[form])
    model.train("noisy" not in form)  # two calls draw two noises
    with torch.no_grad():
        together = model(tokens_BS)
        alone = torch.cat([model(tokens_BS[:1]), model(tokens_BS[1:])])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_decoding_in_pieces_gives_the_logits_of_the_whole(form, tokens_BS):
    _, model = small(**FORMS[form])
    model.eval()
    cache = model.new_cache(2, 17)
    with torch.no_grad():
        whole_BSV = model(tokens_BS)
        parts = [model(tokens_BS[:, :6], cache=cache)]
        for start, end in ((6, 7), (7, 8), (8, 13), (13, 17)):
            piece_BS = tokens_BS[:, start:end]
            parts.append(model(piece_BS, cache=cache, position=torch.tensor(start)))
    torch.testing.assert_close(torch.cat(parts, 1), whole_BSV, rtol=1e-10, atol=1e-12)


def test_noise_is_drawn_from_the_seed_in_training_only(tokens_BS, targets_BS):
    _, model = small(gating="noisy_topk")
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model.loss(tokens_BS, targets_BS).item())
    assert losses[0] == losses[1] != losses[2]
    model.eval()
    state = torch.get_rng_state()
    quiet = [model.loss(tokens_BS, targets_BS).item() for _ in range(2)]
    assert quiet[0] == quiet[1]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_noisy_layer_by_itself_draws_its_own_noise():
    torch.manual_seed(0)
    layer = MixtureOfExperts(dataclasses.replace(SMALL, gating="noisy_topk"))
    x_BSD = torch.randn(1, 9, 16)
    assert not torch.equal(layer(x_BSD).x, layer(x_BSD).x)
    layer.eval()
    assert torch.equal(layer(x_BSD).x, layer(x_BSD).x)


@pytest.mark.parametrize("form", ["topk", "noisy with capacity", "shared"])
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_checkpointing_gives_the_same_gradients(form, mode, tokens_BS, targets_BS):
    _, model = small(**FORMS[form])
    torch.manual_seed(4)
    expected = gradients(model, model.loss, tokens_BS, targets_BS)
    model.set_checkpointing(mode)
    torch.manual_seed(4)
    again = gradients(model, model.loss, tokens_BS, targets_BS)
    assert model.checkpointed_blocks == (2 if mode == "full" else 1)
    for actual, other in zip(again, expected, strict=True):
        assert torch.equal(actual, other)


@pytest.mark.parametrize("form", ["topk", "noisy with capacity"])
def test_the_loss_and_its_gradients_compile_whole(form, tokens_BS, targets_BS):
    torch.compiler.reset()
    _, model = small(dtype=torch.float32, n_layers=1, **FORMS[form])
    model.set_checkpointing("full")
    torch.manual_seed(4)
    expected = gradients(model, model.loss, tokens_BS, targets_BS)
    model.metrics()["expert_load"].zero_()
    compiled = torch.compile(model.loss, backend="aot_eager", fullgraph=True)
    torch.manual_seed(4)
    torch.testing.assert_close(gradients(model, compiled, tokens_BS, targets_BS), expected)
    assert model.metrics()["expert_load"].sum().item() == pytest.approx(1)
    torch.compiler.reset()


def test_a_decode_step_compiles_whole(tokens_BS):
    torch.compiler.reset()
    _, model = small(dtype=torch.float32, n_layers=1)
    model.eval()
    cache, other = model.new_cache(2, 17), model.new_cache(2, 17)
    step = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for item in (cache, other):
            model(tokens_BS[:, :6], cache=item)
        position = torch.tensor(6)
        expected = model(tokens_BS[:, 6:7], cache=cache, position=position)
        actual = step(tokens_BS[:, 6:7], cache=other, position=position)
    torch.testing.assert_close(actual, expected)
    torch.compiler.reset()


def test_training_on_one_batch_learns_it(tokens_BS):
    model = MOE.materialise(dataclasses.replace(SMALL, input_dim=64, hidden_dim=64), seed=5)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    inputs_BS, targets_BS = tokens_BS[:, :-1], tokens_BS[:, 1:]
    balance = SMALL.n_layers * SMALL.load_balance_weight
    assert model.loss(inputs_BS, targets_BS).item() == pytest.approx(
        math.log(256) + balance, abs=0.1
    )
    for _ in range(50):
        optimizer.zero_grad()
        loss = model.loss(inputs_BS, targets_BS)
        loss.backward()
        optimizer.step()
    assert loss.item() - balance < 0.1


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_balancing_loss_evens_out_a_load_that_is_not(weight):
    config = dataclasses.replace(SMALL, num_experts=8, load_balance_weight=weight)
    torch.manual_seed(0)
    layer = MixtureOfExperts(config)
    x_BSD = torch.randn(4, 32, 16)
    with torch.no_grad():
        layer.router.weight[:2] += 0.5
        x_BSD += 0.5  # two experts are liked by most
    start = layer(x_BSD).measured
    assert start["load_balance"] > 1.5 and start["load_entropy"] < 0.85
    if not weight:
        assert layer(x_BSD).loss is None
        return
    optimizer = torch.optim.Adam([layer.router.weight], 0.02)
    for _ in range(150):
        optimizer.zero_grad()
        layer(x_BSD).loss.backward()
        optimizer.step()
    end = layer(x_BSD).measured
    assert end["load_balance"].item() == pytest.approx(1, abs=0.005)
    assert end["load_entropy"] > 0.995


def test_the_balance_is_one_where_all_are_used_alike_and_highest_where_one_is():
    layer = MixtureOfExperts(dataclasses.replace(SMALL, num_experts=4, top_k=1))
    x_BSD = torch.ones(1, 8, 16)
    with torch.no_grad():
        layer.router.weight.zero_()
        even = layer(x_BSD).measured  # by probability; of equals the first is chosen
        layer.router.weight[2] = 10.0
        single = layer(x_BSD).measured
    assert even["load_balance"].item() == pytest.approx(1)
    assert single["load_balance"].item() == pytest.approx(4)
    assert single["expert_load"].tolist() == [0, 0, 1, 0]
    assert single["load_entropy"].item() == 0


@given(
    seed=st.integers(0, 99),
    n_experts=st.integers(1, 6),
    k=st.integers(1, 6),
    factor=st.decimals("0.1", "3", places=2),
)
@example(seed=0, n_experts=1, k=1, factor=Decimal("0.28"))  # 21, which floats overshoot
def test_an_expert_keeps_its_first_choices_up_to_its_capacity(seed, n_experts, k, factor):
    k = min(k, n_experts)
    generator = torch.Generator().manual_seed(seed)
    index_BSK = torch.rand(2, 75, n_experts, generator=generator).argsort(-1)[..., :k]
    kept_BSK = within_capacity(index_BSK, n_experts, TokenFraction.nearest(float(factor)))
    capacity = math.ceil(factor * 75 * k / n_experts)
    for before, after in zip(index_BSK.flatten(1), kept_BSK.flatten(1), strict=True):
        taken = [0] * n_experts
        for e, result in zip(before.tolist(), after.tolist(), strict=True):
            taken[e] += 1
            assert result == (e if taken[e] <= capacity else -1)


def test_the_share_of_dropped_choices_is_measured(tokens_BS):
    config, model = small(capacity_factor=0.5)
    model(tokens_BS)
    dropped = model.metrics()["dropped_share"]
    capacity = math.ceil(0.5 * 17 * config.top_k / config.num_experts)
    least = 1 - capacity * config.num_experts / (17 * config.top_k)
    assert (dropped >= least - 1e-6).all() and (dropped < 1).all()
    model.eval()
    model(tokens_BS)
    assert not model.metrics()["dropped_share"].any()


@pytest.mark.parametrize("switch", ["in_place", "reuse_buffers"])
def test_writing_over_memory_changes_no_result_and_is_refused_in_training(switch, tokens_BS):
    config, plain = small(dtype=torch.float32)
    model = MOE.share(dataclasses.replace(config, **{switch: True}), plain.weights()).eval()
    plain.eval()
    for context in (torch.inference_mode, torch.no_grad):
        with context():
            assert torch.equal(model(tokens_BS), plain(tokens_BS))
            assert torch.equal(model(tokens_BS[:1, :3]), plain(tokens_BS[:1, :3]))
    with pytest.raises(
        ConfigurationError, match=f"moe: {switch} overwrites values that a backward"
    ):
        model.loss(tokens_BS, tokens_BS)


def test_the_stream_stays_in_one_buffer_and_in_place_makes_no_third_tensor(tokens_BS):
    places = {}
    for switch in ("", "in_place", "reuse_buffers"):
        config, plain = small(dtype=torch.float32)
        fields = {switch: True} if switch else {}
        model = MOE.share(dataclasses.replace(config, **fields), plain.weights()).eval()
        streams, results = [], []
        for block in model.blocks:
            block.register_forward_hook(lambda *a, to=streams: to.append(a[-1].x.data_ptr()))
            block.mixture.register_forward_hook(
                lambda *a, to=results: to.append(a[-1].x.data_ptr())
            )
        with torch.no_grad():
            outputs = [model(tokens_BS), model(tokens_BS)]
        assert outputs[0].data_ptr() != outputs[1].data_ptr()  # what is returned is the caller's
        places[switch] = (streams, results)
    assert len(set(places["reuse_buffers"][0])) == 1
    assert places["in_place"][0] == places["in_place"][1]
    assert all(a != b for a, b in zip(*places[""], strict=True))


def test_a_buffer_that_was_outgrown_stays_for_the_graphs_that_write_to_it():
    buffer, few, many = StreamBuffer(), torch.ones(3), torch.ones(5)
    address = buffer.total(few, few).data_ptr()
    assert buffer.total(many, many).tolist() == [2.0] * 5
    assert buffer.total(few, few).data_ptr() == address


def test_bfloat16_stays_close_and_the_router_computes_in_single_precision(tokens_BS, targets_BS):
    config, model = small(dtype=torch.bfloat16)
    wide = {n: w.detach().double() for n, w in model.weights().items()}
    expected, _ = reference_loss(config, wide, tokens_BS, targets_BS)
    loss = model.loss(tokens_BS, targets_BS)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=0.03)
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    routed = {}
    model.blocks[0].mixture.router.register_forward_hook(
        lambda *a: routed.update(weight=a[-1][0], mean=a[-1][3])
    )
    with torch.autocast("cpu", torch.bfloat16):
        model(tokens_BS)
    assert routed["weight"].dtype == routed["mean"].dtype == torch.float32


def counted_flops(work):
    with kernels.using(attention="manual"), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_flops_are_those_of_the_experts_that_a_token_is_sent_to(tokens_BS):
    counted = {}
    for form in ({"top_k": 1}, {"top_k": 2}, {"top_k": 4}, {"gating": "dense"}):
        config = dataclasses.replace(SMALL, num_shared_experts=1, **form)
        model = MOE.materialise(config).eval()
        with torch.no_grad():
            flops = counted_flops(lambda m=model: m(tokens_BS))
        # Attention by hand also computes the pairs above the diagonal.
        future = 4 * 2 * config.n_layers * config.input_dim * 17 * 16 // 2
        assert flops == MOE.flops(config, 2, 17) + future
        counted[config.active_experts] = flops
    per_expert = 2 * 2 * 17 * SMALL.n_layers * 3 * SMALL.input_dim * SMALL.hidden_dim
    assert counted[2] - counted[1] == per_expert
    assert counted[5] - counted[4] == per_expert


@pytest.mark.parametrize("preset", MOE.presets)
def test_the_formula_counts_the_parameters_of_every_preset(preset):
    config = MOE.presets[preset]
    model = MOE.build(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert MOE.parameter_count(config) == counted
    experts = sum(p.numel() for b in model.blocks for p in (b.mixture.gate_up, b.mixture.down))
    idle = experts * (config.num_experts - config.top_k) // config.num_experts
    assert active_parameters(config) == counted - idle


def test_the_largest_preset_is_as_large_as_published():
    """OLMoE (arXiv 2409.02060), table 1: 6.9B of which 1.3B are active; less its QK norms."""
    config = MOE.presets["large"]
    assert MOE.parameter_count(config) == 6_919_161_856 - 16 * 2 * 2048
    assert active_parameters(config) == pytest.approx(1.28e9, rel=0.005)


@given(
    num_experts=st.integers(1, 9),
    top_k=st.integers(1, 9),
    gating=st.sampled_from(["topk", "noisy_topk", "dense"]),
    num_shared_experts=st.integers(0, 3),
    hidden_dim=st.integers(1, 40),
    n_layers=st.integers(1, 4),
    tie_embeddings=st.booleans(),
)
def test_any_configuration_is_counted_or_refused_by_a_sentence(**fields):
    try:
        config = MOE.configure("tiny", fields)
    except ConfigurationError as mistake:
        assert "more than num_experts" in str(mistake)
        assert fields["gating"] != "dense" and fields["top_k"] > fields["num_experts"]
        return
    counted = sum(parameter.numel() for parameter in MOE.build(config).parameters())
    assert MOE.parameter_count(config) == counted


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"top_k": 9}, "moe: top_k = 9 is more than num_experts = 8; a token cannot choose"),
        ({"top_k": 0}, "moe: top_k = 0 is outside of 1 to 512"),
        ({"num_experts": -1}, "moe: num_experts = -1 is outside of 1 to 512"),
        ({"hidden_dim": 0}, "moe: hidden_dim = 0 is outside of 1"),
        ({"gating": "best"}, "moe: gating = 'best' is not one of ('topk', 'noisy_topk', 'dense')"),
        ({"capacity_factor": -1}, "moe: capacity_factor = -1"),
        ({"gating": "dense", "capacity_factor": 1}, "has no effect with gating = 'dense'"),
        ({"output_dim": 32}, "moe: output_dim = 32 differs from input_dim = 64, but a language"),
        ({"n_heads": 5}, "moe: input_dim = 64 cannot be divided into n_heads = 5 heads"),
        ({"n_kv_heads": 3}, "moe: n_heads = 4 is not a multiple of n_kv_heads = 3"),
        ({"input_dim": 36}, "moe: input_dim / n_heads = 9 is odd"),
        ({"in_place": True, "reuse_buffers": True}, "both decide where residual additions write"),
    ],
)
def test_what_cannot_be_built_is_refused_by_a_sentence(overrides, sentence):
    with pytest.raises(ConfigurationError) as caught:
        MOE.configure("tiny", overrides)
    assert sentence in str(caught.value)
