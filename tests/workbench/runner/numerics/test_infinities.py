"""Infinities that a mask leaves in outputs are the model's own; NaN and others are failures."""

from __future__ import annotations

import functools

import pytest
import torch
from recording_wire import RecordingWire

from sessions.model import Configuration
from workbench import protocol
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments import run
from workbench.runner.experiments.run import Run, RunEnded
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import masked_inf, nan_watch
from workbench.runner.numerics.nan_watch import FiniteWatch

CPU = torch.device("cpu")
# The mask is of each batch's own inputs, so that every batch has infinities in other places.
FILE = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = self.a(x).masked_fill(x > 0.5, float("-inf"))
        {after}
        return y

def build():
    return Own(), lambda batch: torch.randn(batch, 16), lambda output, x: {loss}
"""
WRONG = {
    "no number": "y = y * torch.nan if self.calls > {calls} and x.dtype != torch.float64 else y",
    "infinite where nothing is masked": (
        "if self.calls > {calls} and x.dtype != torch.float64: y[0, x[0] < 0] = -torch.inf"
    ),
    "of the other sign": (
        "if self.calls > {calls} and x.dtype != torch.float64: y = y.masked_fill(x > 1, torch.inf)"
    ),
}


@pytest.fixture
def configured(tmp_path):
    def configured(after="pass", workload="forward", loss="output.exp().mean()", **toggles):
        path = tmp_path / "mine.py"
        path.write_text(FILE.format(after=after, loss=loss))
        return Configuration(
            family="own", preset="file", workload=workload, model={"source": str(path)},
            toggles=toggles,
        )  # fmt: skip

    return configured


@pytest.fixture
def failures(monkeypatch):
    """Return a function for the failures of a run of so many steps, each of them looked at."""

    def failures(configuration, steps=40):
        monkeypatch.setattr(run, "FLUSH_NS", -1)
        monkeypatch.setattr(nan_watch, "PERIOD_NS", 0)
        wire = RecordingWire()
        with pytest.raises(RunEnded):
            start = protocol.Start(configuration=configuration, check="never", steps=steps)
            Run(RunnerContext(wire, CPU), start).execute()
        return [message for message in wire.sent if isinstance(message, protocol.Failure)]

    return failures


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_a_run_of_masked_outputs_is_told_no_failure(configured, failures, precision):
    assert failures(configured(precision=precision)) == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("calls", [1, 60])
def test_what_is_wrong_beside_a_mask_is_told_once(configured, failures, fault, calls):
    # The reference, in FP64, does not do it.
    (failure,) = failures(configured(WRONG[fault].format(calls=calls)), steps=80)
    assert failure.kind == "nan" and failure.sentence.startswith("The output is not finite")


def test_an_infinite_loss_is_a_failure_whatever_the_outputs_hold(configured, failures):
    loss = "output.square().mean() + sum(p.sum() for p in [output[:, :1]])"
    (failure,) = failures(configured(workload="train", loss=loss), steps=3)
    assert failure.sentence.startswith("The loss is not finite")


def test_looking_leaves_the_batch_and_its_place_as_they_were(configured):
    arm = VariantCache().get(resolve(configured(), CPU), PhaseTracker(lambda phase: None))
    for _ in range(20):
        arm.batches.advance()
    index, inputs = arm.batches.index, arm.batches.inputs[0].clone()
    assert index == 19 % 16 and arm.batches.advances == 20
    expected_counts = masked_inf.expected(arm, 7)
    assert expected_counts[0] == expected_counts[1] == 0 < expected_counts[2]
    assert arm.batches.index == index and torch.equal(arm.batches.inputs[0], inputs)


def test_each_batch_is_looked_at_once(configured):
    arm = VariantCache().get(resolve(configured(), CPU), PhaseTracker(lambda phase: None))
    looked = []

    def expected(batch):
        looked.append(batch)
        return masked_inf.expected(arm, batch)

    watch = FiniteWatch(CPU, expected)
    for _ in range(40):
        arm.batches.advance()
        watch._due_ns = 0
        assert not watch.poll(arm.step(), arm.batches.index)
    assert looked == list(range(16))


def test_other_infinities_than_a_batch_had_before_are_found():
    watch = FiniteWatch(CPU, functools.partial(lambda counts, batch: counts, (0.0, 0.0, 1.0)))
    output = torch.tensor([1.0, -torch.inf, 2.0])
    assert not watch.poll(output)
    watch._due_ns = 0
    assert not watch.poll(output)
    watch._due_ns = 0
    assert watch.poll(output.flip(0).masked_fill(torch.tensor([True, False, False]), -torch.inf))
