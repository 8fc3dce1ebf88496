"""The effect of mixed precision, seen by the products of a model without linear layers."""

from __future__ import annotations

import pytest
import torch

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker

CPU = torch.device("cpu")
FILE = """
import torch
from torch import nn
from torch.nn import functional as F

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.zeros(16))
        self.filters = nn.Parameter(torch.randn(4, 1, 3))
        self.gru = nn.GRU(16, 8)

    def product(self, x):
        return {product}

    def forward(self, x):
        {how}

def build():
    return Own(), lambda batch: torch.randn(batch, 16), lambda output, x: output.float().mean()
"""
AS_IT_IS = "return self.product(x)"
# What a library does that guards itself against autocast.
ALL_BITS = """with torch.autocast(x.device.type, enabled=False):
            return self.product(x.to(self.w.dtype))"""
PRODUCTS = {
    "matmul": ("x @ self.w", "1 matrix product"),
    "einsum": ("torch.einsum('bi,ij->bj', x, self.w)", "1 matrix product"),
    "F.linear": ("F.linear(x, self.w, self.b)", "1 matrix product"),
    "baddbmm": ("torch.baddbmm(self.b, x[None], self.w[None])", "1 matrix product"),
    "F.conv1d": ("F.conv1d(x[:, None], self.filters)", "1 convolution"),
    "transposed": ("F.conv_transpose1d(x[:, None], self.filters[:1])", "1 convolution"),
    "attention": (
        "F.scaled_dot_product_attention(*[x.view(-1, 1, 4, 4)] * 3)",
        "1 attention",
    ),
    "recurrent": ("self.gru(x[:, None])[0]", "5 matrix products"),
}


@pytest.fixture
def evidence_of(tmp_path):
    def evidence_of(product, how=AS_IT_IS, precision="amp_bf16", workload="forward"):
        path = tmp_path / "mine.py"
        path.write_text(FILE.format(product=product, how=how))
        configuration = Configuration(
            family="own", preset="file", workload=workload, model={"source": str(path)},
            toggles={"precision": precision},
        )  # fmt: skip
        arm = VariantCache().get(resolve(configuration, CPU), PhaseTracker(lambda phase: None))
        state = torch.get_rng_state()
        (evidence,) = [item for item in arm.find_evidence() if item.toggle == "precision"]
        assert torch.equal(torch.get_rng_state(), state), "it has drawn numbers of the run"
        assert {module.training for module in arm.model.modules()} == {workload == "train"}
        return evidence

    return evidence_of


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_the_format_that_was_asked_for_show_the_effect(evidence_of, name):
    product, words = PRODUCTS[name]
    evidence = evidence_of(product)
    assert evidence.status == "effective", evidence.text
    assert words in evidence.text and "of torch computed in torch.bfloat16" in evidence.text
    assert evidence.text.endswith("weights stay torch.float32")


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_that_keep_all_bits_show_that_it_did_nothing(evidence_of, name):
    product, words = PRODUCTS[name]
    evidence = evidence_of(product, ALL_BITS)
    assert evidence.status == "no effect", evidence.text
    assert words in evidence.text and "of torch computed in torch.float32" in evidence.text


def test_each_format_is_counted_where_there_are_two(evidence_of):
    evidence = evidence_of("x @ self.w @ self.w", f"x = x @ self.w\n        {ALL_BITS}")
    words = "1 matrix product of torch computed in torch.bfloat16; 2 matrix products of torch"
    assert evidence.status == "effective" and evidence.text.startswith(words)


@pytest.mark.parametrize(
    "product", ["x * self.b", "F.interpolate(x[:, None, None], scale_factor=2, mode='bilinear')"]
)
def test_a_model_without_products_leaves_it_unknown(evidence_of, product):
    assert evidence_of(product).status == "unknown"


def test_weights_in_bf16_are_an_effect_whatever_computes(evidence_of):
    evidence = evidence_of("x.float() @ self.w.float()", precision="bf16")
    words = "weights are torch.bfloat16; 1 matrix product of torch computed in torch.float32"
    assert evidence.status == "effective" and evidence.text == words


def test_what_draws_is_asked_without_a_number_of_the_run(evidence_of):
    assert evidence_of("F.dropout(x) @ self.w", workload="train").status == "effective"


def test_outputs_in_evaluation_need_not_be_what_the_loss_takes(evidence_of):
    how = "y = self.product(x)\n        return y if self.training else (y, y)"
    assert evidence_of("x @ self.w", how, workload="train").status == "effective"
