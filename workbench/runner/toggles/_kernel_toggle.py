"""The toggles that choose how one operator is computed, or all that have a Triton kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import kernels
from kernels import REQUESTED, STANDARD, Operator, resolve_choice, watched
from workbench.protocol import Blocked
from workbench.runner.toggles._called import not_called
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Situation,
    Stage,
    Toggle,
    as_default,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.variant import Arm

TITLES = {
    "torch": "PyTorch",
    "triton": "Triton",
    "manual": "S x S matrix",
    "matmul": "Matrix products",
    "subspace": "Subspace iteration",
    "chunked": "PyTorch, in chunks",
    "grouped": "Grouped product of torch",
    "padded": "Padded blocks",
    "loop": "Loop over experts",
    "dense": "Every expert (dense)",
}


def _always(option: str, situation: Situation) -> Blocked | None:
    return None


def kernel_toggle(
    operator: str,
    title: str,
    help: str,
    needs: Callable[[str, Situation], Blocked | None] = _always,
) -> Toggle:
    """Return the switch of one operator: follow the switch for all, or decide alone.

    ``needs(option, situation)`` says why an implementation that can run here cannot in a situation.
    """
    options = implementations(operator)
    follows = "triton" in options
    name = f"triton_{operator}" if follows else f"kernel_{operator}"

    def blocked(option: str, situation: Situation) -> Blocked | None:
        return (
            not_called(operator, situation)
            or unavailable(operator, option, situation)
            or needs(option, situation)
        )

    def apply(option: str, build: Build) -> None:
        build.choose_kernel(operator, option)

    def evidence(option: str, arm: Arm) -> Finding:
        finding = usage_finding(operator, option, arm)
        return against_off(finding, operator, arm, name, "follow")

    return Toggle(
        name=name,
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
    """Say whether the arm's calls of an operator went to the implementation that was requested."""
    calls = arm.usage.get(operator, {})
    total = sum(calls.values())
    if total == 0:
        return no_effect(f"this model never calls {operator}")
    wanted = calls.get(implementation, 0)
    shown = ", ".join(f"{name} {count}" for name, count in calls.items())
    _, reason = arm.reasons.get(operator, ("", REQUESTED))
    standard = implementation == "torch" and reason.startswith(STANDARD)
    if standard:  # which stands for one of several
        wanted = total - calls.get("triton", 0)
        text = f"{operator}: all {total} recorded calls ran in PyTorch ({shown}; {reason})"
    else:
        text = f"{operator}: all {total} recorded calls ran {implementation}"
    if wanted != total:
        return no_effect(f"{operator}: calls went to {shown}")
    if reason != REQUESTED and not standard:
        return no_effect(f"{text}, by automatic choice")
    return effective(text)


def against_off(finding: Finding, operator: str, arm: Arm, toggle: str, off: str) -> Finding:
    """Correct a finding of effect where the same runs with the toggle's first option ``off``."""
    if finding.status != "effective":
        return finding
    from workbench.runner.numerics import effects

    situation = effects.without(arm, toggle, off)
    chosen = effects.kernel_choices(situation).get(operator, "auto")
    if chosen == arm.kernel_choices.get(operator):
        return as_default(f"{finding.text}, as they do without this option")
    if chosen in ("auto", "torch") and _stands_for_the_same(chosen, operator, arm):
        return no_effect(
            f"{finding.text}, as {TITLES.get(chosen, 'automatic choice')} does here: output and "
            "work are bit-identical to the option off"
        )
    return finding


def _stands_for_the_same(choice: str, operator: str, arm: Arm) -> bool:
    """Return True if a choice stands for what the arm's calls of an operator ran."""
    from workbench.runner.profiling import instrumented

    same: list[bool] = []

    def watch(op: Operator, name: str, args: tuple[Any, ...]) -> Any:
        if op.name == operator:
            same.append(resolve_choice(op, choice, args) == name)
        return op.implementations[name].call(*args)

    with watched(watch):
        instrumented.call(arm)
    return bool(same) and all(same)
