"""The toggles that choose a Triton kernel for one operator, or for all that have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kernels
from workbench.protocol import Blocked
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    OPERATORS,
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.arm import Arm, Build


def kernel_toggle(operator: str, title: str, help: str) -> Toggle:
    """The switch of one operator: follow the switch for all, or decide alone."""

    def blocked(option: str, situation: Situation) -> Blocked | None:
        return triton_blocked(operator, situation) if option == "triton" else None

    def apply(option: str, build: Build) -> None:
        build.choose_kernel(operator, option)

    def evidence(option: str, arm: Arm) -> Finding:
        return usage_finding(operator, option, arm)

    return Toggle(
        name=f"triton_{operator}",
        title=title,
        help=help,
        group="Kernels",
        stage=Stage.KERNELS,
        options={"follow": "As for all", "torch": "PyTorch", "triton": "Triton"},
        apply=apply,
        evidence=evidence,
        blocked=blocked,
        bundled=OPERATORS,
    )


def triton_blocked(operator: str, situation: Situation) -> Blocked | None:
    """Why the operator's Triton kernel cannot run on this device."""
    reason = kernels.OPS[operator].unavailable("triton", situation.device.type)
    if reason is None:
        return None
    if not situation.on_gpu:
        return NEEDS_GPU
    return Blocked(reason, "`workbench doctor` says what to install.")


def usage_finding(operator: str, implementation: str, arm: Arm) -> Finding:
    """Whether the operator's calls of this arm went to the implementation asked for."""
    calls = arm.usage.get(operator, {})
    total = sum(calls.values())
    if total == 0:
        return no_effect(f"this model never calls {operator}")
    wanted = calls.get(implementation, 0)
    shown = ", ".join(f"{name} {count}" for name, count in calls.items())
    if wanted == total:
        return effective(f"{operator}: all {total} recorded calls ran {implementation}")
    return no_effect(f"{operator}: calls went to {shown}")
