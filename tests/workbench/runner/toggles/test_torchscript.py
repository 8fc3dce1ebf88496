"""TorchScript: what is recorded computes the same on every batch, and what cannot be is refused."""

from __future__ import annotations

import msgspec
import pytest
import torch
from built_arms import configuration
from test_own_model import owned

from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.availability import blocked_options
from workbench.runner.config.resolve import resolve
from workbench.runner.failures import Mistake
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison
from workbench.runner.toggles import torchscript

CPU = torch.device("cpu")

BY_VALUE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        y = self.linear(x)
        return y if y.sum().item() > 0 else -y
def build():
    return Model(), lambda batch: torch.randn(batch, 4)
"""
OUTSIDE = BY_VALUE.replace(
    "return y if y.sum().item() > 0 else -y",
    "return y + torch.from_numpy(x.detach().clone().numpy() * 2)",
)


@pytest.fixture
def fuses(monkeypatch):
    """Let the CPU count as a device whose operators TorchScript can fuse."""
    monkeypatch.setattr(torchscript, "can_fuse", lambda device: True)


def arm_of(requested, **toggles):
    toggles = {**requested.toggles, "triton": "off", "torchscript": "trace", **toggles}
    situation = resolve(msgspec.structs.replace(requested, toggles=toggles), CPU)
    arm = VariantCache().get(situation, PhaseTracker(lambda phase: None))
    with arm.entered(), arm.watched():
        arm.step()
    return arm, situation


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("family", "workload"),
    [
        ("hydra", "forward"),
        ("hydra", "train"),
        ("moe", "train"),
        pytest.param("moe", "forward", marks=pytest.mark.slow),
        pytest.param("mahia", "forward", marks=pytest.mark.slow),
        pytest.param("mahia", "train", marks=pytest.mark.slow),
    ],
)
def test_what_is_recorded_is_right_on_other_batches_too(fuses, family, workload):
    arm, situation = arm_of(configuration(family, workload, 2, 16))
    with arm.entered():
        for _ in range(2):
            arm.ready()
            batch = arm.batches.inputs + (arm.batches.targets if arm.trainer else ())
            with torch.no_grad():
                ours, plain = arm.compute(*batch), arm.compute._compute(*batch)
            assert torch.allclose(ours, plain, atol=1e-5)
    judged = comparison.check(arm, situation)
    assert judged.ok, judged.text


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("workload", "precision"), [("forward", "amp_bf16"), ("forward", "bf16"), ("train", "bf16")]
)
def test_a_precision_is_recorded_with_it(fuses, small, workload, precision):
    arm, situation = arm_of(msgspec.structs.replace(small, workload=workload), precision=precision)
    judged = comparison.check(arm, situation)
    assert judged.ok, judged.text


def test_the_same_operators_one_by_one_are_no_effect(fuses, small):
    """This CPU has no fuser, so that output and work are those of eager mode."""
    arm, _ = arm_of(small)
    (finding,) = [evidence for evidence in arm.find_evidence() if evidence.toggle == "torchscript"]
    assert finding.status == "no effect" and "TorchScript fused no operators" in finding.text


@pytest.mark.parametrize(
    ("text", "why"), [(BY_VALUE, "cannot be recorded"), (OUTSIDE, "outside of torch's operators")]
)
def test_a_model_that_cannot_be_recorded_is_refused_with_the_reason(fuses, tmp_path, text, why):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(Mistake, match=why):
        arm_of(owned(path, "forward", settings={"batch": 2}))


def test_options_are_blocked_where_a_recording_would_leave_them_out(fuses, small):
    def reason(requested):
        return blocked_options(resolve(requested, CPU)).get("torchscript", {}).get("trace")

    off = msgspec.structs.replace(small, toggles={**small.toggles, "triton": "off"})
    assert reason(off) is None
    train = msgspec.structs.replace(off, workload="train")
    half = msgspec.structs.replace(train, toggles={**train.toggles, "precision": "amp_bf16"})
    assert reason(half).set == {"precision": "bf16"}
    full = msgspec.structs.replace(train, toggles={**train.toggles, "checkpointing": "full"})
    assert reason(full).set == {"checkpointing": "none"}
    assert (
        "heads of this family"
        in reason(configuration("adaattn", "forward", 1, 16, toggles={"triton": "off"})).reason
    )
    settings = {**off.settings, "new_tokens": 4}
    decode = msgspec.structs.replace(off, workload="decode", settings=settings)
    assert reason(decode).set == {"workload": "forward"}


def test_without_a_fuser_it_is_blocked(small):
    blocked = blocked_options(resolve(small, CPU))["torchscript"]["trace"]
    assert blocked.reason == "its fuser needs a CUDA GPU; this runner uses the CPU"
