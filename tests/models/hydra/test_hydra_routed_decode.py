"""Decoding with HYDRA's routings: explicit state equals the full forward pass."""

import pytest
import torch
from halves import in_pieces
from routed import COMBINATIONS, HYDRA, config_of, routed_model, some_tokens

LENGTH = 15
EXACT = {"rtol": 1e-9, "atol": 1e-10}

every_combination = pytest.mark.parametrize("combination", COMBINATIONS)


@pytest.mark.sample(13)
@every_combination
@pytest.mark.parametrize(
    "pieces",
    [(LENGTH,), (1,) * LENGTH, (6, 1, 1, 5, 2), (1, 9, 5), (3, 3, 3, 3, 3)],
    ids=lambda pieces: "+".join(map(str, pieces)),
)
def test_any_cutting_into_pieces_gives_the_logits_of_the_whole(combination, pieces):
    model = routed_model(combination).eval()
    tokens_BS = some_tokens(length=LENGTH)
    with torch.no_grad():
        whole_BSV = model(tokens_BS)
        for first in (None, torch.tensor(0)):
            cache = model.new_cache(2, LENGTH)
            found_BSV = in_pieces(model, tokens_BS, pieces, cache, first)
            torch.testing.assert_close(found_BSV, whole_BSV, **EXACT)


@every_combination
def test_a_state_in_use_again_after_a_prefill_or_a_reset_knows_nothing_of_before(combination):
    model = routed_model(combination).eval()
    first_BS, second_BS = some_tokens(length=LENGTH, seed=3), some_tokens(length=LENGTH)
    with torch.no_grad():
        whole_BSV = model(second_BS)
        cache = model.new_cache(2, LENGTH)
        addresses = [tensor.data_ptr() for tensor in cache.tensors()]
        for forget in (lambda: None, cache.reset):
            in_pieces(model, first_BS, (7, 1, 1, 1, 5), cache)
            forget()
            found_BSV = in_pieces(model, second_BS, (4, 1, 1, 9), cache)
            torch.testing.assert_close(found_BSV, whole_BSV, **EXACT)
    assert [tensor.data_ptr() for tensor in cache.tensors()] == addresses


@every_combination
def test_what_was_never_written_is_never_looked_at(combination):
    model = routed_model(combination).eval()
    tokens_BS = some_tokens(length=LENGTH)
    with torch.no_grad():
        whole_BSV = model(tokens_BS)
        cache = model.new_cache(2, LENGTH)
        for tensor in cache.tensors():
            if tensor.is_floating_point():
                tensor.normal_(std=10)
        found_BSV = in_pieces(model, tokens_BS, (5, 1, 1, 4, 4), cache)
    torch.testing.assert_close(found_BSV, whole_BSV, **EXACT)


@every_combination
def test_the_state_takes_the_bytes_that_the_formula_says(combination):
    model = routed_model(combination, dtype=torch.float32)
    for length in (1, 7, LENGTH):
        step = {"workload": "decode", "batch": 3, "sequence": length}
        estimate = HYDRA.footprint(config_of(combination), **step)
        assert model.new_cache(3, length).bytes() == estimate.cache


@every_combination
def test_training_prefill_and_decoding_run_in_bfloat16(combination):
    model = routed_model(combination, dtype=torch.float32)
    tokens_BS = some_tokens(length=LENGTH)
    exact = model.loss(tokens_BS, tokens_BS).item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(tokens_BS, tokens_BS)
        loss.backward()
        if combination == "ccgqa":  # elsewhere rounding may choose other tokens
            assert loss.item() == pytest.approx(exact, rel=0.01)
        assert all(p.grad.isfinite().all() for p in model.parameters())
        model.eval()
        with torch.no_grad():
            cache = model.new_cache(2, LENGTH)
            assert in_pieces(model, tokens_BS, (8, 1, 6), cache).isfinite().all()
    config = config_of(combination)
    half = HYDRA.share(config, half_weights(model, config))
    half.loss(tokens_BS, tokens_BS).backward()
    with torch.no_grad():
        cache = half.eval().new_cache(2, LENGTH)
        logits_BSV = in_pieces(half, tokens_BS, (8, 1, 6), cache)
    assert logits_BSV.dtype == torch.bfloat16 and logits_BSV.isfinite().all()


def half_weights(model, config):
    weights = HYDRA.materialise(config, dtype=torch.bfloat16).weights()
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(model.weights()[name])
    return weights
