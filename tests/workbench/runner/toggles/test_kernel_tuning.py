"""The toggle of kernel tuning: when it can be used, its phase, and what it says of the tiles."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import msgspec
import pytest
import torch
from built import blocked, owned, stepped
from disarmed import PLAIN

import kernels
from kernels import Choice, hardware
from kernels.core import tuning
from sessions.model import Phase
from workbench import protocol
from workbench.runner.config.availability import why_blocked
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.interfaces import StepRecord
from workbench.runner.toggles import all_toggles, kernel_tuning

CPU = torch.device("cpu")
TOGGLE = all_toggles()["kernel_tuning"]
TUNED = Choice("rms_norm.backward", "768", (8, 4), (4, 4), "tuned", 20.0, 30.0)
SAME = Choice("gated.forward", "768", (2048, 8), (2048, 8), "disk", 30.0, 30.0)
HEURISTIC = Choice("qk.forward", "64", (8, 4), (8, 4), "heuristic")


def test_without_a_gpu_it_is_blocked_with_the_reason(small):
    why = blocked(small)["kernel_tuning"]
    assert why.keys() == {"off", "on"}
    assert why["on"].reason == "needs a CUDA GPU; this runner uses the CPU"


@pytest.mark.parametrize("chosen", [{"triton": "on"}, {"attention": "triton"}, {}])
def test_it_needs_a_triton_kernel_to_tune(small, monkeypatch, chosen):
    toggles = {"triton": "off", "attention": "auto", **chosen}
    requested = msgspec.structs.replace(small, toggles=toggles)
    on_gpu = dataclasses.replace(resolve(requested, CPU), device=torch.device("cuda"))
    monkeypatch.setattr(kernel_tuning, "unavailable", lambda *_: None)
    why = TOGGLE.blocked("on", on_gpu)
    if chosen:
        assert why is None
    else:
        assert why.reason == "needs Triton kernels, but every operator runs in PyTorch"
        assert why.set == {"triton": "on"}


@pytest.mark.parametrize(
    ("toggles", "reason", "choices"),
    [
        ({}, "affects only operators of kernels, which your file does not call", None),
        ({"patch_rms_norm": "on"}, "", None),
        ({"patch_rms_norm": "on", "triton_rms_norm": "auto"}, "", None),
        ({"patch_rms_norm": "on", "patch_rope": "on", "triton_rope": "torch"}, "", None),
        (
            {"patch_rms_norm": "on", "triton_rms_norm": "torch"},
            "needs Triton kernels, but every operator that your model calls has another",
            {"triton_rms_norm": "follow"},
        ),
    ],
)
def test_replaced_modules_of_a_users_model_are_tuned(toggles, reason, choices):
    """The file itself calls no operator of the library: only the toggles bring some."""
    requested = owned(PLAIN, "forward", toggles={"triton": "off", **toggles})
    situation = resolve(requested, CPU)
    on_gpu = dataclasses.replace(situation, device=torch.device("cuda"))
    with hardware.imagined((9, 0)):
        for option in ("on", "off"):
            why = why_blocked("kernel_tuning", option, on_gpu)
            assert (why.reason if why else "").startswith(reason) and (why is None) == (not reason)
            if choices is not None:
                assert why.set == choices and "RMSNorm" in why.fix


def test_tuning_comes_before_the_first_step_as_a_phase_of_its_own(small, monkeypatch):
    arm, seen, phases = stepped(small), [], []
    build = SimpleNamespace(preparations=[], flags=[], phases=PhaseTracker(phases.append))
    TOGGLE.apply("on", build)
    arm.preparations, compute = build.preparations, arm.compute

    def watched(*batch):
        loss = compute(*batch)
        loss.register_hook(lambda gradient: seen.append(("backward", tuning._mode)))
        seen.append(("forward", tuning._mode))
        return loss

    arm.compute = watched
    before = {name: p.clone() for name, p in arm.model.named_parameters()}
    with arm.entered():
        assert arm.prepare()
    assert seen == [("forward", "on"), ("backward", "on")]
    assert phases == [Phase.AUTOTUNE, Phase.WARM_UP] and tuning._mode == "cached"
    assert arm.ledger["autotune_s"] > 0
    changed = [n for n, p in arm.model.named_parameters() if not torch.equal(p, before[n])]
    assert not changed, "no step was taken"


def test_heuristics_are_in_force_while_the_arm_is(small):
    build = SimpleNamespace(preparations=[], flags=[])
    TOGGLE.apply("off", build)
    arm = stepped(small)
    arm.flags.extend(build.flags)
    with arm.entered():
        assert tuning._mode == "off"
    assert tuning._mode == "cached" and not arm.prepare()


def test_an_arm_knows_the_tiles_of_its_first_step(small, monkeypatch):
    arm = stepped(small)
    assert arm.record.tiles == []
    monkeypatch.setattr(kernels, "tiles", lambda: [TUNED])
    with arm.entered(), arm.watched():
        arm.step()
    assert arm.record.tiles == [TUNED]


@pytest.mark.parametrize(
    ("option", "tiles", "status", "text"),
    [
        ("on", [TUNED, SAME], "effective",
         "tiles of 2 launches: 1 tuned, 1 from disk, tuning took 4.2 s; "
         "faster than the heuristic's while tuning: 1 (rms_norm.backward 1.50x)"),
        ("on", [SAME], "no effect", "tiles of 1 launch: 1 from disk, tuning took 4.2 s; "
         "no tile was faster than the heuristic's while tuning"),
        ("off", [HEURISTIC], "no effect", "tiles of 1 launch: 1 by heuristic, the same as "
         "without this option: no tile is stored for them"),
        ("off", [SAME], "no effect", "tiles of 1 launch: 1 from disk"),
        ("on", [], "no effect", "no Triton kernel with a choice of tiles was launched"),
    ],
)  # fmt: skip
def test_the_evidence_tells_where_the_tiles_came_from_and_what_they_gave(
    option, tiles, status, text
):
    observed = SimpleNamespace(record=StepRecord(tiles=tiles), ledger={"autotune_s": 4.2})
    finding = TOGGLE.evidence(option, observed)
    assert (finding.status, finding.text) == (status, text)


def test_the_benchmark_refuses_to_tune_where_there_is_nothing_to_tune(runner):
    runner.send(protocol.Bench(operators=["swiglu"], tune=True))
    assert runner.finish().reason == "failed"
    failure = [m for m in runner.messages if isinstance(m, protocol.Failure)][-1]
    assert failure.kind == "mistake"
    assert failure.sentence == "tune: there is nothing to tune: Triton needs a CUDA GPU, not cpu"


def test_heuristics_take_effect_where_another_tile_is_stored(monkeypatch):
    monkeypatch.setattr(kernels, "are_stored", lambda choices: True)
    observed = SimpleNamespace(record=StepRecord(tiles=[HEURISTIC]), ledger={})
    evidence = TOGGLE.evidence("off", observed)
    assert evidence.status == "effective"
