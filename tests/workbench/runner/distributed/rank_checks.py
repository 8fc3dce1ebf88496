"""Configurations, marks and assertions that the tests of ranks share."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import pytest
import torch
from built import collect_evidence, own_peak, stepped
from runner_driver import Driver

from sessions.model import Configuration, Evidence
from workbench import protocol
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.numerics import comparison
from workbench.runner.variants.variant import Variant

CPU = torch.device("cpu")
BF16 = {"precision": "amp_bf16", "adamw": "fused", "triton": "on"}
needs_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks need two CPU cores"
)
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
needs_gpus = [pytest.mark.gpu, needs_two_gpus]
on_gpus = [*needs_gpus, pytest.mark.usefixtures("close_ranks")]  # for a module


def configure(
    family: str = "hydra",
    *,
    workload: str = "train",
    sequence: int | None = None,
    **model: object,
) -> Configuration:
    """Return a tiny model with a batch of four rows."""
    if sequence is None:
        sequence = 128 if family == "hydra" else 32
    settings = {"batch": 4, "sequence": sequence}
    return Configuration(
        family=family, preset="tiny", settings=settings, workload=workload, model=model
    )


def step(configuration: Configuration, **toggles: str) -> Variant:
    """Return an arm that shares no weights, after two steps."""
    return stepped(configuration, steps=2, arms=VariantCache(), **toggles)


def assert_evidence(arm: Variant, toggle: str, status: str, *parts: str) -> None:
    """Assert the status of a toggle's evidence, and that its text has these parts."""
    actual, text = collect_evidence(arm)[toggle]
    assert actual == status, text
    assert all(part in text for part in parts), text


def assert_right(arm: Variant, *toggles: str, unclear: str = "") -> None:
    """Assert that the toggles took effect and that the arm computes the reference's numbers.

    ``unclear``: the only reason why the check proves nothing.
    """
    evidence = collect_evidence(arm)
    for toggle in toggles:
        status, text = evidence[toggle]
        assert status == "effective", f"{toggle}: {text}"
    checked = comparison.check(arm, arm.situation)
    if unclear:
        assert checked.ok is None and checked.text.startswith(f"not checked: {unclear}; "), checked
    else:
        assert checked.ok, checked.text


def assert_less_memory(toggle: str, sequence: int) -> None:
    """Assert that two GPUs with the toggle need less than 0.85 of one GPU's peak for HYDRA base."""
    # Activations are most of the memory: two ranks also have buckets of gradients all the time.
    settings = {"batch": 2, "sequence": sequence}
    configuration = Configuration(family="hydra", preset="base", settings=settings)
    peaks = []
    for ranks in ("off", "2"):
        arms, toggles = VariantCache(), {**BF16, toggle: ranks}
        arm = stepped(configuration, "train", device="cuda", steps=4, arms=arms, **toggles)
        peaks.append(own_peak(arm, arms))
        del arm, arms
        torch.cuda.empty_cache()
    print(f"peak MiB {[peak >> 20 for peak in peaks]}")
    assert peaks[1] < 0.85 * peaks[0]


def assert_fault_is_noticed(
    arm: Variant,
    plant: Callable[[pytest.MonkeyPatch], None] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Assert that the check of numbers fails with the planted fault, and passes without one."""
    if plant is not None:
        plant(monkeypatch)
    checked = comparison.check(arm, arm.situation)
    assert checked.ok is (plant is None), checked.text


def switch_on_and_off(
    runner: Driver, configuration: Configuration, toggle: str, option: str, **toggles: str
) -> Evidence:
    """Return the evidence of a toggle that is switched on and off again while steps are made."""
    begin = len(runner.messages)
    start = msgspec.structs.replace(configuration, workload="train", toggles=toggles)
    runner.send(protocol.Start(configuration=start))
    runner.until(protocol.EvidenceFound)
    runner.send(protocol.Apply(toggles={toggle: option}))

    def evidence_of(message: object) -> list[Evidence]:
        if not isinstance(message, protocol.EvidenceFound):
            return []
        return [evidence for evidence in message.evidence if evidence.toggle == toggle]

    (evidence,) = evidence_of(runner.until(evidence_of))
    runner.send(protocol.Apply(toggles={toggle: "off"}))
    runner.until(protocol.SegmentStarted)
    runner.finish(protocol.Stop())
    failures = [m for m in runner.messages[begin:] if isinstance(m, protocol.Failure)]
    assert not failures, failures
    return evidence
