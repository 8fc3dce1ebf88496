"""The sketch of a step's outputs estimates how far two runs' outputs are apart."""

import subprocess

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sessions.model import OWN, Configuration
from sessions.verdicts.regression import MODEL_COMMIT, MODEL_FILE, decode_sketch, sketch_difference
from workbench.runner.numerics.result_sketch import sketch
from workbench.runner.revision import source_facts


def difference(base, current):
    return sketch_difference(decode_sketch(sketch(base)), decode_sketch(sketch(current)))


@given(st.integers(0, 2**16), st.sampled_from(["noise", "offset", "element", "scale"]))
def test_the_difference_of_two_sketches_is_that_of_the_outputs(seed, kind):
    random = torch.Generator().manual_seed(seed)
    base = torch.randn(3000, generator=random)
    changes = {
        "noise": 0.1 * torch.randn(3000, generator=random),
        "offset": torch.full((3000,), 0.1),
        "element": torch.eye(3000)[seed % 3000] * 5,
        "scale": 0.1 * base,
    }
    exact = float(changes[kind].norm() / base.norm())
    assert difference(base, base + changes[kind]) == pytest.approx(exact, rel=0.6)


def test_every_tensor_of_an_output_counts_and_its_position():
    x, y = torch.randn(2, 50).unbind()
    assert difference({"a": x, "b": [y]}, (x, y)) == 0
    assert difference((x, y), (y, x)) > 0.5
    assert difference(x, x[torch.randperm(50, generator=torch.Generator().manual_seed(0))]) > 0.3


def test_unsplit_numbers_have_a_sketch_and_no_tensors_have_none():
    tokens = torch.arange(9)
    assert difference(tokens, tokens + 1) > 0
    assert sketch(None) == "" and sketch(torch.tensor([float("nan")])) == ""
    assert len(decode_sketch(sketch(torch.ones(3)))) == 64


def test_pieces_make_no_difference(monkeypatch):
    x = torch.randn(1000)
    unsplit = decode_sketch(sketch(x))
    monkeypatch.setattr("workbench.runner.numerics.result_sketch._PIECE", 7)
    np.testing.assert_allclose(decode_sketch(sketch(x)), unsplit, rtol=1e-6)


def test_a_model_file_in_a_repository_has_its_commit_and_its_path(tmp_path):
    file = tmp_path / "sub" / "model.py"
    file.parent.mkdir()
    file.write_text("")

    def facts():
        source_facts.__globals__["_source_facts"].cache_clear()
        model = {"source": f"{file}:build"}
        return source_facts(Configuration(family=OWN, preset="own", model=model))

    assert facts() == {}
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "First"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    recorded = facts()
    assert recorded[MODEL_FILE] == "sub/model.py" and len(recorded[MODEL_COMMIT]) == 40
    file.write_text("changed = True")
    assert facts()[MODEL_COMMIT] == f"{recorded[MODEL_COMMIT]}+"
    assert source_facts(Configuration(family="hydra", preset="tiny")) == {}
