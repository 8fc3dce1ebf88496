"""Variants of tiny models of any family, built in this process and stepped once."""

from __future__ import annotations

import torch

from sessions.model import Configuration, Evidence
from workbench.protocol import Blocked
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.availability import blocked_options
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.variants.variant import Variant

CPU = torch.device("cpu")


def configuration(
    family: str, workload: str = "forward", batch: int = 1, sequence: int = 16, **more
) -> Configuration:
    """Return the family's tiny preset."""
    settings = {"batch": batch, "sequence": sequence}
    settings |= {"new_tokens": 4} if workload == "decode" else {}
    return Configuration(family=family, preset="tiny", workload=workload, settings=settings, **more)


def stepped(
    requested: Configuration, arms: VariantCache | None = None, device: torch.device = CPU
) -> Variant:
    """Return the arm of a configuration after a step that was watched."""
    arm = (arms or VariantCache()).get(resolve(requested, device), PhaseTracker(lambda phase: None))
    with arm.entered():
        arm.ready()
        with arm.watched():
            arm.step()
    return arm


def evidence_of(arm: Variant, toggle: str) -> Evidence:
    """Return what a toggle finds in the arm as it is now."""
    arm.evidence = None
    (evidence,) = [item for item in arm.find_evidence() if item.toggle == toggle]
    return evidence


def blocked(requested: Configuration, toggle: str, option: str) -> Blocked | None:
    """Return why an option cannot be used."""
    return blocked_options(resolve(requested, CPU)).get(toggle, {}).get(option)
