"""AdamW updates what the gradients of a user's model allow, and says what it cannot update."""

from __future__ import annotations

import pytest
import torch

from models import ConfigurationError
from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker

CPU = torch.device("cpu")
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
def stepped(tmp_path):
    def step(*, sparse=False, dtype="torch.float32", loss=MEAN, **toggles):
        path = tmp_path / "own.py"
        path.write_text(FILE.format(sparse=sparse, dtype=dtype, loss=loss))
        requested = Configuration(
            family="own",
            preset="file",
            workload="train",
            model={"source": str(path)},
            toggles=toggles,
        )
        situation = resolve(requested, CPU)
        variant = VariantCache().get(situation, PhaseTracker(lambda phase: None))
        with variant.entered():
            variant.ready()
            with variant.watched():
                variant.step()
        return variant

    return step


@pytest.mark.parametrize("option", ["foreach", "fused"])
def test_the_evidence_counts_only_tensors_that_are_updated(stepped, option):
    (evidence,) = [x for x in stepped(adamw=option).find_evidence() if x.toggle == "adamw"]
    assert evidence.status == "effective"
    assert evidence.text.startswith("AdamW updates 4 tensors"), "two, an embedding and a scale"


def test_an_update_that_overflows_and_is_skipped_is_still_one_of_adamw(stepped):
    variant = stepped(loss=f"{MEAN} * 1e6", precision="amp_fp16", adamw="fused")
    assert variant.trainer.scaler.get_scale() < 65536, "the first update was skipped"
    (evidence,) = [x for x in variant.find_evidence() if x.toggle == "adamw"]
    assert evidence.text.startswith("AdamW updates 4 tensors"), evidence.text


@pytest.mark.parametrize("toggles", [{}, {"adamw": "fused"}, {"precision": "amp_fp16"}])
def test_a_sparse_gradient_is_a_mistake_that_names_its_remedy(stepped, toggles):
    with pytest.raises(ConfigurationError, match=r"shape \(9, 8\) is sparse.*sparse=False"):
        stepped(sparse=True, **toggles)


def test_fused_adamw_of_complex_parameters_is_a_mistake_that_names_its_remedy(stepped):
    with pytest.raises(
        ConfigurationError, match=r"scale is complex; choose adamw=foreach or adamw=loop"
    ):
        stepped(dtype="torch.cfloat", adamw="fused")
    stepped(dtype="torch.cfloat", adamw="foreach")
