"""Calls beside the steps of a user's model support what its steps support, and disturb none."""

from __future__ import annotations

import pytest
from built import owned, stepped

from workbench.runner.numerics import comparison

FILE = """
import torch
from torch import nn

class Wide(nn.Linear):
    def forward(self, x):
        return super().forward(x), self.bias

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.wide = Wide(8, 8)

    def forward(self, x):
        {body}

module = Own()
compiled = torch.compile(lambda x: x.tanh(), backend="aot_eager", fullgraph=True)

def loss(y, x):
    {loss}

def build():
    return module, lambda batch: torch.randn(batch, 8, requires_grad={needed}), loss
"""
PLAIN = "return self.net(x)"
MEAN = "return (y - 1).square().mean()"
PENALTY = """
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(module.net(x).sum(), x, create_graph=True)
    return y.mean() + (slope.norm(dim=1) - 1).square().mean()
"""
FORCES = "return -torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]"
OWN_FORCES = f"x = x.detach().requires_grad_(); {FORCES}"
BOTH_MODES = f"""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            {FORCES}
"""
TRAINS_ONLY = """
        if not self.training:
            raise RuntimeError("only training is supported")
        return self.net(x)
"""


@pytest.fixture
def step(tmp_path):
    def checked(body=PLAIN, loss=MEAN, *, needed=False):
        path = tmp_path / "own.py"
        path.write_text(FILE.format(body=body, loss=loss, needed=needed))
        variant = stepped(owned(path))
        return variant, comparison.check(variant, variant.situation)

    return checked


@pytest.mark.parametrize(
    ("body", "loss", "needed"),
    [
        (PLAIN, PENALTY, False),
        (OWN_FORCES, MEAN, False),
        (FORCES, MEAN, True),
        (BOTH_MODES, MEAN, False),
    ],
    ids=["gradient penalty", "forces", "forces of the given inputs", "forces in any mode"],
)
def test_a_model_that_differentiates_trains_and_is_checked(step, body, loss, needed):
    variant, result = step(body, loss, needed=needed)
    assert result.ok and result.reference == "float64", result.text
    assert result.curve_steps, result.text
    assert variant.record.facts["model_flops"] > 0
    assert variant.probe.needs_gradients == (body != BOTH_MODES)
    assert not any(parameter.grad is not None for parameter in variant.model.parameters())


def test_a_model_without_an_evaluation_mode_trains_and_is_checked(step):
    variant, result = step(TRAINS_ONLY)
    assert result.ok, result.text
    assert all(module.training for module in variant.model.modules())


def test_what_a_model_compiles_as_one_graph_is_no_obstacle_to_counting_flops(step):
    variant, result = step("return compiled(self.net(x))")
    assert result.ok, result.text
    assert variant.record.facts["model_flops"] == 2 * 4 * (8 * 16 + 16) * 3 - 2 * 4 * 8 * 16


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_not_counted_as_the_models_flops(step, reentrant):
    """A reentrant checkpoint needs an input with a gradient, which the first layer computes."""
    call = f"torch.utils.checkpoint.checkpoint(self.net, x, use_reentrant={reentrant})"
    variant, _ = step(f"return {call}", needed=reentrant)
    of_input = 0 if reentrant else 2 * 4 * 8 * 16
    assert variant.record.facts["model_flops"] == 2 * 4 * (8 * 16 + 16) * 3 - of_input


def test_what_is_compiled_in_a_check_can_be_called_after_it(step):
    body = "return compiled(nn.functional.dropout(self.net(x), 0.1, self.training))"
    variant, result = step(body)
    assert result.ok and "in evaluation mode" in result.text, result.text
    again = comparison.check(variant, variant.situation)
    assert again.ok, again.text
    with variant.entered():
        for _ in range(2):
            variant.ready()
            variant.step()


def test_a_linear_layer_that_returns_several_tensors_is_seen(step):
    variant, result = step("return self.net(self.wide(x)[0])")
    assert result.ok, result.text
    assert {"module.wide", "module.net.0"} <= variant.probe.ran
