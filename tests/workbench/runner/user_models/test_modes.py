"""Modules that override ``train()``: their modes count, and what it does to weights is undone."""

from __future__ import annotations

import pytest
import torch
from built import owned, stepped
from torch import nn

from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison
from workbench.runner.user_models.user_model import OwnModel

CPU = torch.device("cpu")
FILE = """
import torch
from torch import nn
from torch.nn import functional as F

class Lora(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
        self.a, self.b = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(8, 2))
        self.merged = False
    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            change = self.b @ self.a * (-1 if self.merged else 1)
            {merge}
            self.merged = not mode
        return self
    def forward(self, x):
        y = super().forward(x)
        return y if self.merged else y + x @ self.a.t() @ self.b.t()

def build():
    module = nn.Sequential(Lora(), nn.Tanh(), Lora())
    return module, lambda batch: torch.randn(batch, 8), lambda y, x: y.square().mean()
"""
MERGES = {
    "in place": "self.weight.data += change",
    "in new memory": "self.weight.data = self.weight.data + change",
    "another parameter": "self.weight = nn.Parameter(self.weight.detach() + change)",
}


@pytest.mark.parametrize("merge", MERGES.values(), ids=MERGES)
@pytest.mark.parametrize("workload", ["forward", "train"])
def test_weights_that_a_mode_merges_are_the_same_in_every_configuration(tmp_path, merge, workload):
    path = tmp_path / "own.py"
    path.write_text(FILE.format(merge=merge))
    cache, models, addresses = VariantCache(), [], set()
    for number in (0, 1):
        situation = resolve(owned(path, workload), CPU)
        variant = cache.get(situation, PhaseTracker(lambda phase: None), number)
        models.append(variant.model)
        if not number:
            x = variant.batches.inputs[0]
            with torch.no_grad():
                expected = variant.model(x).clone()
                weight, more = (variant.model.module[i] for i in (0, 2))
                by_hand = x @ (weight.weight + weight.b @ weight.a).t() + weight.bias
                by_hand = by_hand.tanh() @ (more.weight + more.b @ more.a).t() + more.bias
            torch.testing.assert_close(expected, by_hand)
        result = comparison.check(variant, situation)
        assert result.ok, result.text
        addresses.add(variant.model.module[0].weight.data_ptr())
    assert len(addresses) == 1, "a captured graph of the first would read freed memory"
    with torch.no_grad():
        for model in models:
            assert torch.equal(model(x), expected)
            assert all(module.training == (workload == "train") for module in model.modules())


class Frozen(nn.Module):
    """Keeps its norm in evaluation mode, and remembers its own mode."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.mode = ""

    def train(self, mode: bool = True):
        super().train(mode)
        self.norm.eval()
        self.mode = "training" if mode else "evaluation"
        return self


def test_a_layer_that_stays_in_evaluation_mode_does():
    model = OwnModel(Frozen(), None)
    for mode, text in ((True, "training"), (False, "evaluation")):
        model.train(mode)
        assert model.module.training == mode and model.module.mode == text
        assert not model.module.norm.training


EXPORTED = """
import torch
from torch import nn

def build():
    program = torch.export.export(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), (torch.zeros(4, 8),))
    return program.module(), lambda n: torch.randn(n, 8), lambda y, x: y.square().mean()
"""


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_an_exported_module_whose_train_raises_runs(tmp_path, workload):
    """Such a module has its ``train()`` as an attribute, and not from its class."""
    path = tmp_path / "own.py"
    path.write_text(EXPORTED)
    arm = stepped(owned(path, settings={"batch": 4}), workload)
    result = comparison.check(arm, arm.situation)
    assert result.ok is True, result.text
