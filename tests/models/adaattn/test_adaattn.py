"""AdaAttn computes what its docstring says: against a reference of its own, and by properties."""

import dataclasses
import math

import pytest
import torch
from directions import assert_gradients_predict_the_loss
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import kernels
from models import FAMILIES, BlockOutput, ConfigurationError
from models.layers.adaptive.adaptation import PATIENCE

ADAATTN = FAMILIES["adaattn"]
CONFIG = dataclasses.replace(
    ADAATTN.presets["tiny"], dim=64, n_layers=2, max_sequence=48, refresh_every=1
)
METRICS = ("entropy", "rank", "precision", "score_error")


def chosen(model, *, ranks=True, bits=32, seed=0):
    """Give the heads ranks, bases and scales, as an analysis might have; and freeze them."""
    state, generator = model.adaptation, torch.Generator().manual_seed(seed)
    shape = state.rank_LH.shape
    if ranks:
        widths = torch.tensor(state.widths, dtype=torch.int32)
        state.rank_LH.copy_(widths[torch.randint(0, len(widths), shape, generator=generator)])
        state.factor_LH.copy_(1 + torch.rand(shape, generator=generator) / 4)
    basis = torch.randn(state.basis_LHDD.shape, generator=generator, dtype=torch.float64)
    state.basis_LHDD.copy_(torch.linalg.qr(basis)[0])
    state.bits_LH.fill_(bits)
    model.freeze()
    return model


@pytest.fixture
def model():
    return chosen(ADAATTN.materialise(CONFIG, seed=3))


@pytest.fixture
def live():
    return ADAATTN.materialise(CONFIG, seed=3)


def reference_logits(model, config, tokens_BS):
    """Compute AdaAttn with its current choices, written out plainly in FP64."""
    weights = {name: weight.detach().double() for name, weight in model.weights().items()}
    state = model.adaptation
    n_tokens, dim = tokens_BS.shape[1], config.dim // config.n_heads
    frequencies = config.rope_theta ** (-torch.arange(0, dim, 2).double() / dim)
    turns_SR = torch.polar(
        torch.ones(n_tokens, dim // 2).double(),
        torch.outer(torch.arange(n_tokens).double(), frequencies),
    )

    def norm(x, name):
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + config.norm_eps) * weights[name]

    def turn(x_BSD):
        turned = torch.complex(*x_BSD.chunk(2, -1)) * turns_SR
        return torch.cat([turned.real, turned.imag], -1)

    x_BSE = weights["embedding.weight"][tokens_BS]
    future_SS = torch.ones(n_tokens, n_tokens).triu(1).bool()
    for i in range(config.n_layers):
        block = f"blocks.{i}."
        y = norm(x_BSE, block + "attention_norm.weight")
        heads = (y @ weights[block + "attention.qkv.weight"].T).split(dim, -1)
        results = []
        for h in range(config.n_heads):
            q = turn(norm(heads[h], block + "attention.q_norm.weight"))
            k = turn(norm(heads[config.n_heads + h], block + "attention.k_norm.weight"))
            basis = state.basis_LHDD[i, h, :, : state.rank_LH[i, h]].double()
            scores = (q @ basis) @ (k @ basis).mT * state.factor_LH[i, h].double() / math.sqrt(dim)
            weight = scores.masked_fill(future_SS, -math.inf).softmax(-1)
            results.append(weight @ heads[2 * config.n_heads + h])
        x_BSE = x_BSE + torch.cat(results, -1) @ weights[block + "attention.out.weight"].T
        y = norm(x_BSE, block + "mlp_norm.weight")
        gate, up = (y @ weights[block + "mlp.gate_up.weight"].T).chunk(2, -1)
        x_BSE = x_BSE + (gate * torch.sigmoid(gate) * up) @ weights[block + "mlp.down.weight"].T
    return norm(x_BSE, "norm.weight") @ weights["embedding.weight"].T


def relative_error(actual, expected):
    return float((actual.detach().double() - expected.detach()).norm() / expected.detach().norm())


@torch.no_grad()
def test_logits_equal_the_reference_at_any_rank(model, tokens_BS):
    for parameter in model.parameters():  # gains that are not all one
        parameter.mul_(1 + 0.5 * torch.rand_like(parameter))
    expected = reference_logits(model, CONFIG, tokens_BS)
    assert relative_error(model(tokens_BS), expected) < 2e-6
    model.adaptation.rank_LH.fill_(4)
    assert relative_error(model(tokens_BS), expected) > 1e-3  # the rank does matter


