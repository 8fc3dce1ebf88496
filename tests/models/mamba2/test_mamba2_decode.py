"""The hybrid decodes what its full forward pass gives, from a state of constant size."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import FAMILIES
from models.layers.ssm import SSMState

MAMBA2 = FAMILIES["mamba2"]
LENGTH = 20
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def small(dtype=torch.float64, **fields):
    config = dataclasses.replace(
        MAMBA2.presets["tiny"], dim=32, n_layers=2, head_dim=16, d_state=8, max_sequence=32
    )
    return MAMBA2.materialise(dataclasses.replace(config, **fields), dtype=dtype, seed=7).eval()


def tokens(batch=2, sequence=LENGTH):
    return torch.randint(0, 256, (batch, sequence), generator=torch.Generator().manual_seed(4))


def at(position):
    return torch.tensor(position, dtype=torch.int64)


@given(
    pieces=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    first_is_empty=st.booleans(),
    attention_every=st.sampled_from([0, 1, 2]),
    fused=st.booleans(),
)
def test_any_cutting_into_pieces_gives_the_logits_of_the_whole(
    pieces, first_is_empty, attention_every, fused
):
    pieces = [p for i, p in enumerate(pieces) if sum(pieces[: i + 1]) <= LENGTH]
    model, tokens_BS = small(attention_every=attention_every, n_groups=2), tokens()
    with torch.no_grad():
        whole_BSV, done, parts = model(tokens_BS[:, : sum(pieces)]), 0, []
        model.set_fused_add_norm(fused)
        cache = model.new_cache(2, LENGTH)
        for piece in pieces:
            position = None if done == 0 and first_is_empty else at(done)
            parts.append(model(tokens_BS[:, done : done + piece], cache=cache, position=position))
            done += piece
    torch.testing.assert_close(torch.cat(parts, 1), whole_BSV, **CLOSE)


@pytest.mark.parametrize("attention_every", [0, 2])
def test_every_single_decoded_position_equals_the_whole(attention_every):
    model, tokens_BS = small(attention_every=attention_every), tokens()
    cache = model.new_cache(2, LENGTH)
    with torch.no_grad():
        whole_BSV = model(tokens_BS)
        for i in range(LENGTH):
            step_BSV = model(tokens_BS[:, i : i + 1], cache=cache, position=at(i))
            torch.testing.assert_close(step_BSV[:, 0], whole_BSV[:, i], **CLOSE)


@torch.no_grad()
def test_a_start_without_a_position_ignores_what_the_state_holds():
    model, tokens_BS = small(), tokens()
    results = []
    for dirty in (False, True):
        cache = model.new_cache(2, LENGTH)
        if dirty:
            for tensor in cache.tensors():
                tensor.normal_()
        model(tokens_BS[:, :5], cache=cache)
        results.append(model(tokens_BS[:, 5:6], cache=cache, position=at(5)))
    assert torch.equal(*results)


@torch.no_grad()
def test_the_state_keeps_its_addresses_and_forgets_in_place():
    model, tokens_BS = small(), tokens()
    cache = model.new_cache(2, LENGTH)
    addresses = [tensor.data_ptr() for tensor in cache.tensors()]
    model(tokens_BS[:, :6], cache=cache)
    model(tokens_BS[:, 6:7], cache=cache, position=at(6))
    assert all(tensor.any() for tensor in cache.tensors())
    cache.reset()
    assert [tensor.data_ptr() for tensor in cache.tensors()] == addresses
    assert not any(tensor.any() for tensor in cache.tensors())


@pytest.mark.parametrize("attention_every", [0, 2])
def test_the_state_takes_the_bytes_that_the_formula_says(attention_every):
    model = small(torch.bfloat16, attention_every=attention_every)
    config = dataclasses.replace(
        MAMBA2.presets["tiny"], dim=32, n_layers=2, head_dim=16, d_state=8,
        attention_every=attention_every,
    )  # fmt: skip
    sizes = []
    for length in (8, LENGTH):
        step = {"workload": "decode", "batch": 3, "sequence": length, "precision": "half"}
        sizes.append(model.new_cache(3, length).bytes())
        assert sizes[-1] == MAMBA2.footprint(config, **step).cache
    assert (sizes[0] == sizes[1]) == (attention_every == 0)  # without attention it does not grow


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("amp", [True, False])
@torch.no_grad()
def test_decoding_in_half_precision_keeps_the_heads_states_in_single_precision(amp, half):
    model, tokens_BS = small(torch.float32 if amp else half), tokens()
    with torch.autocast("cpu", half, enabled=amp):
        cache = model.new_cache(2, LENGTH)
        plain, hybrid = cache.layers
        for mixer in (plain, hybrid.mixer):
            assert mixer.conv.dtype == half and mixer.ssm.dtype == torch.float32
        assert hybrid.kv.keys.dtype == half
        model(tokens_BS[:, :6], cache=cache)
        step_BSV = model(tokens_BS[:, 6:7], cache=cache, position=at(6))
        whole_BSV = model(tokens_BS[:, :7])
    torch.testing.assert_close(step_BSV[:, 0], whole_BSV[:, 6], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("attention_every", [0, 1])
@torch.no_grad()
def test_a_cache_of_another_dtype_is_refused(attention_every):
    model = small(torch.float32, attention_every=attention_every)
    cache = model.new_cache(2, LENGTH, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"cache holds torch\.float16, but the layer computed"):
        model(tokens(), cache=cache)
    with pytest.raises(ValueError, match=r"cache holds torch\.float16, but the layer computed"):
        model(tokens(sequence=1), cache=cache, position=at(0))
    assert not any(tensor.any() for tensor in cache.tensors())


def test_a_step_updates_the_state_in_place_and_with_gradients_it_writes_it_after(monkeypatch):
    model, tokens_BS = small(attention_every=0), tokens(sequence=7)
    written = []
    write = SSMState.write
    monkeypatch.setattr(SSMState, "write", lambda *args: written.append(1) or write(*args))
    states = {}
    for trains in (False, True):
        with torch.set_grad_enabled(trains):
            cache = model.new_cache(2, LENGTH)
            model(tokens_BS[:, :6], cache=cache)
            written.clear()
            logits = model(tokens_BS[:, 6:], cache=cache, position=at(6))
            assert len(written) == (2 if trains else 0), "layers that wrote"
            assert logits.requires_grad == trains
            states[trains] = cache.tensors()
    with torch.no_grad():
        complete = model.new_cache(2, LENGTH)
        model(tokens_BS, cache=complete)
    for tensors in states.values():
        for actual, expected in zip(tensors, complete.tensors(), strict=True):
            torch.testing.assert_close(actual, expected, **CLOSE)


@torch.no_grad()
def test_a_compiled_step_leaves_the_state_of_an_eager_one():
    torch._dynamo.reset()
    model, tokens_BS = small(torch.float32, attention_every=0), tokens(sequence=9)
    caches = []
    for step in (model, torch.compile(model, fullgraph=True)):
        cache = model.new_cache(2, LENGTH)
        cache.mark_static()
        model(tokens_BS[:, :6], cache=cache)
        for i in range(6, 9):
            step(tokens_BS[:, i : i + 1], cache=cache, position=at(i))
        caches.append(cache.tensors())
    for actual, expected in zip(*caches, strict=True):
        torch.testing.assert_close(actual, expected)
        assert actual.any()
