"""Gradient checkpointing: keep only a block's input and compute the rest again in backward.

Saves activation memory and costs about one more forward pass; *every second* (third, fourth) block
divides both. *By operator* keeps of every block what is dear to compute, the outputs of its matrix
products and of attention, and computes again what is cheap: less is saved, and less time lost.
Without a need for the memory, all of them only cost time. (Chen et al., arXiv 1604.06174.)

On an H200, HYDRA base training (8 x 1,024 tokens, AMP BF16): every block takes 0.72 of the peak for
1.22 of the time, every second block 0.86 for 1.11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.protocol import Blocked
from workbench.runner.compiles import counted
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
    if option == "none":
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    if option == "operators" and situation.option("compile_scope") == "blocks":
        return Blocked(
            "a block that is compiled by itself is one operator to the policy, which then keeps "
            "nothing of it",
            "Compile the whole model.",
            {"compile_scope": "model"},
        )
    return None


def _apply(option: str, build: Build) -> None:
    build.transforms.append(lambda model: model.set_checkpointing(option))


def _evidence(option: str, arm: Arm) -> Finding:
    blocks = arm.model.checkpointed_blocks
    if not blocks:
        return no_effect("no block is checkpointed")
    text = f"{counted(blocks, 'block')} of {arm.situation.config.n_layers} recompute in backward"
    if option != "operators":
        return effective(text)
    if not arm.kept_operators:
        return no_effect(f"{text}, and no operator's output was kept: they recompute everything")
    # A compiler traces a block more than once, so that only the names mean something there.
    compiled = arm.situation.option("compile") != "off"
    kept = ", ".join(
        name if compiled else f"{count} of {name}" for name, count in arm.kept_operators.items()
    )
    return effective(f"{text} all but the outputs of operators that are kept: {kept}")


TOGGLE = Toggle(
    name="checkpointing",
    title="Gradient checkpointing",
    help=__doc__,
    group="Memory",
    stage=Stage.MEMORY,
    options={
        "none": "Off",
        "fourth": "Every fourth block",
        "third": "Every third block",
        "selective": "Every second block",
        "operators": "By operator",
        "full": "Every block",
    },
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="acts block by block, and the blocks of a model of your own are not known",
)
