"""A decode state that goes back to a mark, as if later tokens had never been processed."""

import dataclasses

import pytest
import torch

from models import FAMILIES, sample

DECODERS = [name for name, family in FAMILIES.items() if "decode" in family.workloads]
FORMS = [(name, {}) for name in DECODERS] + [
    ("hydra", {"ccgqa": True}),
    ("hydra", {"mixture_of_depths": True, "mixture_of_recursions": True}),
    ("hydra", {"mixture_of_recursions": True, "recursion_kv": "share"}),
]


def after(model, cache, tokens_BS, position):
    """Return the logits of tokens that are processed one by one."""
    logits = []
    for token_B1 in tokens_BS.split(1, dim=1):
        logits.append(model(token_B1, cache=cache, position=torch.tensor(position)))
        position += 1
    return torch.cat(logits, 1)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "fields"),
    FORMS,
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_after_going_back_the_same_tokens_give_exactly_the_same_logits(name, fields):
    family = FAMILIES[name]
    config = dataclasses.replace(family.presets["tiny"], **fields)
    model = family.materialise(config, seed=2).eval()
    tokens_BS = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(2, 16)
    model(tokens_BS[:, :9], cache=cache)
    mark = cache.mark()
    addresses = [tensor.data_ptr() for tensor in cache.tensors()]
    expected = after(model, cache, tokens_BS[:, 9:], 9)
    cache.go_back(mark)
    other = after(model, cache, tokens_BS[:, 9:].flip(1), 9)
    cache.go_back(mark)
    assert torch.equal(after(model, cache, tokens_BS[:, 9:], 9), expected)
    assert not torch.equal(other, expected)
    assert [tensor.data_ptr() for tensor in cache.tensors()] == addresses


@pytest.mark.parametrize("name", DECODERS)
def test_a_mark_holds_no_keys_and_values(name):
    family = FAMILIES[name]
    model = family.materialise(family.presets["tiny"])
    short, long = (
        sum(tensor.nbytes for tensor in model.new_cache(2, length).mark()) for length in (16, 256)
    )
    assert short == long < model.new_cache(2, 256).bytes()


def test_numbers_that_the_caller_drew_decide_the_tokens():
    logits_BV = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().expand(5, 4)
    uniform_B1 = torch.tensor([[0.0], [0.39], [0.41], [0.75], [1.0]])
    before = torch.get_rng_state()
    assert sample(logits_BV, 1.0, 1.0, uniform_B1=uniform_B1).tolist() == [0, 0, 1, 2, 3]
    assert torch.equal(torch.get_rng_state(), before)
