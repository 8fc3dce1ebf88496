"""Steps that make weights NaN do not make the variants after them wrong: all share the weights."""

from __future__ import annotations

import pytest
import torch
from built_arms import stepped
from runner_driver import Driver

from sessions.model import Configuration
from workbench import protocol
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RESTARTED
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison

CPU = torch.device("cpu")
FILE = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.register_buffer("mask", torch.full((16, 16), -torch.inf).triu(1))

    def forward(self, x):
        y = self.norm(self.linear(x))
        return y * torch.inf if torch.is_autocast_enabled("cpu") else y

def build():
    return Own(), lambda batch: torch.randn(batch, 16), lambda y, x: y.float().square().mean()
"""


def built(requested, arms):
    return arms.get(resolve(requested, CPU), PhaseTracker(lambda phase: None))


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(FILE)

    def own(**toggles):
        return Configuration(
            family="own", preset="file", workload="train", model={"source": str(path)},
            settings={"batch": 4}, toggles=toggles,
        )  # fmt: skip

    return own


@pytest.mark.parametrize("adamw", ["loop", "foreach", "fused"])
def test_a_variant_after_one_that_ruined_the_weights_starts_from_the_first_ones(own, adamw):
    arms = VariantCache()
    plain = stepped(own(adamw=adamw), arms)
    initial = built(own(adamw=adamw), VariantCache()).model.state_dict()
    addresses = [parameter.data_ptr() for parameter in plain.model.parameters()]
    ruined = stepped(own(adamw=adamw, precision="amp_bf16"), arms)
    assert not ruined.weights.are_finite

    again = built(own(adamw=adamw), arms)
    assert again is plain
    assert [parameter.data_ptr() for parameter in again.model.parameters()] == addresses
    for name, value in again.model.state_dict().items():
        assert torch.isfinite(value).all() or name == "module.mask"
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(value, initial[name]), name
    assert stepped(own(adamw=adamw), arms).weights.are_finite
    assert comparison.check(again, resolve(own(adamw=adamw), CPU)).ok


def test_steps_are_not_blamed_for_weights_that_are_infinite_from_the_start(tmp_path):
    path = tmp_path / "infinite.py"
    path.write_text(
        FILE.replace('self.register_buffer("mask", torch.full((16, 16), -torch.inf).triu(1))',
                     "self.unused = nn.Parameter(torch.full((3,), -torch.inf))")
    )  # fmt: skip
    requested = Configuration(
        family="own", preset="file", workload="train", model={"source": str(path)}
    )
    arms, restarts = VariantCache(), []
    arms.on_restart = lambda: restarts.append(1)
    before = stepped(requested, arms).model.state_dict()["module.linear.weight"].clone()
    for _ in range(3):
        arm = stepped(requested, arms)
    assert not restarts
    assert not torch.equal(arm.model.state_dict()["module.linear.weight"], before)


@pytest.fixture
def driver():
    driver = Driver()
    driver.until_state("idle")
    yield driver
    driver.close()


def test_a_run_continues_with_finite_weights_after_a_toggle_that_ruined_them(own, driver):
    driver.start(own(precision="amp_bf16"), seconds=60, check="last")
    driver.until(lambda message: isinstance(message, protocol.Failure) and message.kind == "nan")
    driver.apply({"precision": "fp32"})
    driver.until_steps(20)
    driver.finish(protocol.Stop())
    assert any(RESTARTED in event.text for event in driver.session.events)
    ruined, last = driver.session.segments
    assert ruined.ledger["numbers_right"] is False
    assert last.ledger["numbers_right"] is True, last.ledger
    assert last.ledger["loss"] not in ("nan", "inf")


def test_a_comparison_calls_only_the_configuration_wrong_that_ruins_the_weights(own, driver):
    base, other = own(), own(precision="amp_bf16")
    driver.send(protocol.Compare(base=base, other=other, budget_s=1.0))
    driver.finish()
    right = [segment.ledger["numbers_right"] for segment in driver.session.segments]
    assert right == [True, False]
    failures = [m for m in driver.messages if isinstance(m, protocol.Failure)]
    assert [failure.kind for failure in failures] == ["nan"]
    assert "loss of B " in failures[0].sentence
