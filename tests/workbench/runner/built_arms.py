"""Arms of tiny models of any family, built in this process and stepped once."""

from __future__ import annotations

import torch

from sessions.model import Configuration, Evidence
from workbench.protocol import Blocked
from workbench.runner.config.resolve import blocked_options, resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.variants.variant import Arm, Arms

CPU = torch.device("cpu")


def configuration(
    family: str, workload: str = "forward", batch: int = 1, sequence: int = 16, **more
) -> Configuration:
    """The family's tiny preset."""
    settings = {"batch": batch, "sequence": sequence}
    settings |= {"new_tokens": 4} if workload == "decode" else {}
    return Configuration(family=family, preset="tiny", workload=workload, settings=settings, **more)


def stepped(asked: Configuration, arms: Arms | None = None, device: torch.device = CPU) -> Arm:
    """The arm of a configuration after a step that was watched."""
    arm = (arms or Arms()).get(resolve(asked, device), PhaseTracker(lambda phase: None))
    with arm.entered(), arm.watched():
        arm.step()
    return arm


def found(arm: Arm, toggle: str) -> Evidence:
    """What a toggle finds in the arm as it is now."""
    arm.evidence = None
    (evidence,) = [each for each in arm.find_evidence() if each.toggle == toggle]
    return evidence


def blocked(asked: Configuration, toggle: str, option: str) -> Blocked | None:
    """Why an option cannot be used."""
    return blocked_options(resolve(asked, CPU)).get(toggle, {}).get(option)
