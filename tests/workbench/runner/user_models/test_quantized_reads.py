"""Users' models that use a quantized weight otherwise than by a call of its layer."""

from __future__ import annotations

import pytest
from built import collect_evidence, owned, stepped

from models.errors import ConfigurationError
from models.layers.quantized_linear import QuantizedLinear
from workbench.runner.numerics import comparison

FILE = """
import torch
import torch.nn.functional as F
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.update = nn.Parameter(0.1 * torch.randn(16, 16))
    def forward(self, x):
        return {output}

def build():
    return Own(), lambda n: torch.randn(n, 16)
"""


@pytest.fixture
def quantized(tmp_path):
    """Return a function that builds a model with this output and steps it once."""

    def quantized(output, scheme="int8_weight_only"):
        path = tmp_path / "own.py"
        path.write_text(FILE.format(output=output))
        return stepped(owned(path), "forward", quantization=scheme)

    return quantized


@pytest.mark.parametrize(
    "output",
    [
        "F.linear(x, self.a.weight, self.a.bias)",
        "x @ self.a.weight.t()",
        "torch.einsum('bi,oi->bo', x, self.a.weight)",
        "F.linear(x, self.a.weight + self.update)",
        "F.linear(self.a(x), self.a.weight.t())",
    ],
)
def test_a_weight_that_is_read_has_the_quantized_values_and_is_right(quantized, output):
    arm = quantized(output)
    outcome = comparison.check(arm, arm.situation)
    assert outcome.ok, outcome.text
    status, text = collect_evidence(arm)["quantization"]
    assert status == "effective"
    called = "self.a(x)" in output
    assert (
        "1 of 4 linear layers" if called else "dequantizes the weights of 1 linear layer"
    ) in text


def test_a_weight_that_is_read_is_multiplied_in_full_precision(quantized):
    arm = quantized("F.linear(x, self.a.weight)", "int8_dynamic")
    status, text = collect_evidence(arm)["quantization"]
    assert status == "no effect" and text.startswith("no product used 8 bits: each step dequant")


def test_a_wrong_quantized_weight_that_is_read_is_red(quantized):
    arm = quantized("F.linear(x, self.a.weight)")
    layer = next(m for m in arm.model.modules() if isinstance(m, QuantizedLinear))
    layer.scale = layer.scale * 1.1  # and not in the shared codes
    assert comparison.check(arm, arm.situation).ok is False


def test_weights_that_a_fused_operator_of_torch_reads_are_right(quantized):
    arm = quantized("self.layer(x[:, None])")
    outcome = comparison.check(arm, arm.situation)
    assert outcome.ok, outcome.text
    status, text = collect_evidence(arm)["quantization"]
    assert status == "effective" and "dequantizes the weights of " in text


@pytest.mark.parametrize(
    "output",
    [
        "self.a(x) * sum(p.square().sum() for p in self.a.parameters())",
        "self.a(x) * next(self.a.parameters()).mean()",
        "self.a(x) * sum(p.numel() for p in self.parameters())",
        "F.linear(x, self.a._parameters['weight'])",
        "F.linear(x, self.a.state_dict()['weight'])",
    ],
)
def test_a_quantized_weight_that_is_read_as_a_parameter_is_refused(quantized, output):
    """The layer has no such parameter: a step would compute something else without an error."""
    with pytest.raises(
        ConfigurationError, match=r"reads the weight of module\.a as a parameter, .* quantiza"
    ):
        quantized(output)


@pytest.mark.parametrize(
    "output",
    [
        "self.a(x.to(next(self.a.parameters()).dtype))",
        "self.a(x.to(self.a.weight.dtype))",
        "torch.func.functional_call(self.a, dict(self.a.named_parameters()), (x,))",
    ],
)
def test_properties_of_parameters_and_calls_stay_possible(quantized, output):
    arm = quantized(output)
    assert comparison.check(arm, arm.situation).ok
    status, text = collect_evidence(arm)["quantization"]
    assert status == "effective" and "dequantizes" not in text
    assert "module.a.weight" not in dict(arm.model.named_parameters())
