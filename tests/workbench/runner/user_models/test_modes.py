"""Modules that override ``train()``: their modes count, and what it does to weights is undone."""

from __future__ import annotations

import math

import pytest
import torch
from built import owned, stepped
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.model_state.run_state import are_same
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


class _HostCopies(TorchDispatchMode):
    """Counts the copies to the host that a call requests, also of tensors that are there."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.count += str(kwargs.get("device", "")) == "cpu"
        return func(*args, **kwargs)


def test_a_mode_that_a_model_overrides_needs_no_copy_of_its_weights_on_the_host():
    """Models of transformers override it. The copies took 2 to 3 s of a check for each of 8."""

    class Overriding(nn.Linear):
        def train(self, mode=True):
            return super().train(mode)

    model = OwnModel(nn.Sequential(Overriding(8, 8)), None)
    with _HostCopies() as copies:
        model.train(False)
    assert not copies.count and not model.module[0].training


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_the_same_if_their_signs_and_values_are_or_both_are_nan(dtype):
    for first in SPECIAL:
        for second in SPECIAL:
            pair = [torch.tensor([1.0, value], dtype=dtype) for value in (first, second)]
            both_nan = math.isnan(first) and math.isnan(second)
            expected = both_nan or (
                first == second and math.copysign(1, first) == math.copysign(1, second)
            )
            assert are_same(*pair) is expected, (first, second)
            assert are_same(*(x[1:].expand(3) for x in pair)) is expected
    negated = torch.complex(torch.ones(2), torch.ones(2)).conj().imag
    assert negated.is_neg() and are_same(negated, -torch.ones(2))
    assert not are_same(negated, torch.ones(2))
    other_nan = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert are_same(other_nan, torch.tensor([math.nan]))
    bytes_ = [torch.tensor([value], dtype=torch.uint8) for value in (1, 2)]
    assert not are_same(*bytes_) and not are_same(*(x.view(torch.float8_e4m3fn) for x in bytes_))
