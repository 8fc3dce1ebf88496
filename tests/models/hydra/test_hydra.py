"""HYDRA computes what its docstring says: against a reference of its own, and by properties."""

import dataclasses
import math

import pytest
import torch
from directions import assert_gradients_predict_the_loss
from hypothesis import given
from hypothesis import strategies as st

from models import FAMILIES, ConfigurationError
from models.layers.basic import mlp_width

HYDRA = FAMILIES["hydra"]


def reference_logits(config, weights, tokens_BS):
    """Compute HYDRA written out plainly in FP64; rotary as complex multiplication."""
    weights = {name: weight.detach().double() for name, weight in weights.items()}
    n_tokens, head_dim = tokens_BS.shape[1], config.dim // config.n_heads
    frequencies = config.rope_theta ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    turns_SR = torch.polar(
        torch.ones(n_tokens, head_dim // 2).double(),
        torch.outer(torch.arange(n_tokens).double(), frequencies),
    )

    def norm(x, name):
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return x / torch.sqrt(mean_square + config.norm_eps) * weights[name]

    def turn(x_BSD):
        first, second = x_BSD.chunk(2, -1)
        turned = torch.complex(first, second) * turns_SR
        return torch.cat([turned.real, turned.imag], -1)

    x_BSE = weights["embedding.weight"][tokens_BS]
    future_SS = torch.ones(n_tokens, n_tokens).triu(1).bool()
    for i in range(config.n_layers):
        block = f"blocks.{i}."
        y = norm(x_BSE, block + "attention_norm.weight")
        heads = (y @ weights[block + "attention.qkv.weight"].T).split(head_dim, -1)
        results = []
        for h in range(config.n_heads):
            group = h * config.n_kv_heads // config.n_heads
            q = turn(heads[h])
            k = turn(heads[config.n_heads + group])
            v = heads[config.n_heads + config.n_kv_heads + group]
            scores = q @ k.transpose(-1, -2) / math.sqrt(head_dim)
            results.append(scores.masked_fill(future_SS, -math.inf).softmax(-1) @ v)
        x_BSE = x_BSE + torch.cat(results, -1) @ weights[block + "attention.out.weight"].T
        y = norm(x_BSE, block + "mlp_norm.weight")
        gate, up = (y @ weights[block + "mlp.gate_up.weight"].T).chunk(2, -1)
        x_BSE = x_BSE + (gate * torch.sigmoid(gate) * up) @ weights[block + "mlp.down.weight"].T
    head = weights.get("head.weight", weights["embedding.weight"])
    return norm(x_BSE, "norm.weight") @ head.T


def relative_error(actual, expected):
    return float((actual.detach().double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_logits_equal_the_reference(config, tokens_BS, tie_embeddings, n_kv_heads):
    config = dataclasses.replace(config, tie_embeddings=tie_embeddings, n_kv_heads=n_kv_heads)
    model = HYDRA.materialise(config, seed=5)
    with torch.no_grad():
        for parameter in model.parameters():  # gains that are not all one
            parameter.mul_(1 + 0.5 * torch.rand_like(parameter))
        expected = reference_logits(config, model.weights(), tokens_BS)
        assert relative_error(model(tokens_BS), expected) < 2e-6


def test_loss_equals_the_mean_cross_entropy_of_the_reference(model, config, tokens_BS, targets_BS):
    logits_BSV = reference_logits(config, model.weights(), tokens_BS)
    expected = -logits_BSV.log_softmax(-1).gather(-1, targets_BS[..., None]).mean()
    assert model.loss(tokens_BS, targets_BS).item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_gradient_predicts_how_the_loss_changes(config, tokens_BS, targets_BS):
    model = HYDRA.materialise(config, dtype=torch.float64, seed=5)
    assert_gradients_predict_the_loss(model, tokens_BS, targets_BS)


@given(position=st.integers(0, 16), seed=st.integers(0, 1000))
def test_a_later_token_never_changes_earlier_logits(position, seed):
    config = dataclasses.replace(HYDRA.presets["tiny"], dim=32, n_layers=2)
    model = HYDRA.materialise(config)
    generator = torch.Generator().manual_seed(seed)
    tokens_BS = torch.randint(0, 256, (1, 17), generator=generator)
    changed_BS = tokens_BS.clone()
    changed_BS[:, position] = (tokens_BS[:, position] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens_BS), model(changed_BS)
    assert torch.equal(before[:, :position], after[:, :position])
    assert not torch.allclose(before[:, position], after[:, position])


def test_grouped_heads_equal_heads_that_were_copied_out(config, tokens_BS):
    grouped = HYDRA.materialise(config, seed=5)
    expanded_config = dataclasses.replace(config, n_kv_heads=config.n_heads)
    expanded = HYDRA.materialise(expanded_config, seed=6)
    head_dim, n_heads = config.dim // config.n_heads, config.n_heads
    weights = {name: weight.detach().clone() for name, weight in grouped.weights().items()}
    copies = n_heads // config.n_kv_heads
    for name in [name for name in weights if name.endswith("qkv.weight")]:
        rows = weights[name].unflatten(0, (-1, head_dim))
        q, k, v = rows.split((n_heads, config.n_kv_heads, config.n_kv_heads))
        k, v = (item.repeat_interleave(copies, 0) for item in (k, v))
        weights[name] = torch.cat([q, k, v]).flatten(0, 1)
    expanded.load_state_dict(weights)
    torch.testing.assert_close(grouped(tokens_BS), expanded(tokens_BS), rtol=1e-5, atol=1e-6)


def test_training_on_one_batch_learns_it(config, tokens_BS):
    model = HYDRA.materialise(config, seed=5)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    inputs_BS, targets_BS = tokens_BS[:, :-1], tokens_BS[:, 1:]
    first = model.loss(inputs_BS, targets_BS).item()
    assert first == pytest.approx(math.log(256), abs=0.1)  # nothing known yet
    for _ in range(50):
        optimizer.zero_grad()
        loss = model.loss(inputs_BS, targets_BS)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize("precision", ["amp", "half"])
def test_bfloat16_stays_close_to_the_reference(config, tokens_BS, targets_BS, precision):
    dtype = torch.bfloat16 if precision == "half" else torch.float32
    model = HYDRA.materialise(config, dtype=dtype, seed=5)
    expected = reference_logits(config, model.weights(), tokens_BS)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp"):
        logits_BSV = model(tokens_BS)
        loss = model.loss(tokens_BS, targets_BS)
    assert logits_BSV.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert relative_error(logits_BSV, expected) < 0.03
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == parameter.dtype, name
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_the_linears_that_write_to_the_stream_start_smaller():
    config = HYDRA.presets["tiny"]
    weights = HYDRA.materialise(config).weights()
    scaled = 0.02 / math.sqrt(2 * config.n_layers)
    for name, weight in weights.items():
        if "norm" in name:
            assert torch.equal(weight.detach(), torch.ones_like(weight)), name
            continue
        expected = scaled if name.endswith(("out.weight", "down.weight")) else 0.02
        assert weight.std().item() == pytest.approx(expected, rel=0.03), name
        assert abs(weight.mean().item()) < 0.05 * expected, name


@pytest.mark.parametrize("preset", HYDRA.presets)
def test_the_formula_counts_the_parameters_of_every_preset(preset):
    config = HYDRA.presets[preset]
    counted = sum(parameter.numel() for parameter in HYDRA.build(config).parameters())
    print(f"hydra {preset}: {counted:,} parameters")
    assert HYDRA.parameter_count(config) == counted


@given(
    head_dim=st.integers(1, 20).map(lambda n: 2 * n),
    n_kv_heads=st.integers(1, 5),
    copies=st.integers(1, 4),
    n_layers=st.integers(1, 5),
    mlp_ratio=st.floats(0.25, 16),
    vocabulary=st.integers(256, 3000),
    vocabulary_multiple=st.sampled_from([1, 8, 64, 128]),
    tie_embeddings=st.booleans(),
)
def test_the_formula_counts_the_parameters_of_any_configuration(
    head_dim, n_kv_heads, copies, **fields
):
    n_heads = n_kv_heads * copies
    dim = head_dim * n_heads
    if dim < 8:
        return
    overrides = {"dim": dim, "n_heads": n_heads, "n_kv_heads": n_kv_heads, **fields}
    config = HYDRA.configure("tiny", overrides)
    counted = sum(parameter.numel() for parameter in HYDRA.build(config).parameters())
    assert HYDRA.parameter_count(config) == counted


def test_the_published_feed_forward_width_fits_the_tiles():
    assert mlp_width(2048, 2.67) == 5504
    assert mlp_width(768, 2.67) == 2048
    assert mlp_width(8, 0.25) == 8


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"n_layers": 0}, "hydra: n_layers = 0 is outside of 1 to 1024"),
        ({"n_heads": 5}, "hydra: dim = 128 cannot be divided into n_heads = 5 heads"),
        ({"n_kv_heads": 3}, "n_heads = 4 is not a multiple of n_kv_heads = 3"),
        ({"dim": 36, "n_heads": 4}, "dim / n_heads = 9 is odd"),
        ({"dim": 10**9}, "dim = 1000000000 is outside of 8 to 65536"),
        ({"vocabulary": 100}, "vocabulary = 100 is outside of 256"),
        ({"vocabulary_multiple": 7}, "vocabulary_multiple = 7 is not one of (1, 8, 64, 128)"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused_by_a_sentence(overrides, sentence):
    with pytest.raises(ConfigurationError) as caught:
        HYDRA.configure("tiny", overrides)
    assert sentence in str(caught.value)
