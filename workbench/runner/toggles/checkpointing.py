"""Gradient checkpointing: keep only each block's input and compute the rest again in backward.

Saves activation memory and costs about one more forward pass. *Every second
block* halves both. (Chen et al., arXiv 1604.06174.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.protocol import Blocked
from workbench.runner.toggles._toggle import (
    NEEDS_TRAINING,
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.arm import Arm, Build


def _blocked(option: str, situation: Situation) -> Blocked | None:
    return NEEDS_TRAINING if option != "none" and not situation.workload.trains else None


def _apply(option: str, build: Build) -> None:
    build.transforms.append(lambda model: model.set_checkpointing(option))


def _evidence(option: str, arm: Arm) -> Finding:
    blocks = arm.model.checkpointed_blocks
    if blocks:
        return effective(f"{blocks} blocks recompute their activations in backward")
    return no_effect("no block is checkpointed")


TOGGLE = Toggle(
    name="checkpointing",
    title="Gradient checkpointing",
    help=__doc__,
    group="Memory",
    stage=Stage.MEMORY,
    options={"none": "Off", "selective": "Every second block", "full": "Every block"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="acts block by block, and the blocks of a model of your own are not known",
)
