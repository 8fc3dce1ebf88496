"""Tests of the digest of a model's mathematics."""

from __future__ import annotations

import msgspec
import torch

from workbench.runner.config import model_digest
from workbench.runner.config.resolve import resolve


def digest(configuration, **changes):
    situation = resolve(msgspec.structs.replace(configuration, **changes), torch.device("cpu"))
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
