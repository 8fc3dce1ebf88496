"""Variants that are built and stepped in the test's process, and the evidence of their options."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from sessions.model import OWN, Configuration
from workbench.protocol import Blocked
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config import resolve
from workbench.runner.distributed import world
from workbench.runner.experiments import checks
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.profiling.probes import allocations
from workbench.runner.variants.variant import Variant


def owned(source: object, workload: str = "train", **changes: Any) -> Configuration:
    """Return the configuration of a user's file."""
    return Configuration(
        family=OWN, preset="file", workload=workload, model={"source": str(source)}, **changes
    )


def stepped(
    configuration: Configuration,
    workload: str = "train",
    *,
    device: str = "cpu",
    steps: int = 1,
    arms: VariantCache | None = None,
    **toggles: str,
) -> Variant:
    """Return an arm after its first steps, each of another batch.

    It shares the weights of ``arms``, if given.
    """
    requested = msgspec.structs.replace(configuration, workload=workload, toggles=toggles)
    situation = resolve.resolve(requested, torch.device(device))
    resolve.require_unblocked(situation)
    arm = (arms or VariantCache()).get(situation, PhaseTracker(lambda phase: None))
    with arm.entered():
        with arm.watched():
            arm.step()
        for _ in range(steps - 1):
            arm.batches.advance()
            arm.step()
    return arm


def collect_evidence(arm: Variant) -> dict[str, tuple[str, str]]:
    """Return the status and the text of every option that is not off, by toggle."""
    return {evidence.toggle: (evidence.status, evidence.text) for evidence in arm.find_evidence()}


def step_without_peer(arm: Variant) -> None:
    """Kill the only other rank of an arm that is entered, and step on, which fails."""
    ranks = world.current()
    assert ranks is not None
    (peer,) = ranks.workers
    peer.process.kill()
    peer.process.wait()
    for _ in range(3):  # the first may still be taken
        arm.step()
        if arm.situation.on_gpu:
            torch.cuda.synchronize()


def left_by_a_step(arm: Variant) -> int:
    """Bytes; the arm is entered."""
    return allocations.of(lambda: checks.step(arm, 1), arm.situation.device).left


def own_peak(arm: Variant, arms: VariantCache) -> int:
    """Bytes that four steps of an arm of ``arms`` need at most on its GPU, without the others'."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with arm.entered():
        for _ in range(4):
            arm.batches.advance()
            arm.step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - arms.others_bytes(arm)


def blocked(
    configuration: Configuration, workload: str = "train", *, device: str = "cpu", **toggles: str
) -> dict[str, dict[str, Blocked]]:
    """Return what cannot be used under these options."""
    requested = msgspec.structs.replace(configuration, workload=workload, toggles=toggles)
    return resolve.availability(requested, torch.device(device)).blocked
