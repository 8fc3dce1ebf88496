"""Tests of the digest of a model's mathematics, and of comparisons that go by it."""

from __future__ import annotations

import msgspec
import pytest
import torch

from sessions.model import OWN, Configuration
from sessions.storage import hdf5
from sessions.verdicts import work
from workbench import protocol
from workbench.runner.config import model_digest
from workbench.runner.config.resolve import resolve

changed = msgspec.structs.replace


def digest(configuration, **changes):
    situation = resolve(changed(configuration, **changes), torch.device("cpu"))
    return model_digest.model_digest(situation)


def test_models_of_the_same_mathematics_have_one_digest_however_they_were_chosen(small):
    settings = {"batch": 1, "sequence": 256}
    own = {**small.model, "window": 32}
    by_field = digest(small, model=own, settings=settings)
    assert by_field == digest(small, settings=settings, toggles={"window": "32"})
    assert by_field == digest(small, model=own, settings=settings, toggles={"window": "32"})
    assert by_field == digest(small, model=own, workload="train", toggles={"adamw": "fused"})
    assert by_field != digest(small, model=own, settings=settings, toggles={"window": "128"})
    assert by_field != digest(small)


def test_toggles_that_keep_the_mathematics_keep_the_digest(small):
    assert digest(small) == digest(small, toggles={"in_place": "on"})
    assert digest(small) != digest(small, family="moe", model={})


def test_a_field_that_has_its_default_does_not_count(small):
    assert digest(small) == digest(small, model={**small.model, "window": 0})


def test_an_option_that_equals_another_models_field_builds_the_same_model(runner, small, tmp_path):
    """The ratio got the heading "different models" for the name of the toggle alone."""
    settings = {"batch": 1, "sequence": 33}
    first, second = (
        changed(small, model={**small.model, "window": window}, settings=settings)
        for window in (32, 16)
    )
    second = changed(second, toggles={"window": "32"})
    runner.send(protocol.Compare(base=first, other=second, budget_s=1.0))
    assert runner.finish().reason == "done", runner.describe()
    hdf5.save(runner.session, tmp_path / "s.h5")
    session = hdf5.load(tmp_path / "s.h5")
    assert work.DIFFERENCE not in session.comparisons[-1].facts
    assert work.difference_of_segments(*session.segments[-2:]) == ("", [])


def test_a_speed_is_expected_of_one_model_only(runner, small):
    deep = changed(small, model={**small.model, "n_layers": 3})
    runner.send(protocol.Compare(base=small, other=deep, require_same_work=True))
    assert runner.finish().reason == "failed"
    failure = [m for m in runner.messages if isinstance(m, protocol.Failure)][-1]
    assert failure.kind == "mistake"
    assert failure.sentence.startswith("A and B are different models (model.n_layers), so the")


def test_hugging_face_configurations_with_other_fields_are_different_models():
    """A model of one layer got the verdict FASTER against one of two layers."""
    pytest.importorskip("transformers")

    def of(source):
        return digest(Configuration(family=OWN, preset="file", model={"source": f"hf:{source}"}))

    assert of("qwen3-0.6b:tiny") != of("qwen3-0.6b:tiny,num_hidden_layers=1")
    assert of("qwen3-0.6b:tiny") != of("qwen3-0.6b:tiny,sequence=64") != of("gpt2:tiny")
    assert of("qwen3-0.6b:tiny") == of("qwen3-0.6b:tiny,num_hidden_layers=2")