@torch.no_grad()
def test_with_all_columns_and_bits_it_is_plain_attention(tokens_BS):
    """Whatever the basis, as far as rounding goes."""
    model = chosen(ADAATTN.materialise(CONFIG, seed=3), ranks=False)
    plain = ADAATTN.share(
        dataclasses.replace(CONFIG, adaptive_rank=False, adaptive_precision=False), model.weights()
    )
    kernels.reset_usage()
    expected = plain(tokens_BS)
    assert relative_error(model(tokens_BS), expected.double()) < 2e-6
    assert relative_error(expected, reference_logits(plain, CONFIG, tokens_BS)) < 2e-6


@torch.no_grad()
def test_fewer_bits_change_the_logits_a_little(model, tokens_BS):
    exact = model(tokens_BS)
    model.adaptation.bits_LH.fill_(16)
    off = relative_error(model(tokens_BS), exact.double())
    assert 1e-7 < off < 1e-3


def test_the_adaptive_operator_runs_in_every_block_and_says_why_that_way(live, tokens_BS):
    kernels.reset_usage()
    live(tokens_BS)
    used = kernels.usage()
    assert used["adaptive_attention"] == {"torch": CONFIG.n_layers}
    assert kernels.attention_usage()["adaptive"] == CONFIG.n_layers
    chosen_name, reason = kernels.reasons()["adaptive_attention"]
    assert chosen_name == "torch" and reason.startswith("triton: Triton needs a CUDA GPU")


