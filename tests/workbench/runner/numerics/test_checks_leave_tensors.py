"""A check leaves every tensor of a variant's model where it is: captured graphs use the addresses.

The case that was not handled: layers that share a module, such as a table of rotary cosines. The
check in FP32 replaced the shared tensors once for each layer, and put the wrong ones back.
"""

from __future__ import annotations

import pytest
import torch
from built_arms import configuration, stepped
from stateful_models import KINDS, stateful
from variant_snapshot import SOME_FAMILIES, WORKLOADS, Snapshot

from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.config.resolve import resolve
from workbench.runner.failures import Cancelled
from workbench.runner.numerics import comparison, structure_check, training_curve
from workbench.runner.numerics.training_copies import restored
from workbench.runner.training.trainer import Trainer, plain_optimizer

CPU = torch.device("cpu")
REPEATED = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.register_buffer("scale", torch.full((16,), 0.5))

    def forward(self, x):
        return x + self.scale * self.linear(self.norm(x))

class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer()] * 3)
        self.head = self.layers[0].linear

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def build():
    return Repeated(), lambda batch: torch.randn(batch, 16), lambda y, x: y.float().square().mean()
"""


@pytest.fixture(autouse=True)
def short_curves(monkeypatch):
    """Train each copy for two steps, of which the second finds the state that the first left."""
    monkeypatch.setattr(training_curve, "STEPS", 2)


def check_leaves_tensors(variant, situation, monkeypatch):
    errors = []
    find = structure_check.find
    monkeypatch.setattr(
        structure_check, "find", lambda *given: errors.append(find(*given)) or errors[-1]
    )
    before = Snapshot(variant)
    result = comparison.check(variant, situation)
    assert result.ok, result.text
    assert errors == [None] or variant.model.adapted(), "single layers must have been checked"
    assert not before.differences(Snapshot(variant))


@pytest.mark.sample(2)
@pytest.mark.parametrize("rope_cache", ["per_layer", "shared"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_check_leaves_every_tensor_of_a_bundled_model(family, rope_cache, monkeypatch):
    toggles = {"precision": "amp_bf16", "rope_cache": rope_cache}
    requested = configuration(family, "train", toggles=toggles)
    variant = stepped(requested)
    check_leaves_tensors(variant, resolve(requested, CPU), monkeypatch)


def test_a_check_leaves_every_tensor_of_a_model_with_a_repeated_module(tmp_path, monkeypatch):
    path = tmp_path / "repeated.py"
    path.write_text(REPEATED)
    requested = Configuration(
        family="own", preset="file", workload="train", model={"source": str(path)},
        toggles={"precision": "amp_bf16"},
    )  # fmt: skip
    check_leaves_tensors(stepped(requested), resolve(requested, CPU), monkeypatch)


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "precision", ["amp_bf16", *(pytest.param(p, marks=pytest.mark.slow) for p in ("fp32", "bf16"))]
)
@pytest.mark.parametrize("workload", ["forward", "train"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_check_leaves_the_state_of_a_users_model(kind, workload, precision, tmp_path):
    requested = stateful(tmp_path, kind, workload, precision=precision)
    variant = stepped(requested)
    before = Snapshot(variant)
    result = comparison.check(variant, resolve(requested, CPU))
    assert result.ok or precision == "bf16", result.text  # which rounds some of the state
    assert not before.differences(Snapshot(variant))


@pytest.mark.parametrize("scheme", ["fp8_row", "fp8_tensor", "int8_dynamic", "int8_weight_only"])
def test_a_check_leaves_the_codes_of_a_users_model(scheme, tmp_path):
    requested = stateful(tmp_path, "a replaced buffer", "forward", quantization=scheme)
    variant = stepped(requested)
    before = Snapshot(variant)
    assert comparison.check(variant, resolve(requested, CPU)).ok
    assert not before.differences(Snapshot(variant))


def failing(monkeypatch, variant, where, failures):
    """Let the update of the variant run out of memory half-way, in so many of its steps."""
    owner, name = (variant.trainer, "backward")
    if where == "optimizer":
        owner, name = (variant.trainer.optimizer, "step")
    succeed, calls = getattr(owner, name), []

    def fail(*given, **more):
        result = succeed(*given, **more)
        calls.append(given)
        if len(calls) <= failures:
            raise torch.OutOfMemoryError("no memory is left")
        return result

    monkeypatch.setattr(owner, name, fail)
    return calls


@pytest.mark.sample(2)
@pytest.mark.parametrize("where", ["backward", "optimizer"])
@pytest.mark.parametrize("family", SOME_FAMILIES)
def test_a_check_that_runs_out_of_memory_leaves_everything(family, where, monkeypatch):
    requested = configuration(family, "train")
    variant = stepped(requested)
    before = Snapshot(variant)
    with monkeypatch.context() as patch:
        calls = failing(patch, variant, where, failures=1000)
        result = comparison.check(variant, resolve(requested, CPU))
    assert "loss curve not checked" in result.text and len(calls) == 2  # once in each precision
    assert not before.differences(Snapshot(variant))


@pytest.mark.sample(2)
@pytest.mark.parametrize("where", ["backward", "optimizer"])
@pytest.mark.parametrize("family", SOME_FAMILIES)
def test_gradients_of_a_failed_attempt_are_no_part_of_the_next(family, where, monkeypatch):
    requested = configuration(family, "train")
    variant = stepped(requested)
    with monkeypatch.context() as patch:
        calls = failing(patch, variant, where, failures=1)
        result = comparison.check(variant, resolve(requested, CPU))
    assert len(calls) > 2 and result.ok, result.text


def test_the_scaler_takes_no_scaled_gradients_for_unscaled_ones():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = plain_optimizer([weight])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    trainer = Trainer(optimizer, scaler)
    trainer.update(weight.sum())
    with pytest.raises(torch.OutOfMemoryError), restored({"weight": weight}, [], trainer):
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer)
        raise torch.OutOfMemoryError("no memory is left")
    assert weight.grad is None
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)  # it would refuse to do so twice
    assert torch.equal(weight.grad, torch.ones(4))


class CancelAt:
    """Cancels a check at its first, second, third... opportunity."""

    def __init__(self, opportunity):
        self.opportunity, self.seen = opportunity, 0

    def __call__(self):
        self.seen += 1
        if self.seen == self.opportunity:
            raise Cancelled


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("family", "workload"),
    WORKLOADS,
)
def test_a_check_that_is_cancelled_or_not_leaves_everything(family, workload):
    requested = configuration(family, workload, toggles={"precision": "amp_bf16"})
    variant = stepped(requested)
    with variant.entered():
        variant.restart()
        for _ in range(2):
            variant.ready()
            variant.step()
    before, opportunity, completed = Snapshot(variant), 0, False
    while not completed:
        opportunity += 1 if opportunity < 5 else 20
        try:
            comparison.check(variant, resolve(requested, CPU), CancelAt(opportunity))
            completed = True
        except Cancelled:
            pass
        assert not before.differences(Snapshot(variant))
    assert opportunity > 2
