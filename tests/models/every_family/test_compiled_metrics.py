"""The families' metrics are the same when they are compiled."""

from __future__ import annotations

import copy

import pytest
import torch
from halves import FORMS, SIZES
from mahia_samples import MAHIA, SMALL, drawn

from models import FAMILIES

SILENT = ("hydra", "hydra, ccgqa", "mamba2, attention-free", "adaattn, narrow")
MEASURING = [form for form in FORMS if form not in SILENT]


def subject(form):
    """Return a small model in training, and its batch."""
    if form == "mahia":
        inputs, targets = drawn(SMALL)
        return MAHIA.materialise(SMALL, seed=3), (*inputs, *targets)
    name, more = FORMS[form]
    config = FAMILIES[name].configure("tiny", {"n_layers": 2} | SIZES[name] | more)
    batch = torch.randint(256, (2, 2, 24), generator=torch.Generator().manual_seed(1))
    return FAMILIES[name].materialise(config, seed=3), tuple(batch)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("form", [*MEASURING, "mahia"])
def test_a_compiled_training_step_measures_what_a_plain_one_does(form):
    plain, batch = subject(form)
    compiled = copy.deepcopy(plain)
    for loss in (plain.loss, torch.compile(compiled.loss, backend="aot_eager")):
        torch.manual_seed(0)  # of the noise in a router's scores
        loss(*batch).backward()
    assert any(values.any() for values in plain.metrics().values()), "nothing was measured"
    for name, values in plain.metrics().items():
        result = compiled.metrics()[name]
        torch.testing.assert_close(
            result, values, msg=lambda message, name=name: f"{name}: {message}"
        )