def concentrated(model):
    """Set weights with which queries and keys lie in few directions, and look at few keys."""
    dim = CONFIG.dim // CONFIG.n_heads
    with torch.no_grad():
        for block in model.blocks:
            for norm in (block.attention.q_norm, block.attention.k_norm):
                norm.weight.fill_(0.05)
                norm.weight[: dim // 8] = norm.weight[dim // 2 : dim // 2 + dim // 8] = 3
    return model


def test_heads_whose_queries_and_keys_lie_in_few_directions_compute_with_fewer_columns(tokens_BS):
    model = concentrated(ADAATTN.materialise(CONFIG, seed=3))
    before = model(tokens_BS)
    assert model.metrics()["rank"].eq(CONFIG.dim // CONFIG.n_heads).all()
    for _ in range(PATIENCE + 1):
        after = model(tokens_BS)
    metrics = model.metrics()
    assert (metrics["rank"] < CONFIG.dim // CONFIG.n_heads).all()
    assert metrics["precision"].eq(16).all()
    assert ((metrics["entropy"] > 0) & (metrics["entropy"] < CONFIG.rank_threshold)).all()
    assert (metrics["score_error"] > 0).all()
    assert relative_error(after, before.double()) < 0.02


def test_a_call_records_what_it_was_computed_with(live, tokens_BS):
    live(tokens_BS)
    assert set(live.metrics()) == set(METRICS) == {item.name for item in ADAATTN.metrics}
    for values in live.metrics().values():
        assert values.shape == (CONFIG.n_layers, CONFIG.n_heads) and values.dtype == torch.float32
    live.adaptation.rank_LH[1, 2] = 4
    live(tokens_BS)
    assert live.metrics()["rank"][1, 2] == 4
    assert live.adaptation.rank_LH[1, 2] == 16  # random weights need all columns


def test_a_frozen_model_changes_nothing_of_itself(model, tokens_BS):
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    first, second = model(tokens_BS), model(tokens_BS)
    assert torch.equal(first, second)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
    model.freeze(False)
    model(tokens_BS)
    assert model.adaptation.step == 1


def test_the_state_is_no_part_of_the_weights_and_each_model_has_its_own(live, tokens_BS):
    assert not any("adaptation" in name or "metric" in name for name in live.weights())
    other = ADAATTN.share(CONFIG, live.weights())
    live(tokens_BS)
    assert live.adaptation.step == 1 and other.adaptation.step == 0
    half = ADAATTN.materialise(CONFIG, dtype=torch.bfloat16)
    assert half.adaptation.basis_LHDD.dtype == torch.float32


@given(position=st.integers(1, 16), seed=st.integers(0, 1000), frozen=st.booleans())
@settings(max_examples=15)
def test_a_later_token_never_changes_earlier_logits(position, seed, frozen):
    """Neither at once nor, while the model adapts, by what it then chooses."""
    results = []
    generator = torch.Generator().manual_seed(seed)
    tokens_BS = torch.randint(0, 256, (1, 17), generator=generator)
    changed_BS = tokens_BS.clone()
    changed_BS[:, position] = (tokens_BS[:, position] + 1) % 256
    model = ADAATTN.materialise(CONFIG)
    for tokens in (tokens_BS, changed_BS):
        chosen(model, bits=16)
        model.freeze(frozen)
        with torch.no_grad():
            results.append(model(tokens))
    before, after = results
    assert torch.equal(before[:, :position], after[:, :position])
    assert not torch.allclose(before[:, position], after[:, position])


@torch.no_grad()
def test_frozen_sequences_of_a_batch_do_not_touch_one_another(model, tokens_BS):
    full = model(tokens_BS)
    alone = torch.cat([model(tokens_BS[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(full, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bits", [8, 16, 32, None])
@given(pieces=st.lists(st.integers(1, 6), min_size=1, max_size=6), first_is_empty=st.booleans())
@settings(max_examples=10)
def test_decoding_in_any_pieces_gives_what_one_frozen_call_gives(bits, pieces, first_is_empty):
    """In FP64: the sums of other shapes then never lie on the other side of a rounding.

    With no bits to choose, nothing is rounded, and keys are cut by their basis.
    """
    config = dataclasses.replace(CONFIG, allow_fp8=True, adaptive_precision=bits is not None)
    model = chosen(ADAATTN.materialise(config, dtype=torch.float64, seed=7), bits=bits or 32)
    total = sum(pieces)
    tokens_BS = torch.randint(0, 256, (2, total), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        full, cache, parts, done = model(tokens_BS), model.new_cache(2, 40), [], 0
        for piece in pieces:
            at = None if done == 0 and first_is_empty else torch.tensor(done)
            parts.append(model(tokens_BS[:, done : done + piece], cache=cache, position=at))
            done += piece
    torch.testing.assert_close(torch.cat(parts, 1), full, rtol=1e-8, atol=1e-10)


@torch.no_grad()
def test_calls_with_a_cache_never_adapt(live, tokens_BS):
    cache = live.new_cache(2, 20)
    live(tokens_BS, cache=cache)
    live(tokens_BS[:, :1], cache=cache, position=torch.tensor(17))
    assert live.adaptation.step == 0 and not live.metrics()["rank"].any()
    live(tokens_BS[:, :1])  # nor is there anything to look at in one token
    assert live.adaptation.step == 0


def step(model, loss, tokens_BS, targets_BS):
    model.zero_grad()
    value = loss(tokens_BS, targets_BS)
    value.backward()
    return value.detach(), [p.grad.clone() for p in model.parameters()]


def state_of(model):
    return [buffer.clone() for buffer in (*model.adaptation.buffers(), *model.metrics().values())]


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_checkpointing_gives_the_same_gradients_while_heads_change(mode, tokens_BS, targets_BS):
    """The state moves on between a forward pass and its recomputation."""
    runs = []
    for checkpointing in ("none", mode):
        model = concentrated(ADAATTN.materialise(CONFIG, seed=3))
        model.set_checkpointing(checkpointing)
        runs.append([step(model, model.loss, tokens_BS, targets_BS) for _ in range(4)])
        runs[-1].append(state_of(model))
        assert (model.adaptation.rank_LH < 16).all()
    for first, other in zip(*runs, strict=True):
        torch.testing.assert_close(first, other, rtol=0, atol=0)


@pytest.fixture
def graphs():
    """Count the graphs that were compiled since the test began."""
    torch.compiler.reset()
    stats = torch._dynamo.utils.counters["stats"]
    before = stats["unique_graphs"]
    yield lambda: stats["unique_graphs"] - before
    torch.compiler.reset()


@pytest.mark.parametrize(("mode", "narrows"), [("none", False), ("full", True)])
def test_a_compiled_step_adapts_as_an_eager_one(mode, narrows, tokens_BS, targets_BS, graphs):
    config = dataclasses.replace(CONFIG, n_layers=1, adaptive_precision=narrows)
    runs = []
    for compiled in (False, True):
        model = concentrated(ADAATTN.materialise(config, seed=3))
        model.set_checkpointing(mode)
        loss = (
            torch.compile(model.loss, backend="aot_eager", fullgraph=True)
            if compiled
            else model.loss
        )
        runs.append([step(model, loss, tokens_BS, targets_BS) for _ in range(3)])
        runs[-1].append(state_of(model))
        assert (model.adaptation.rank_LH < 16).all()
    assert graphs() == 1
    (*steps, state), (*compiled_steps, compiled_state) = runs
    torch.testing.assert_close(state, compiled_state, rtol=1e-4, atol=1e-5)
    for (loss, grads), (other_loss, other_grads) in zip(steps, compiled_steps, strict=True):
        torch.testing.assert_close(loss, other_loss)
        if not narrows:  # otherwise what is rounded to FP16 may be rounded the other way
            torch.testing.assert_close(grads, other_grads, rtol=1e-3, atol=1e-6)


def test_decoding_compiles_whole_and_once_for_all_positions(model, tokens_BS, graphs):
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    cache, eager = model.new_cache(2, 20), model.new_cache(2, 20)
    with torch.no_grad():
        for i in range(4):
            token_B1, at = tokens_BS[:, i : i + 1], torch.tensor(i)
            expected = model(token_B1, cache=eager, position=at)
            torch.testing.assert_close(run(token_B1, cache=cache, position=at), expected)
    assert graphs() == 1


def test_the_gradient_predicts_how_the_loss_changes(tokens_BS, targets_BS):
    model = chosen(ADAATTN.materialise(CONFIG, dtype=torch.float64, seed=5))
    assert_gradients_predict_the_loss(model, tokens_BS, targets_BS)


def test_training_on_one_batch_learns_it_while_heads_adapt(tokens_BS):
    config = dataclasses.replace(CONFIG, rank_estimation="energy", rank_threshold=0.6)
    model = ADAATTN.materialise(config, seed=5)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(50):
        optimizer.zero_grad()
        loss = model.loss(tokens_BS[:, :-1], tokens_BS[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    assert (model.metrics()["rank"] < 16).any()


@pytest.mark.parametrize("precision", ["amp", "half"])
def test_bfloat16_stays_close_to_the_reference(tokens_BS, targets_BS, precision):
    dtype = torch.bfloat16 if precision == "half" else torch.float32
    model = ADAATTN.materialise(CONFIG, dtype=dtype, seed=5)
    model.adapting = False
    expected = reference_logits(model, CONFIG, tokens_BS)
    model.adapting = True
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp"):
        logits_BSV = model(tokens_BS)
        loss = model.loss(tokens_BS, targets_BS)
    assert logits_BSV.dtype == torch.bfloat16
    assert relative_error(logits_BSV, expected) < 0.03
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name
    assert model.adaptation.step == 2
    assert all(buffer.isfinite().all() for buffer in model.adaptation.buffers())


@pytest.mark.parametrize("preset", ADAATTN.presets)
def test_the_formula_counts_the_parameters_of_every_preset(preset):
    config = ADAATTN.presets[preset]
    counted = sum(parameter.numel() for parameter in ADAATTN.build(config).parameters())
    assert ADAATTN.parameter_count(config) == counted
    expected = {
        "tiny": 824_704,
        "small": 45_030_656,
        "base": 123_588_864,
        "medium": 350_408_704,
        "large": 1_317_380_096,
    }
    assert counted == expected[preset]


def test_flops_equal_what_torch_counts(tokens_BS):
    model = chosen(ADAATTN.materialise(CONFIG, seed=3))
    future = 4 * 2 * CONFIG.n_layers * CONFIG.dim * 17 * 16 // 2  # above the diagonal
    with (
        kernels.using(adaptive_attention="manual"),
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
    ):
        model(tokens_BS)
    assert counter.get_total_flops() == ADAATTN.flops(CONFIG, 2, 17) + future


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"n_layers": 0}, "adaattn: n_layers = 0 is outside of 1 to 1024"),
        ({"n_heads": 5}, "adaattn: dim = 128 cannot be divided into n_heads = 5 heads"),
        ({"dim": 36, "n_heads": 4}, "dim / n_heads = 9 is odd"),
        ({"rank_ratio": 0}, "adaattn: rank_ratio = 0.0 is outside of 0.01 to 1"),
        ({"rank_threshold": 1.5}, "adaattn: rank_threshold = 1.5 is outside of 0.01 to 1"),
        ({"rank_estimation": "random"}, "rank_estimation = 'random' is not one of ('entropy', "),
        ({"refresh_every": 0}, "adaattn: refresh_every = 0 is outside of 1 to 1000000"),
        ({"default_precision": "int4"}, "default_precision = 'int4' is not one of ('inputs', "),
        ({"default_precision": "fp8"}, "default_precision = 'fp8' needs allow_fp8 = True"),
    ],
)
def test_what_cannot_be_built_is_refused_by_a_sentence(overrides, sentence):
    with pytest.raises(ConfigurationError) as caught:
        ADAATTN.configure("tiny", overrides)
    assert sentence in str(caught.value)


def test_a_block_by_itself_is_exact_and_measures_nothing(model):
    x_BSE = torch.randn(1, 5, CONFIG.dim)
    assert not isinstance(model.blocks[0](x_BSE), BlockOutput)
