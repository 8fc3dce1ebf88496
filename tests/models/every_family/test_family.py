"""Families: read from the folder, configured by sentence, one set of weights for many models."""

import dataclasses
import math
import pathlib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import models
from models import FAMILIES, ConfigurationError

HYDRA = FAMILIES["hydra"]


def test_every_file_that_ends_in_a_family_is_registered():
    folder = pathlib.Path(models.__file__).parent
    files = {file.stem for file in folder.glob("*.py") if "\nFAMILY = " in file.read_text()}
    assert set(FAMILIES) == files and len(files) >= 5


def test_every_family_describes_itself_completely():
    for family in FAMILIES.values():
        assert family.help and family.title
        assert set(family.suggestions) == set(family.presets)
        assert family.first_choice in family.presets
        for field in family.fields():
            assert field.title and field.help.endswith("."), field.name
            assert field.kind in (bool, int, float, str), field.name
            bounded = field.choices or None not in (field.minimum, field.maximum)
            assert bounded or field.kind in (bool, str), field.name
        for preset, config in family.presets.items():
            assert family.configure(preset) == config
            for device in ("cpu", "cuda"):
                step = family.suggested(preset, device)
                assert step["batch"] >= 1 and 1 <= step["sequence"] <= family.longest(config)


def test_presets_grow():
    for family in FAMILIES.values():
        sizes = [family.parameter_count(config) for config in family.presets.values()]
        assert sizes == sorted(set(sizes))


def test_overrides_may_come_as_text_from_a_command_line():
    config = HYDRA.configure("tiny", {"n_layers": "7", "mlp_ratio": "4", "tie_embeddings": "off"})
    assert (config.n_layers, config.mlp_ratio, config.tie_embeddings) == (7, 4.0, False)
    assert type(config.n_layers) is int and type(config.mlp_ratio) is float


def test_a_whole_number_may_come_as_a_float_from_a_wire():
    config = HYDRA.configure("tiny", {"n_layers": 3.0})
    assert config.n_layers == 3 and type(config.n_layers) is int


