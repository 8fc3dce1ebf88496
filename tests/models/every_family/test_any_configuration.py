"""Any requested sizes give a model that runs and has the counted size, or one sentence."""

import random

import pytest
import torch
from peak_bytes import drawn

from models import FAMILIES, ConfigurationError

VALUES = {
    int: (0, 1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 64, 256),
    float: (0.0, 0.001, 0.01, 0.125, 0.3, 0.5, 1.0, 2.0, 4.0),
    bool: (False, True),
    str: ("",),
}
LARGEST = 2_000_000  # parameters of a model that is built here
WANTED = 30  # models of each family


def some_fields(family, rng):
    """Choose two to five fields, each with a choice or a value of its kind."""
    fields = rng.sample(family.fields(), rng.randint(2, 5))
    return {field.name: rng.choice(field.choices or VALUES[field.kind]) for field in fields}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_any_fields_together_make_a_model_that_trains_and_answers_or_one_sentence(name):
    family, rng = FAMILIES[name], random.Random(name)
    built = refused = 0
    while built < WANTED:
        fields = some_fields(family, rng)
        try:
            config = family.configure("tiny", fields)
            length = min(5, family.longest(config))
            step = {"batch": 2, "sequence": length, "memory_bytes": 10**10}
            for workload in family.workloads:
                family.check_memory(config, workload=workload, **step)
        except ConfigurationError as refusal:
            assert str(refusal).startswith(f"{name}: ") and "\n" not in str(refusal), fields
            refused += 1
            continue
        if family.parameter_count(config) > LARGEST:
            continue
        built += 1
        model = family.materialise(config)
        assert sum(p.numel() for p in model.parameters()) == family.parameter_count(config), fields
        given = drawn(family, config, 2, length, torch.float32)
        loss = model.train().loss(*given)
        loss.backward()
        assert loss.isfinite(), fields
        with torch.no_grad():
            answer = model.eval()(*given[:-1])
            assert answer.isfinite().all(), fields
            if "decode" in family.workloads:
                result = model(given[0], cache=model.new_cache(2, length))
                assert result.shape == answer.shape, fields
    assert refused > built / 2  # a sentence was asked for as well


@pytest.mark.parametrize("field", ["in_place", "reuse_buffers"])
def test_what_overwrites_memory_is_refused_in_training_before_anything_is_allocated(field):
    family = FAMILIES["moe"]
    config = family.configure("tiny", {field: True})
    step = {"batch": 1, "sequence": 8, "memory_bytes": 10**10}
    with pytest.raises(ConfigurationError) as caught:
        family.check_memory(config, workload="train", **step)
    assert str(caught.value) == (
        f"moe: {field} overwrites values that a backward pass needs; switch it off to train, or "
        "choose an inference workload"
    )
    family.check_memory(config, workload="prefill", **step)
