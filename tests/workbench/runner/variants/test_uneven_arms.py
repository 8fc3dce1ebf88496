"""Arms of which the median step tells too little: steps that are long at times, losses that end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sessions.model import Configuration
from sessions.studies import sweep
from workbench import protocol

TICKS = """
import time
import torch
from torch import nn

class Ticks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        ms = 3
        if self.layer.weight.dtype == torch.bfloat16:
            ms = 0.5 if self.calls % 4 else 24
        time.sleep(1e-3 * ms)
        return self.layer(x)

def build():
    return Ticks(), lambda batch: torch.randn(batch, 4)
"""
DIVERGES = """
import torch
from torch import nn

class Diverges(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * (float("nan") if self.calls > 100 else 1.0)

def build():
    return Diverges(), lambda batch: torch.randn(batch, 4), lambda y, x: y.square().mean()
"""


def owned(folder: Path, text: str, workload: str) -> Configuration:
    path = folder / "mine.py"
    path.write_text(text)
    return Configuration(
        family="own", preset="file", workload=workload, model={"source": str(path)}
    )


@pytest.fixture
def compared(runner, tmp_path):
    """Return a function that compares a file's model with what toggles make of it."""

    def compare(text: str, workload: str, toggles: dict[str, str], budget_s: float):
        base = owned(tmp_path, text, workload)
        other = msgspec.structs.replace(base, toggles=toggles)
        since = len(runner.messages)
        runner.send(protocol.Compare(base=base, other=other, budget_s=budget_s))
        assert runner.finish().reason == "done", runner.describe()
        failures = [m for m in runner.messages[since:] if isinstance(m, protocol.Failure)]
        return runner.session.comparisons[-1], failures

    return compare


def test_an_arm_whose_every_fourth_step_is_long_is_not_called_faster(compared):
    comparison, _ = compared(TICKS, "forward", {"precision": "bf16"}, 8.0)
    assert comparison.high < 1, "by the median step"
    assert comparison.verdict == "UNDECIDED"
    assert any("the ratio of mean step times" in reason for reason in comparison.facts["reasons"])


def test_a_loss_that_ends_in_the_middle_of_a_comparison_is_told_once_of_each_arm(compared):
    _, failures = compared(DIVERGES, "train", {"adamw": "fused"}, 5.0)
    sentences = [failure.sentence for failure in failures if failure.kind == "nan"]
    assert sorted(text.partition(" is not")[0] for text in sentences) == [
        "The loss of A",
        "The loss of B",
    ]


def test_a_loss_that_is_not_finite_is_told_of_a_point_of_a_sweep(runner, tmp_path):
    base = owned(tmp_path, DIVERGES, "train")
    runner.send(protocol.Sweep(base=base, axes={"settings.batch": [2]}, seconds=3.0))
    assert runner.finish().reason == "done", runner.describe()
    (reason,) = runner.session.studies[-1].tables[sweep.POINTS]["reason"]
    assert "its loss is not finite" in reason