@pytest.mark.parametrize(
    ("preset", "overrides", "sentence"),
    [
        ("giant", {}, "hydra: unknown preset 'giant'; expected one of tiny, small"),
        ("tiny", {"layers": 3}, "hydra: unknown field 'layers'; expected one of vocabulary"),
        ("tiny", {"n_layers": "many"}, "hydra: n_layers = 'many' is not a whole number"),
        ("tiny", {"n_layers": 2.5}, "hydra: n_layers = 2.5 is not a whole number"),
        ("tiny", {"n_layers": True}, "hydra: n_layers = True is not a whole number"),
        ("tiny", {"mlp_ratio": math.nan}, "hydra: mlp_ratio = nan is not a number"),
        ("tiny", {"mlp_ratio": True}, "hydra: mlp_ratio = True is not a number"),
        ("tiny", {"tie_embeddings": 3}, "hydra: tie_embeddings = 3 is not true or false"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_values(preset, overrides, sentence):
    with pytest.raises(ConfigurationError) as caught:
        HYDRA.configure(preset, overrides)
    assert str(caught.value).startswith(sentence)


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.integers(-2, 70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([f.name for f in HYDRA.fields()]), anything, max_size=4))
def test_an_absurd_configuration_is_a_sentence_or_a_model_and_nothing_else(overrides):
    try:
        config = HYDRA.configure("tiny", overrides)
    except ConfigurationError as mistake:
        sentence = str(mistake)
        assert sentence.startswith("hydra: ") and "\n" not in sentence.replace("\\n", "")
        assert any(name in sentence for name in overrides)
        return
    assert HYDRA.parameter_count(config) > 0
    if config.n_layers <= 8:
        assert HYDRA.build(config).embedding.weight.is_meta


@pytest.mark.parametrize("value", [10**5000, "9" * 5000, -(10**100)], ids=["huge", "text", "low"])
def test_a_number_that_cannot_be_printed_still_gives_a_short_sentence(value):
    with pytest.raises(ConfigurationError) as caught:
        HYDRA.configure("tiny", {"n_layers": value})
    assert str(caught.value).startswith("hydra: n_layers = ") and len(str(caught.value)) < 200


def test_a_configuration_that_was_made_by_hand_is_validated_too(config):
    with pytest.raises(ConfigurationError, match="n_layers = 0 is outside"):
        HYDRA.materialise(dataclasses.replace(config, n_layers=0))
    with pytest.raises(ConfigurationError, match="n_layers = 'x' is not a whole number"):
        HYDRA.build(dataclasses.replace(config, n_layers="x"))
    with pytest.raises(ConfigurationError, match=r"n_layers = 7\.0 is not a whole number"):
        HYDRA.validate(dataclasses.replace(HYDRA.presets["tiny"], n_layers=7.0))
    with pytest.raises(ConfigurationError, match="n_layers = '7' is not a whole number"):
        HYDRA.build(dataclasses.replace(config, n_layers="7"))
    with pytest.raises(ConfigurationError, match="expected a HydraConfig, got dict"):
        HYDRA.build({"n_layers": 3})


def test_what_cannot_fit_is_refused_before_anything_is_allocated():
    huge = HYDRA.configure("large", {"dim": 65536, "n_layers": 1024, "n_heads": 512})
    memory = 16 * 10**9
    with pytest.raises(ConfigurationError, match=r"hydra: \d{2},.* parameters with batch 1 and"):
        HYDRA.check_memory(huge, workload="forward", batch=1, sequence=8, memory_bytes=memory)
    tiny = HYDRA.presets["tiny"]
    step = {"workload": "train", "memory_bytes": memory}
    HYDRA.check_memory(tiny, batch=4, sequence=64, **step)
    with pytest.raises(ConfigurationError, match=r"batch 1000000000 and sequence 64 need about"):
        HYDRA.check_memory(tiny, batch=10**9, sequence=64, **step)
    with pytest.raises(ConfigurationError, match="batch 0 and sequence 64 must be at least 1"):
        HYDRA.check_memory(tiny, batch=0, sequence=64, **step)
    with pytest.raises(ConfigurationError, match="sequence of 513 is longer than max_sequence"):
        HYDRA.check_memory(tiny, batch=1, sequence=513, **step)


def test_the_first_preset_fits_the_device():
    assert HYDRA.default_preset(10**12, "cpu") == "tiny"
    assert HYDRA.default_preset(140 * 10**9, "cuda") == "base"
    assert HYDRA.default_preset(12 * 10**9, "cuda") == "small"
    assert HYDRA.default_preset(10**9, "cuda") == "tiny"


def test_a_seed_gives_the_same_weights_whatever_else_was_drawn(family, config):
    torch.manual_seed(1)
    first = family.materialise(config, seed=11).weights()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = family.materialise(config, seed=11).weights()
    assert torch.equal(torch.get_rng_state(), state)  # nor are others disturbed
    other = family.materialise(config, seed=12).weights()
    for name in first:
        assert torch.equal(first[name], second[name]), name
        assert "norm" in name or not torch.equal(first[name], other[name]), name


def test_no_two_parameters_start_alike(model):
    drawn = [weight for name, weight in model.weights().items() if "norm" not in name]
    beginnings = {tuple(weight.flatten()[:8].tolist()) for weight in drawn}
    assert len(beginnings) == len(drawn)


def test_a_narrower_dtype_is_the_cast_of_the_same_weights(family, config):
    wide = family.materialise(config, seed=11).weights()
    narrow = family.materialise(config, dtype=torch.bfloat16, seed=11).weights()
    for name, weight in narrow.items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, wide[name].bfloat16()), name


def test_a_module_that_does_not_say_how_it_starts_is_an_error(family, config):
    def construct(chosen):
        model = family.construct(chosen)
        model.blocks.append(torch.nn.Linear(2, 2))
        return model

    incomplete = dataclasses.replace(family, construct=construct)
    with pytest.raises(TypeError, match=r"Linear owns the parameter blocks\.3\.weight"):
        incomplete.materialise(config)


def test_a_buffer_that_stays_behind_is_an_error(family, config):
    def construct(chosen):
        model = family.construct(chosen)
        model.register_buffer("forgotten", torch.zeros(2), persistent=False)
        return model

    incomplete = dataclasses.replace(family, construct=construct)
    with pytest.raises(TypeError, match="stayed on the meta device"):
        incomplete.materialise(config)


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_models_that_share_weights_hold_the_same_parameter_objects(
    family, config, tokens_BS, targets_BS, tie_embeddings
):
    config = dataclasses.replace(config, tie_embeddings=tie_embeddings)
    first = family.materialise(config, seed=3)
    second = family.share(config, first.weights())
    second.set_checkpointing("full")
    second.share_rope_cache(False)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(item is other for item, other in pairs)
    assert not any(buffer.is_meta for buffer in second.buffers())
    assert torch.equal(first(tokens_BS), second(tokens_BS))
    first.loss(tokens_BS, targets_BS).backward()
    once = [parameter.grad.clone() for parameter in first.parameters()]
    second.loss(tokens_BS, targets_BS).backward()
    for parameter, grad in zip(first.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * grad)
    torch.optim.AdamW(first.parameters(), 0.01).step()
    assert torch.equal(first(tokens_BS), second(tokens_BS))


def test_the_structure_alone_can_be_given_memory(family, config):
    model = family.build(config, device="cpu", dtype=torch.float64)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    assert model.rope_cache_bytes() > 0
