"""A build that takes another model's parameters uses them wherever its file refers to its own."""

from __future__ import annotations

import pytest
import torch
from built import owned, stepped

from workbench.runner.numerics import comparison

FILE = """
import collections, functools, torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(x)

class Penalty:
    __slots__ = "weight"
    def __init__(self, weight):
        self.weight = weight
    def __call__(self, y, x):
        return loss_of(self.weight, y, x)

def loss_of(weight, y, x):
    return (y - 1).square().mean() + weight.square().mean()

def build():
    module = Own()
    weight = module.layer.weight
    {loss}
    return module, lambda batch: torch.randn(batch, 8), loss
"""
LOSSES = {
    "slot": "loss = Penalty(weight)",
    "positional of a partial": "loss = functools.partial(loss_of, weight)",
    "keyword of a partial": "loss = functools.partial(lambda y, x, w: loss_of(w, y, x), w=weight)",
    "inside of a partial": "loss = functools.partial(Penalty(weight))",
    "default": "loss = lambda y, x, w=weight: loss_of(w, y, x)",
    "keyword default": "loss = lambda y, x, *, w=weight: loss_of(w, y, x)",
    "deque": "queue = collections.deque([weight]); loss = lambda y, x: loss_of(queue[0], y, x)",
    "attribute of a function": "loss = lambda y, x: loss_of(loss.term, y, x); loss.term = weight",
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_reference_to_a_parameter_outside_of_its_module_is_followed(tmp_path, loss):
    path = tmp_path / "own.py"
    path.write_text(FILE.format(loss=loss))
    variant = stepped(owned(path))
    x = variant.batches.inputs[0]
    weight = variant.model.module.layer.weight
    with torch.no_grad():
        weight.fill_(3)
        output = variant.model(x)
        assert variant.model.loss(x) == (output - 1).square().mean() + 9
    result = comparison.check(variant, variant.situation)
    assert result.ok, result.text
