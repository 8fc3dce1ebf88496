"""Decoding promises for every combination of options that changes the state.

In FP64, so that rounding never changes a routing. These are the complete versions of what other
tests check for each family in its main forms.
"""

import functools

import pytest
import torch
from halves import in_pieces
from routed import COMBINATIONS, some_tokens

from models import FAMILIES, generate

LENGTH, ROOM = 13, 16
DEPTHS, RECURSIONS = {"mixture_of_depths": True}, {"mixture_of_recursions": True}
TOKEN, SHARE, WINDOW = {"recursion_routing": "token"}, {"recursion_kv": "share"}, {"window": 3}
HYDRA = {
    "n_layers": 2,
    "dim": 32,
    "depth_every": 1,
    "depth_capacity": 0.4,
    "recursions": 3,
    "recursion_alpha": 0.7,
}
MAMBA2 = {"n_layers": 2, "dim": 32, "head_dim": 16, "d_state": 8, "attention_every": 2}
ADAATTN = {"n_layers": 2, "dim": 32}
MOE = {"n_layers": 2, "input_dim": 32, "hidden_dim": 16, "n_heads": 4}
FORMS = {
    **{f"hydra, {name}": ("hydra", HYDRA | fields) for name, fields in COMBINATIONS.items()},
    "hydra, one key head": ("hydra", HYDRA | {"n_kv_heads": 1}),
    "hydra, a key head each": ("hydra", HYDRA | {"n_kv_heads": 4}),
    "hydra, window": ("hydra", HYDRA | WINDOW),
    "hydra, ccgqa of width 4, window": ("hydra", HYDRA | WINDOW | {"ccgqa": True, "conv_width": 4}),
    "hydra, depths, window": ("hydra", HYDRA | WINDOW | DEPTHS),
    "hydra, recursions, window": ("hydra", HYDRA | WINDOW | RECURSIONS),
    "hydra, by token, window": ("hydra", HYDRA | WINDOW | RECURSIONS | TOKEN),
    "hydra, sharing keys, window": ("hydra", HYDRA | WINDOW | RECURSIONS | SHARE),
    "hydra, depths by token, ccgqa": (
        "hydra",
        HYDRA | DEPTHS | RECURSIONS | TOKEN | {"ccgqa": True},
    ),
    "hydra, a capacity of one": ("hydra", HYDRA | DEPTHS | {"depth_capacity": 1.0}),
    "mamba2, one group a head": ("mamba2", MAMBA2 | {"n_groups": 4}),
    "mamba2, every block attends, window": ("mamba2", MAMBA2 | WINDOW | {"attention_every": 1}),
    "mamba2, odd states, short convolution": ("mamba2", MAMBA2 | {"d_state": 5, "d_conv": 2}),
    "mamba2, many states, one key head": ("mamba2", MAMBA2 | {"d_state": 40, "n_kv_heads": 1}),
    "mamba2, attention-free, expanded": ("mamba2", MAMBA2 | {"attention_every": 0, "expand": 3}),
    "adaattn": ("adaattn", ADAATTN),
    "adaattn, every rank": ("adaattn", ADAATTN | {"adaptive_rank": False}),
    "adaattn, every bit": ("adaattn", ADAATTN | {"adaptive_precision": False}),
    "moe, window, one key head": ("moe", MOE | WINDOW | {"n_kv_heads": 1}),
    "moe, dense": ("moe", MOE | {"gating": "dense", "num_experts": 3}),
    "moe, noisy, shared, bounded": (
        "moe",
        MOE | {"gating": "noisy_topk", "num_shared_experts": 1, "capacity_factor": 1.0},
    ),
    "moe, not renormalised": ("moe", MOE | {"renormalise": False}),
}
pytestmark = pytest.mark.slow
forms = pytest.mark.parametrize("form", FORMS)
close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-10)


@functools.cache
def decoder(form):
    """Make a decoder in evaluation mode whose routers take some tokens; adaptation is frozen."""
    name, fields = FORMS[form]
    family = FAMILIES[name]
    model = family.materialise(family.configure("tiny", fields), dtype=torch.float64, seed=3).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter_name, weight in model.named_parameters():
            if "router" in parameter_name:
                weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
            elif "embedding" in parameter_name:
                weight.mul_(20)
    if name == "adaattn":
        model.freeze()
    return model


@functools.cache
def full_logits(form):
    """Return the logits of two sequences at once."""
    with torch.no_grad():
        return decoder(form)(some_tokens(2, LENGTH))


@forms
@torch.no_grad()
def test_a_later_token_changes_nothing_before_it_and_its_own_logits(form):
    tokens_BS = some_tokens(2, LENGTH)
    for at in (0, 5, LENGTH - 1):
        changed_BS = tokens_BS.clone()
        changed_BS[:, at] = (changed_BS[:, at] + 1) % 256
        found_BSV = decoder(form)(changed_BS)
        close(found_BSV[:, :at], full_logits(form)[:, :at])  # experts add up other tokens beside
        assert (found_BSV[:, at] - full_logits(form)[:, at]).abs().max() > 1e-6


@forms
@torch.no_grad()
def test_token_by_token_and_in_chunks_give_the_logits_of_the_whole(form):
    model = decoder(form)
    for pieces in ((1,) * LENGTH, (4, 4, 4, 1), (1, 7, 5)):
        found_BSV = in_pieces(model, some_tokens(2, LENGTH), pieces, model.new_cache(2, ROOM))
        close(found_BSV, full_logits(form))


@forms
@torch.no_grad()
def test_a_state_that_was_saved_goes_on_as_the_one_that_was_not(form, tmp_path):
    model, tokens_BS, path = decoder(form), some_tokens(2, LENGTH), tmp_path / "state"
    cache, restored = model.new_cache(2, ROOM), model.new_cache(2, ROOM)
    model(tokens_BS[:, :6], cache=cache)
    cache.save(path, 6)
    for tensor in restored.tensors():
        tensor.random_(2, 9)
    assert restored.load(path) == 6
    for first, last in ((6, 10), (10, 11)):
        at = torch.tensor(first)
        actual, expected = (
            model(tokens_BS[:, first:last], cache=state, position=at) for state in (restored, cache)
        )
        assert torch.equal(actual, expected)
        close(actual, full_logits(form)[:, first:last])


@forms
@torch.no_grad()
def test_a_sequence_gives_the_same_alone_and_beside_others(form):
    model, tokens_BS = decoder(form), some_tokens(2, LENGTH)
    for i in range(2):
        close(model(tokens_BS[i : i + 1])[0], full_logits(form)[i])
    alone = model.new_cache(1, ROOM)
    close(in_pieces(model, tokens_BS[1:], (5, 1, 7), alone)[0], full_logits(form)[1])


@forms
@torch.no_grad()
def test_a_seed_decides_what_is_drawn_however_the_prompt_is_cut(form):
    model, prompt_BS = decoder(form), some_tokens(2, 6)

    def drawn(seed, chunk):
        generator = torch.Generator().manual_seed(seed)
        steps = generate(
            model,
            prompt_BS,
            new_tokens=6,
            temperature=50.0,
            top_p=0.9,
            generator=generator,
            chunk=chunk,
        )
        return torch.stack(list(steps), 1)

    first = drawn(1, None)
    assert torch.equal(first, drawn(1, None)) and torch.equal(first, drawn(1, 2))
    assert not torch.equal(first, drawn(2, None))
