"""AdamW updates what the gradients of a user's model allow, and says what it cannot update."""

from __future__ import annotations

import pytest
from built import collect_evidence, owned, stepped

from models import ConfigurationError
from workbench.runner.config import resolve

FILE = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused, self.frozen = (nn.Linear(8, 8) for _ in range(3))
        self.frozen.requires_grad_(False)
        self.embedding = nn.Embedding(9, 8, sparse={sparse})
        self.scale = nn.Parameter(torch.ones(8, dtype={dtype}))

    def forward(self, tokens):
        return self.used(self.frozen(self.embedding(tokens))) * self.scale

def build():
    return Own(), lambda batch: torch.randint(9, (batch,)), {loss}
"""
MEAN = "lambda y, x: y.abs().square().mean()"


@pytest.fixture
def step(tmp_path, monkeypatch):
    # AMP in FP16 is offered on GPUs only; its loss scaler works on a CPU as well.
    monkeypatch.setattr(resolve, "require_unblocked", lambda situation: None)

    def step_once(*, sparse=False, dtype="torch.float32", loss=MEAN, **toggles):
        path = tmp_path / "own.py"
        path.write_text(FILE.format(sparse=sparse, dtype=dtype, loss=loss))
        return stepped(owned(path), **toggles)

    return step_once


@pytest.mark.parametrize("option", ["foreach", "fused"])
def test_the_evidence_counts_only_tensors_that_are_updated(step, option):
    status, text = collect_evidence(step(adamw=option))["adamw"]
    assert status == "effective"
    assert text.startswith("AdamW updates 4 tensors"), "two, an embedding and a scale"


def test_an_update_that_overflows_and_is_skipped_is_still_one_of_adamw(step):
    variant = step(loss=f"{MEAN} * 1e6", precision="amp_fp16", adamw="fused")
    assert variant.trainer.scaler.get_scale() < 65536, "the first update was skipped"
    _, text = collect_evidence(variant)["adamw"]
    assert text.startswith("AdamW updates 4 tensors"), text


@pytest.mark.parametrize("toggles", [{}, {"adamw": "fused"}, {"precision": "amp_fp16"}])
def test_a_sparse_gradient_is_a_mistake_that_names_its_remedy(toggles, step):
    with pytest.raises(ConfigurationError, match=r"shape \(9, 8\) is sparse.*sparse=False"):
        step(sparse=True, **toggles)


def test_fused_adamw_of_complex_parameters_is_a_mistake_that_names_its_remedy(step):
    with pytest.raises(
        ConfigurationError, match=r"scale is complex; choose adamw=foreach or adamw=loop"
    ):
        step(dtype="torch.cfloat", adamw="fused")
    step(dtype="torch.cfloat", adamw="foreach")
