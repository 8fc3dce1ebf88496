"""How AdamW walks over the parameters: a loop, lists of tensors, or one fused kernel per list."""

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
    return NEEDS_TRAINING if option != "loop" and not situation.workload.trains else None


def _apply(option: str, build: Build) -> None:
    fused = option == "fused"
    # Capturable keeps the step count on the GPU, which is what lets a CUDA graph hold the step.
    build.optimizer = {
        "fused": fused,
        "foreach": option == "foreach",
        "capturable": fused and build.situation.on_gpu,
    }


def _evidence(option: str, arm: Arm) -> Finding:
    assert arm.trainer is not None
    groups = arm.trainer.optimizer.param_groups
    if all(group[option] for group in groups):
        tensors = sum(len(group["params"]) for group in groups)
        return effective(f"AdamW steps {tensors} tensors with {option}=True")
    return no_effect(f"AdamW runs with {option}=False")


TOGGLE = Toggle(
    name="adamw",
    title="AdamW",
    help=__doc__,
    group="Optimizer",
    stage=Stage.OPTIMIZER,
    options={"loop": "Loop", "foreach": "Foreach", "fused": "Fused"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
)
