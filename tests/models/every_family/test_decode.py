"""Decoding with explicit state equals the full forward pass."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import FAMILIES, ConfigurationError

HYDRA = FAMILIES["hydra"]
LENGTH = 20


def small(seed=7, **fields):
    preset = dataclasses.replace(HYDRA.presets["tiny"], dim=64, n_layers=2, max_sequence=32)
    return HYDRA.materialise(dataclasses.replace(preset, **fields), seed=seed).eval()


def at(position):
    return torch.tensor(position, dtype=torch.int64)


@given(pieces=st.lists(st.integers(1, 7), min_size=1, max_size=8), first_is_empty=st.booleans())
def test_any_cutting_into_pieces_gives_the_logits_of_the_whole(pieces, first_is_empty):
    pieces = [p for i, p in enumerate(pieces) if sum(pieces[: i + 1]) <= LENGTH]
    model, total = small(), sum(pieces)
    tokens_BS = torch.randint(
        0, 256, (2, max(total, 1)), generator=torch.Generator().manual_seed(4)
    )
    cache = model.new_cache(2, LENGTH)
    with torch.inference_mode():
        whole_BSV, done, parts = model(tokens_BS), 0, []
        for piece in pieces:
            position = None if done == 0 and first_is_empty else at(done)
            parts.append(model(tokens_BS[:, done : done + piece], cache=cache, position=position))
            done += piece
        torch.testing.assert_close(torch.cat(parts, 1), whole_BSV, rtol=1e-4, atol=1e-5)


def test_every_single_decoded_position_equals_the_whole(tokens_BS):
    model = small(n_kv_heads=1)
    cache = model.new_cache(2, tokens_BS.shape[1])
    with torch.inference_mode():
        whole_BSV = model(tokens_BS)
        for i in range(tokens_BS.shape[1]):
            step_BSV = model(tokens_BS[:, i : i + 1], cache=cache, position=at(i))
            torch.testing.assert_close(step_BSV[:, 0], whole_BSV[:, i], rtol=1e-4, atol=1e-5)


def test_what_lies_past_the_position_is_never_looked_at(tokens_BS):
    model = small()
    clean, dirty = model.new_cache(2, LENGTH), model.new_cache(2, LENGTH)
    for tensor in dirty.tensors():
        tensor.normal_()
    with torch.inference_mode():
        results = []
        for cache in (clean, dirty):
            model(tokens_BS[:, :5], cache=cache)
            results.append(model(tokens_BS[:, 5:7], cache=cache, position=at(5)))
    assert torch.equal(*results)


def test_the_state_keeps_its_addresses_and_forgets_in_place(tokens_BS):
    model = small()
    cache = model.new_cache(2, LENGTH)
    addresses = [tensor.data_ptr() for tensor in cache.tensors()]
    with torch.inference_mode():
        model(tokens_BS[:, :6], cache=cache)
        model(tokens_BS[:, 6:7], cache=cache, position=at(6))
    assert all(tensor.any() for tensor in cache.tensors())
    cache.reset()
    assert [tensor.data_ptr() for tensor in cache.tensors()] == addresses
    assert not any(tensor.any() for tensor in cache.tensors())


def test_the_state_takes_the_bytes_that_the_formula_says():
    model = small(n_kv_heads=2)
    config = dataclasses.replace(HYDRA.presets["tiny"], dim=64, n_layers=2, max_sequence=32)
    estimate = HYDRA.footprint(config, workload="decode", batch=3, sequence=LENGTH)
    assert model.new_cache(3, LENGTH).bytes() == estimate.cache


def test_a_prefill_of_only_the_last_logits_equals_the_last_of_all(tokens_BS):
    model = small()
    with torch.inference_mode():
        all_BSV = model(tokens_BS, cache=model.new_cache(2, LENGTH))
        last_B1V = model(tokens_BS, cache=model.new_cache(2, LENGTH), last_only=True)
    assert last_B1V.shape == (2, 1, 256)
    torch.testing.assert_close(last_B1V, all_BSV[:, -1:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("amp", [True, False])
def test_decoding_in_bfloat16_keeps_its_state_in_bfloat16(tokens_BS, amp):
    model = small() if amp else HYDRA.share(*half_weights())
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=amp):
        cache = model.new_cache(2, LENGTH)
        assert {tensor.dtype for tensor in cache.tensors()} == {torch.bfloat16}
        model(tokens_BS[:, :6], cache=cache)
        step_BSV = model(tokens_BS[:, 6:7], cache=cache, position=at(6))
        whole_BSV = model(tokens_BS[:, :7])
    torch.testing.assert_close(step_BSV[:, 0], whole_BSV[:, 6], rtol=0.05, atol=0.02)


def half_weights():
    config = dataclasses.replace(HYDRA.presets["tiny"], dim=64, n_layers=2, max_sequence=32)
    weights = HYDRA.materialise(config, dtype=torch.bfloat16).weights()
    return config, weights


def test_a_cache_of_another_dtype_is_refused(tokens_BS):
    model = small()
    cache = model.new_cache(2, LENGTH, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"cache holds torch\.float16, but the layer computed"):
        model(tokens_BS, cache=cache)


def test_what_does_not_fit_is_refused_with_the_values(tokens_BS):
    model = small()
    with pytest.raises(ConfigurationError, match="length 33 is not within 1 to max_sequence = 32"):
        model.new_cache(2, 33)
    with pytest.raises(ConfigurationError, match="new_cache: batch 0 must be at least 1"):
        model.new_cache(0, 8)
    for shape in ((2, 0), (0, 5), (5,)):
        empty = torch.zeros(shape, dtype=torch.int64)
        for call in (model, lambda tokens: model.loss(tokens, tokens)):
            with pytest.raises(ConfigurationError, match=r"both at least 1, but have shape \("):
                call(empty)
    with pytest.raises(ConfigurationError, match=r"33 tokens is longer than max_sequence = 32"):
        model(torch.zeros(1, 33, dtype=torch.int64))
    cache = model.new_cache(1, 8)
    with pytest.raises(
        ConfigurationError, match=r"shape \(2, 17\) do not fit a cache made for batch 1"
    ):
        model(tokens_BS, cache=cache)
    with pytest.raises(
        ValueError, match=r"position must be an int64 tensor .* torch\.int64 \(2,\)"
    ):
        model(tokens_BS[:1, :1], cache=cache, position=at([3, 4]))
    with pytest.raises(ValueError, match=r"\(on the CPU torch\.tensor\(3\)\), but is int$"):
        model(tokens_BS[:1, :1], cache=cache, position=3)
    with pytest.raises(
        ConfigurationError, match=r"targets must be \(2, 17\), one for each token, but are \(17, 2"
    ):
        model.loss(tokens_BS, tokens_BS.T)
    with pytest.raises(ValueError, match="pass the cache too"):
        model(tokens_BS, position=at(0))
