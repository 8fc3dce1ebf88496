"""The toggles that choose how one operator is computed, or all that have a Triton kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kernels
from kernels import REQUESTED
from workbench.protocol import Blocked
from workbench.runner.toggles._called import not_called
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.arm import Arm
    from workbench.runner.build import Build

TITLES = {
    "torch": "PyTorch",
    "triton": "Triton",
    "manual": "S x S matrix",
    "matmul": "Matrix products",
    "subspace": "Subspace iteration",
    "chunked": "PyTorch, in chunks",
}


def kernel_toggle(operator: str, title: str, help: str) -> Toggle:
    """The switch of one operator: follow the switch for all, or decide alone."""
    options = implementations(operator)
    follows = "triton" in options

    def blocked(option: str, situation: Situation) -> Blocked | None:
        return not_called(operator, situation) or unavailable(operator, option, situation)

    def apply(option: str, build: Build) -> None:
        build.choose_kernel(operator, option)

    def evidence(option: str, arm: Arm) -> Finding:
        return usage_finding(operator, option, arm)

    return Toggle(
        name=f"triton_{operator}" if follows else f"kernel_{operator}",
        title=title,
        help=help,
        group="Kernels",
        stage=Stage.KERNELS,
        options={"follow": "As for all" if follows else "Automatic"} | options,
        apply=apply,
        evidence=evidence,
        blocked=blocked,
        operators=(operator,),
    )


def implementations(operator: str) -> dict[str, str]:
    """Titles of an operator's implementations by name, plain PyTorch first."""
    names = sorted(kernels.OPS[operator].implementations, key=lambda name: name != "torch")
    return {name: TITLES.get(name, name) for name in names}


def with_triton() -> tuple[str, ...]:
    """The operators that have a Triton kernel."""
    return tuple(name for name, one in kernels.OPS.items() if "triton" in one.implementations)


def unavailable(operator: str, implementation: str, situation: Situation) -> Blocked | None:
    """Why an implementation of the operator cannot run on this device."""
    reason = kernels.OPS[operator].unavailable(implementation, situation.device.type)
    if reason is None:
        return None
    if not situation.on_gpu:
        return NEEDS_GPU
    return Blocked(reason, "`workbench doctor` says what to install.")


def usage_finding(operator: str, implementation: str, arm: Arm) -> Finding:
    """Whether the operator's calls of this arm went to the implementation that was asked for."""
    calls = arm.usage.get(operator, {})
    total = sum(calls.values())
    if total == 0:
        return no_effect(f"this model never calls {operator}")
    wanted = calls.get(implementation, 0)
    shown = ", ".join(f"{name} {count}" for name, count in calls.items())
    if wanted == total:
        text = f"{operator}: all {total} recorded calls ran {implementation}"
        _, reason = arm.reasons.get(operator, ("", REQUESTED))
        return effective(text) if reason == REQUESTED else no_effect(f"{text}, by automatic choice")
    return no_effect(f"{operator}: calls went to {shown}")
