"""A decode state that is saved and read back continues as if never interrupted."""

import dataclasses
import operator
import os

import pytest
import torch

from models import FAMILIES, ConfigurationError, generate

DECODERS = [name for name, family in FAMILIES.items() if "decode" in family.workloads]
SHARING = {"mixture_of_recursions": True, "recursion_kv": "share"}
FORMS = [
    *((name, {}) for name in DECODERS),
    ("hydra", {"ccgqa": True, "mixture_of_depths": True, "mixture_of_recursions": True}),
    ("hydra", SHARING | {"ccgqa": True}),
    ("hydra", SHARING | {"recursion_routing": "token"}),
    ("mamba2", {"attention_every": 0}),
]
every_form = pytest.mark.parametrize(
    ("name", "fields"), FORMS, ids=lambda x: x if isinstance(x, str) else "-".join(x)
)
LENGTH = 24


def decoder(name, **fields):
    family = FAMILIES[name]
    config = dataclasses.replace(family.presets["tiny"], **fields)
    return family.materialise(config, seed=2).eval()


def tokens():
    return torch.randint(0, 256, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def adapted(name, tokens_BS):
    """Return a decoder after calls without a cache, in which an adaptive family has adapted."""
    fields = {"refresh_every": 1, "rank_estimation": "energy", "rank_threshold": 0.5}
    model = decoder(name, **(fields if name == "adaattn" else {}))
    for _ in range(4):
        model(tokens_BS)
    return model


def continued(model, tokens_BS, cache):
    """Return logits of two further calls after nine tokens."""
    logits = [
        model(tokens_BS[:, first:end], cache=cache, position=torch.tensor(first))
        for first, end in [(9, 13), (13, 14)]
    ]
    return torch.cat(logits, 1)


@torch.no_grad()
@every_form
def test_a_restored_state_gives_exactly_the_uninterrupted_logits(name, fields, tmp_path):
    model, tokens_BS, path = decoder(name, **fields), tokens(), tmp_path / "state"
    cache = model.new_cache(2, LENGTH)
    model(tokens_BS[:, :9], cache=cache)
    cache.save(path, 9)
    expected = continued(model, tokens_BS, cache)

    again, restored = decoder(name, **fields), model.new_cache(2, LENGTH)
    for tensor in restored.tensors():
        tensor.random_(2, 9)
    addresses = [tensor.data_ptr() for tensor in restored.tensors()]
    assert restored.load(path) == 9
    assert [tensor.data_ptr() for tensor in restored.tensors()] == addresses
    assert torch.equal(continued(again, tokens_BS, restored), expected)


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_what_a_model_chose_goes_with_the_state_and_not_with_the_model(name, tmp_path):
    tokens_BS = tokens()
    model = adapted(name, tokens_BS)
    cache, live = (model.new_cache(2, LENGTH) for _ in range(2))
    for item in (cache, live):
        model(tokens_BS[:, :9], cache=item)
    cache.save(tmp_path / "state", 9)
    expected = continued(model, tokens_BS, cache)

    restored = decoder(name).new_cache(2, LENGTH)
    restored.load(tmp_path / "state")
    assert torch.equal(continued(decoder(name), tokens_BS, restored), expected)
    model(torch.zeros_like(tokens_BS))  # adapts to other tokens, between two steps of a sequence
    assert torch.equal(continued(model, tokens_BS, live), expected)


@torch.no_grad()
@pytest.mark.parametrize("begins", [None, torch.tensor(0)])
def test_a_sequence_that_begins_in_a_used_cache_takes_what_is_chosen_then(begins):
    tokens_BS = tokens()
    used = decoder("adaattn").new_cache(2, LENGTH)
    decoder("adaattn")(tokens_BS, cache=used)
    model = adapted("adaattn", tokens_BS)
    fresh = model.new_cache(2, LENGTH)
    actual, expected = (
        model(tokens_BS, cache=used, position=begins),
        model(tokens_BS, cache=fresh, position=begins),
    )
    assert torch.equal(actual, expected)
    assert not torch.equal(actual, decoder("adaattn")(tokens_BS))


@pytest.mark.sample(4)
@every_form
def test_generation_goes_on_from_a_file(name, fields, tmp_path):
    model, prompt_BS = decoder(name, **fields), tokens()[:, :8]
    expected = list(generate(model, prompt_BS, new_tokens=10, temperature=0))
    cache = model.new_cache(2, LENGTH)
    first = list(generate(model, prompt_BS, new_tokens=4, temperature=0, cache=cache))
    cache.save(tmp_path / "state", 11)
    restored = model.new_cache(2, LENGTH)
    position = restored.load(tmp_path / "state")
    last_B1 = first[-1][:, None]
    more = {"new_tokens": 6, "temperature": 0, "cache": restored, "position": position}
    rest = list(generate(model, last_B1, **more))
    assert torch.equal(torch.stack(first + rest), torch.stack(expected))


def saved(tmp_path):
    cache = decoder("mamba2").new_cache(2, LENGTH)
    for tensor in cache.tensors():
        tensor.normal_()
    cache.save(tmp_path / "state", 9)
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("fields", "batch", "length", "dtype", "sentence"),
    [
        ({}, 3, LENGTH, None, "for batch 2 and length 24, but this cache is for batch 3"),
        ({}, 2, 25, None, "for batch 2 and length 24, but this cache is for batch 2 and length 25"),
        (
            {"attention_every": 0},
            2,
            LENGTH,
            None,
            "has 12 as its number of tensors, but this cache has 8",
        ),
        ({"d_state": 8}, 2, LENGTH, None, "tensor 0 of .* is torch.float32 .2, 320, 4., but this"),
        (
            {},
            2,
            LENGTH,
            torch.bfloat16,
            "but this cache's is torch.bfloat16 .2, 320, 4.: it is from another",
        ),
    ],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(
    tmp_path, fields, batch, length, dtype, sentence
):
    path = saved(tmp_path)
    cache = decoder("mamba2", **fields).new_cache(batch, length, dtype)
    with pytest.raises(ConfigurationError, match=f"^load: .*{sentence}"):
        cache.load(path)
    assert not any(tensor.any() for tensor in cache.tensors())


def test_a_file_that_is_no_whole_state_is_refused_and_changes_nothing(tmp_path):
    path = saved(tmp_path)
    cache = decoder("mamba2").new_cache(2, LENGTH)
    data = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    noise = bytes(torch.randint(0, 256, (500,), generator=generator).tolist())
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    cut = [data[:-1], data[: len(data) // 2], data[:100]]
    contents = [b"", b"text", noise, bytes(flipped), *cut]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"is not a saved decode state, or is damaged"):
            cache.load(path)
    torch.save(torch.ones(3), path)
    with pytest.raises(ConfigurationError, match="is not a saved decode state"):
        cache.load(path)
    torch.save({"kind": "decode state", "version": 99}, path)
    with pytest.raises(ConfigurationError, match="has version 99, but this program reads version"):
        cache.load(path)
    with pytest.raises(ConfigurationError, match=r"cannot read .* No such file"):
        cache.load(tmp_path / "absent")
    assert not any(tensor.any() for tensor in cache.tensors())


def test_a_save_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = saved(tmp_path)
    before = path.read_bytes()

    def full(content, index):
        index.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space left"):
        saved(tmp_path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_as_such_and_nothing_is_left(tmp_path):
    part = tmp_path / f"state.part{os.getpid()}"
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        saved(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_position_that_the_cache_cannot_have_is_refused(tmp_path):
    cache = decoder("mamba2").new_cache(2, LENGTH)
    with pytest.raises(ConfigurationError, match="position 25 is outside of 0 to 24"):
        cache.save(tmp_path / "state", 25)
    assert not (tmp_path / "state").exists()


def attributes(value):
    """Yield the tensors among a state's attributes, and those of the states in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from attributes(part)
    elif dataclasses.is_dataclass(value):
        yield from attributes(list(vars(value).values()))


@every_form
def test_every_tensor_of_a_state_is_known_to_stay_at_its_address(name, fields):
    """Reduce-overhead captures no step that writes to another tensor, and says so in a log only."""
    cache = decoder(name, **fields).new_cache(2, LENGTH)
    cache.mark_static()
    owners = [x if x._base is None else x._base for x in attributes(cache)]
    assert owners
    assert all(hasattr(owner, "_dynamo_static_input_type") for owner in owners)
    assert all(map(operator.is_, cache.tensors(), cache.tensors()))
