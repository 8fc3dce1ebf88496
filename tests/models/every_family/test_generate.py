"""Generation samples from the nucleus like full forward passes, whatever the pieces."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from models import FAMILIES, ConfigurationError, generate, prefill_in_chunks, sample

FORMS = {name: {} for name, family in FAMILIES.items() if "decode" in family.workloads} | {
    "hydra, routed": {"mixture_of_depths": True, "mixture_of_recursions": True},
    "hydra, sharing keys": {"mixture_of_recursions": True, "recursion_kv": "share", "ccgqa": True},
    "mamba2, attention-free": {"attention_every": 0},
}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


SLOW = ("hydra, routed", "hydra, sharing keys")


@pytest.fixture(
    params=[pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in FORMS]
)
def decoder(request):
    family = FAMILIES[request.param.partition(",")[0]]
    config = family.configure("tiny", {"n_layers": 2} | FORMS[request.param])
    model = family.materialise(config, seed=2).eval()
    with torch.no_grad():  # every block counts, and the logits are too far apart for rounding
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


@pytest.fixture
def prompt_BS():
    return torch.randint(0, 256, (2, 11), generator=seeded(1))


def drawn(model, prompt_BS, new_tokens, **more):
    return torch.stack(list(generate(model, prompt_BS, new_tokens=new_tokens, **more)), 1)


@torch.no_grad()
def from_whole_passes(model, tokens_BS, new_tokens, temperature, top_p, seed):
    """Return the expected generation without state: every token from the complete prefix."""
    generator, before = seeded(seed), tokens_BS.shape[1]
    for _ in range(new_tokens):
        token_B = sample(model(tokens_BS)[:, -1], temperature, top_p, generator)
        tokens_BS = torch.cat([tokens_BS, token_B[:, None]], 1)
    return tokens_BS[:, before:]


@pytest.mark.sample(13)
@pytest.mark.parametrize("chunk", [None, 1, 4, 100])
@pytest.mark.parametrize("way", [(0.0, 1.0), (0.8, 0.9)])
def test_tokens_are_those_of_whole_passes_however_the_prompt_is_cut(decoder, prompt_BS, way, chunk):
    expected = from_whole_passes(decoder, prompt_BS, 6, *way, seed=5)
    way = {"temperature": way[0], "top_p": way[1]}
    actual = drawn(decoder, prompt_BS, 6, chunk=chunk, generator=seeded(5), **way)
    assert actual.dtype == torch.int64 and torch.equal(actual, expected)


def test_a_seed_decides_the_tokens(decoder, prompt_BS):
    draws = [drawn(decoder, prompt_BS, 8, temperature=30.0, generator=seeded(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_tokens_come_one_at_a_time_and_leave_gradients_as_they_were(decoder, prompt_BS):
    calls = []
    decoder.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    stream = generate(decoder, prompt_BS, new_tokens=3)
    for passes in (1, 2, 3):
        next(stream)
        assert len(calls) == passes and torch.is_grad_enabled()
    assert next(stream, None) is None and calls == [False] * 3


def test_a_second_prompt_goes_on_where_the_first_generation_stopped(decoder, prompt_BS):
    expected = drawn(decoder, prompt_BS, 9, temperature=0)
    cache = decoder.new_cache(2, 30)
    first = drawn(decoder, prompt_BS, 4, temperature=0, cache=cache)
    rest = drawn(decoder, first[:, -1:], 5, temperature=0, cache=cache, position=14)
    assert torch.equal(torch.cat([first, rest], 1), expected)


def test_rows_past_the_vocabulary_are_never_drawn(decoder, prompt_BS):
    tokens = drawn(decoder, prompt_BS, 12, temperature=100.0, vocabulary=7)
    assert tokens.max() < 7 and len(tokens.unique()) > 3


@torch.no_grad()
def test_a_prefill_in_chunks_gives_the_logits_of_the_whole(decoder, prompt_BS):
    whole_BV = decoder(prompt_BS)[:, -1]
    for chunk in (1, 3, 11, None):
        cache = decoder.new_cache(2, 11)
        logits_B1V = prefill_in_chunks(decoder, prompt_BS, cache, chunk=chunk)
        torch.testing.assert_close(logits_B1V[:, 0], whole_BV, rtol=1e-4, atol=1e-4)


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    temperature=st.floats(0.05, 5),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, 1000),
)
def test_no_token_outside_of_the_nucleus_is_drawn(logits, temperature, top_p, seed):
    shares = (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(-1)
    order = shares.argsort(descending=True)
    before = shares[order].cumsum(0) - shares[order]
    nucleus = set(order[before < top_p + 1e-5].tolist())  # rounding may decide at the border
    rows = torch.tensor(logits).expand(200, -1)
    tokens = sample(rows, temperature, top_p, seeded(seed))
    # Tokens of equal share may stand in any order.
    lowest = min(shares[token] for token in nucleus)
    assert all(shares[token] >= lowest * (1 - 1e-5) for token in set(tokens.tolist()))


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24, 1.0])
def test_the_ends_of_the_uniform_number_stay_in_the_nucleus(monkeypatch, uniform):
    logits_BV = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().expand(3, 4)
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform))
    for top_p, last in ((0.1, 0), (0.5, 1), (0.85, 2), (1.0, 3)):
        expected = 0 if uniform == 0 else last
        assert sample(logits_BV, 1.0, top_p).tolist() == [expected] * 3


def test_tokens_are_drawn_as_often_as_their_shares_say():
    shares = torch.tensor([0.05, 0.5, 0.15, 0.3])
    rows = shares.log().expand(40_000, 4)
    for top_p, temperature in ((1.0, 1.0), (0.8, 1.0), (0.9, 2.0)):
        expected = shares ** (1 / temperature)
        expected = expected / expected.sum()
        order = expected.argsort(descending=True)
        outside = order[expected[order].cumsum(0) - expected[order] >= top_p]
        expected[outside] = 0
        counts = sample(rows, temperature, top_p, seeded(3)).bincount(minlength=4)
        torch.testing.assert_close(counts / 40_000, expected / expected.sum(), rtol=0, atol=0.01)


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-45, 1e-300])
def test_however_low_the_temperature_the_most_probable_is_taken(temperature):
    logits_BV = torch.tensor([[1.0, 50.0, 2.0], [-torch.inf, -3.0, -4.0]])
    assert sample(logits_BV, temperature, 1.0).tolist() == [1, 1]


def test_the_zero_temperature_takes_the_most_probable_and_draws_nothing():
    logits_BV = torch.randn(5, 30, generator=seeded(0))
    generator = seeded(9)
    before = generator.get_state()
    assert torch.equal(sample(logits_BV, 0.0, 0.5, generator), logits_BV.argmax(-1))
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(sample(logits_BV, 1.0, 1e-6), logits_BV.argmax(-1))


def test_drawing_depends_on_no_value_that_the_host_would_wait_for():
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        torch.ones(3).sum().item()
    with FakeTensorMode():
        assert sample(torch.ones(3, 50), 0.7, 0.9).shape == (3,)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"new_tokens": 0}, "generate: new_tokens = 0 must be at least 1"),
        ({"temperature": -1.0}, "generate: temperature = -1.0 must be a number of at least 0"),
        ({"temperature": float("nan")}, "generate: temperature = nan must be"),
        ({"top_p": 0.0}, "generate: top_p = 0.0 must be above 0 and at most 1"),
        ({"top_p": 1.5}, "generate: top_p = 1.5 must be above 0"),
        ({"new_tokens": 600}, "new_cache: length 610 is not within 1 to max_sequence = 512"),
        ({"position": -1}, "generate: position = -1 must be at least 0"),
        ({"vocabulary": 0}, "generate: vocabulary = 0 is not from 1 to the rows of the head, 256"),
        ({"vocabulary": -1}, "generate: vocabulary = -1 is not from"),
        ({"vocabulary": 257}, "generate: vocabulary = 257 is not from"),
        ({"position": 3}, "generate: position 3 needs the cache with the tokens before it"),
        ({"chunk": 0}, "prefill: chunk = 0 must be at least 1"),
    ],
)
def test_what_cannot_be_generated_is_refused_at_once_by_a_sentence(prompt_BS, arguments, sentence):
    family = FAMILIES["mamba2"]
    model = family.materialise(family.presets["tiny"])
    with pytest.raises(ConfigurationError) as caught:
        generate(model, prompt_BS, **{"new_tokens": 4} | arguments)
    assert str(caught.value).startswith(sentence)


def test_a_prompt_or_a_cache_that_does_not_fit_is_refused_with_the_values(prompt_BS):
    family = FAMILIES["mamba2"]
    model = family.materialise(family.presets["tiny"])
    with pytest.raises(ConfigurationError, match=r"got torch\.int64 \(11,\)"):
        generate(model, prompt_BS[0], new_tokens=4)
    with pytest.raises(ConfigurationError, match=r"got torch\.float32 \(2, 11\)"):
        generate(model, prompt_BS.float(), new_tokens=4)
    with pytest.raises(ConfigurationError, match="batch 2 and length 14, but this one is for"):
        generate(model, prompt_BS, new_tokens=4, cache=model.new_cache(2, 13))
    with pytest.raises(ConfigurationError, match="from position 5, do not fit a cache"):
        prefill_in_chunks(model, prompt_BS, model.new_cache(2, 15), position=5)
