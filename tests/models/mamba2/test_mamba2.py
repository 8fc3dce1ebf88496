"""The Mamba-2 hybrid computes what its docstring says: against a recurrence, and by properties."""

import dataclasses
import math

import mamba2_reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning import trained

from models import FAMILIES, ConfigurationError

MAMBA2 = FAMILIES["mamba2"]
SMALL = dataclasses.replace(
    MAMBA2.presets["tiny"],
    dim=32,
    n_layers=3,
    head_dim=16,
    d_state=8,
    n_groups=2,
    n_heads=4,
    n_kv_heads=2,
    max_sequence=96,
)


def tokens(batch, sequence, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, sequence), generator=generator)


def scattered(config, seed=5):
    """Make a model in FP64 with weights away from their initial values: gates, gains, D."""
    model = MAMBA2.materialise(config, dtype=torch.float64, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.mul_(1 + 0.5 * noise).add_(0.3 * (noise - 0.5))
    return model


def relative_error(actual, expected):
    return float((actual.double() - expected).detach().norm() / expected.detach().norm())


VARIANTS = [
    {},
    {"attention_every": 0},
    {"attention_every": 1, "n_kv_heads": 1},
    {"n_groups": 1, "d_conv": 2, "tie_embeddings": True},
    {"n_groups": 4, "expand": 3, "head_dim": 8},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_logits_and_gradients_equal_the_recurrence(variant):
    config = dataclasses.replace(SMALL, n_layers=2, **variant)
    model, tokens_BS = scattered(config), tokens(2, 67)  # more than one chunk of the scan
    weights = dict(model.named_parameters())
    expected = mamba2_reference.logits(config, weights, tokens_BS)
    actual = model(tokens_BS)
    assert relative_error(actual, expected) < 1e-12
    upstream = torch.randn(expected.shape, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, list(weights.values()), upstream)
    result = torch.autograd.grad(actual, list(weights.values()), upstream)
    for name, first, other in zip(weights, result, wanted, strict=True):
        assert other.any(), name
        assert relative_error(first, other) < 1e-9, name


def test_single_precision_and_bfloat16_stay_close_to_the_recurrence():
    tokens_BS = tokens(2, 67)
    model = MAMBA2.materialise(SMALL, seed=5)
    weights = {name: weight.double() for name, weight in model.named_parameters()}
    expected = mamba2_reference.logits(SMALL, weights, tokens_BS).detach()
    assert relative_error(model(tokens_BS), expected) < 2e-6
    half = MAMBA2.materialise(SMALL, dtype=torch.bfloat16, seed=5)
    for narrow, amp in ((model, True), (half, False)):
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            logits_BSV = narrow(tokens_BS)
            loss = narrow.loss(tokens_BS, tokens_BS)
        assert logits_BSV.dtype == torch.bfloat16 and loss.dtype == torch.float32
        assert relative_error(logits_BSV, expected) < 0.03
        loss.backward()
        for name, parameter in narrow.named_parameters():
            assert parameter.grad.dtype == parameter.dtype, name
            assert parameter.grad.isfinite().all() and parameter.grad.any(), name


@given(position=st.integers(0, 66), seed=st.integers(0, 1000), attention_every=st.integers(0, 2))
def test_a_later_token_never_changes_earlier_logits(position, seed, attention_every):
    config = dataclasses.replace(SMALL, n_layers=2, attention_every=attention_every)
    model, tokens_BS = scattered(config), tokens(1, 67, seed)
    changed_BS = tokens_BS.clone()
    changed_BS[:, position] = (tokens_BS[:, position] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens_BS), model(changed_BS)
    assert torch.equal(before[:, :position], after[:, :position])
    assert not torch.allclose(before[:, position], after[:, position])


def test_a_sequence_does_not_see_the_others_of_its_batch():
    model, tokens_BS = scattered(SMALL), tokens(3, 20)
    with torch.no_grad():
        together = model(tokens_BS)
        for row in range(3):
            alone = model(tokens_BS[row : row + 1])[0]
            torch.testing.assert_close(together[row], alone, rtol=1e-11, atol=1e-11)


def test_a_seed_decides_everything():
    config, tokens_BS = SMALL, tokens(2, 17)
    first, second, other = (MAMBA2.materialise(config, seed=seed) for seed in (3, 3, 4))
    losses = [model.loss(tokens_BS, tokens_BS) for model in (first, second, other)]
    assert torch.equal(losses[0], losses[1]) and not torch.equal(losses[0], losses[2])
    for loss in losses[:2]:
        loss.backward()
    for item, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(item.grad, two.grad)


def test_everything_starts_as_published():
    config = dataclasses.replace(MAMBA2.presets["tiny"], dim=256, head_dim=2, d_state=64)
    weights = MAMBA2.materialise(config, dtype=torch.float64).weights()
    inner, layers = 512, config.n_layers
    for index in range(layers):
        mixer = {
            name.partition("mixer.")[2]: weight.detach()
            for name, weight in weights.items()
            if name.startswith(f"blocks.{index}.mixer.")
        }
        step = torch.nn.functional.softplus(mixer["dt_bias"])
        share = (step.log() - math.log(1e-3)) / math.log(100)  # log-uniform in 0.001 to 0.1
        decay = (mixer["A_log"].exp() - 1) / 15  # uniform in 1 to 16
        taps = mixer["conv_weight"] + 0.5, mixer["conv_bias"] + 0.5
        for uniform in (share, decay, *taps):
            assert uniform.min() >= -1e-4 and uniform.max() <= 1 + 1e-4
            assert uniform.mean().item() == pytest.approx(0.5, abs=0.06)
            assert uniform.std().item() == pytest.approx(1 / math.sqrt(12), rel=0.1)
        assert (mixer["D"] == 1).all() and (mixer["norm_weight"] == 1).all()
        std_in, std_out = 1 / math.sqrt(3 * 256), 1 / math.sqrt(3 * inner * layers)
        assert mixer["in_proj.weight"].std().item() == pytest.approx(std_in, rel=0.02)
        assert mixer["out_proj.weight"].std().item() == pytest.approx(std_out, rel=0.02)
    gates = [weight for name, weight in weights.items() if "gate" in name]
    assert len(gates) == 4 and not any(gate.any() for gate in gates)


def test_the_metric_is_the_mean_of_the_gate():
    model, tokens_BS = scattered(SMALL), tokens(2, 20)
    seen = []
    model.blocks[1].gate.register_forward_hook(lambda _module, _inputs, share: seen.append(share))
    model(tokens_BS)
    (share,) = seen
    assert share.shape == (2, 20, 1) and share.std() > 0
    torch.testing.assert_close(model.metrics()["ssm_share"], share.mean().float().view(1, 1))
    assert {metric.name for metric in MAMBA2.metrics} == set(model.metrics())
    assert not MAMBA2.materialise(dataclasses.replace(SMALL, attention_every=0)).metrics()


def test_training_on_one_batch_learns_it():
    model, tokens_BS = MAMBA2.materialise(SMALL, seed=5), tokens(2, 18)
    batch = (tokens_BS[:, :-1], tokens_BS[:, 1:])
    assert model.loss(*batch).item() == pytest.approx(math.log(256), abs=0.1)  # nothing known yet
    assert trained(model, [batch] * 60, 1e-2) < 0.1
    assert (model.metrics()["ssm_share"] - 0.5).abs().max() > 1e-3  # the gate was trained too


@pytest.mark.parametrize("preset", MAMBA2.presets)
@pytest.mark.parametrize("attention_free", [False, True])
def test_the_formula_counts_the_parameters_of_every_preset(preset, attention_free):
    expected = {
        "tiny": (602_338, 503_776),
        "47M": (48_627_586, 47_315_840),
        "96M": (99_942_243, 95_516_256),
        "2.8B": (3_003_819_536, 2_741_634_560),
    }
    config = MAMBA2.presets[preset]
    if attention_free:
        config = dataclasses.replace(config, attention_every=0)
    counted = sum(parameter.numel() for parameter in MAMBA2.build(config).parameters())
    assert MAMBA2.parameter_count(config) == counted == expected[preset][attention_free]


@given(
    head_dim=st.integers(1, 8).map(lambda n: 2 * n),
    n_kv_heads=st.integers(1, 3),
    copies=st.integers(1, 4),
    d_state=st.integers(1, 20),
    d_conv=st.sampled_from([2, 3, 4]),
    n_layers=st.integers(1, 5),
    attention_every=st.integers(0, 5),
    vocabulary=st.integers(256, 3000),
    tie_embeddings=st.booleans(),
)
def test_the_formula_counts_the_parameters_of_any_configuration(
    head_dim, n_kv_heads, copies, n_layers, attention_every, **fields
):
    dim = head_dim * n_kv_heads * copies
    if dim < 8 or attention_every > n_layers:
        return
    overrides = {
        "dim": dim, "n_heads": n_kv_heads * copies, "n_kv_heads": n_kv_heads,
        "head_dim": head_dim, "n_groups": n_kv_heads, "n_layers": n_layers,
        "attention_every": attention_every, **fields,
    }  # fmt: skip
    config = MAMBA2.configure("tiny", overrides)
    counted = sum(parameter.numel() for parameter in MAMBA2.build(config).parameters())
    assert MAMBA2.parameter_count(config) == counted


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"n_layers": 0}, "mamba2: n_layers = 0 is outside of 1 to 1024"),
        (
            {"head_dim": 48},
            "width expand * dim = 256 cannot be divided into heads of head_dim = 48",
        ),
        ({"n_groups": 3}, "expand * dim / head_dim = 8, cannot be divided by n_groups = 3"),
        ({"attention_every": 5}, "attention_every = 5 is more than n_layers = 4, so no block"),
        ({"attention_every": -1}, "attention_every = -1 is outside of 0 to 1024"),
        ({"n_heads": 5}, "mamba2: dim = 128 cannot be divided into n_heads = 5 heads"),
        ({"n_kv_heads": 3}, "n_heads = 4 is not a multiple of n_kv_heads = 3"),
        ({"n_heads": 128, "n_kv_heads": 2}, "dim / n_heads = 1 is odd"),
        ({"d_conv": 5}, "d_conv = 5 is not one of (2, 3, 4)"),
        ({"d_state": 0}, "d_state = 0 is outside of 1 to 1024"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused_by_a_sentence(overrides, sentence):
    with pytest.raises(ConfigurationError) as caught:
        MAMBA2.configure("tiny", overrides)
    assert sentence in str(caught.value)


def test_without_attention_the_sizes_of_its_heads_do_not_matter():
    assert MAMBA2.configure("tiny", {"attention_every": 0, "n_heads": 5}).attending == 0
